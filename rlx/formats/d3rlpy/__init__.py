"""d3rlpy's HDF5."""
