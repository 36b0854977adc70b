"""robomimic's HDF5."""
