"""Bytes at a place: files on this machine, in a bucket or below a URL, read by ranges and written whole or not at all.

``opening.open_location`` returns a location; ``atomic.whole`` and ``atomic.write_file`` write on this machine.
"""
