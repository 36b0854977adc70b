"""HDF5 files: read without trust, and written piece by piece."""
