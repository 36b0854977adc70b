"""D4RL's HDF5."""
