"""HDF5 files: read without trust, and written piece by piece.

``file.opened`` opens a file for reading, ``output.created`` a new one.
"""
