"""Bytes at a place: files on this machine, in a bucket or below a URL, read by ranges and written whole or not at all.

Start at ``open_location`` (``opening.py``), which returns a ``Location``; ``whole`` and ``write_file`` (``atomic.py``)
write on this machine.
"""
