"""Zarr groups of batches."""
