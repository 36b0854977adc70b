"""Code shared by the readers and writers of several formats.

A reader returns a ``source.Source``; ``exporter`` and ``batches`` have the protocols
of writers, of datasets and of batches.
"""
