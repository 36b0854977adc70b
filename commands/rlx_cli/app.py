"""Placeholder wiring while the library grows."""
