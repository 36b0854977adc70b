"""Bytes at a place: on a disk, in a bucket or at a URL."""
