"""HDF5 files of batches."""
