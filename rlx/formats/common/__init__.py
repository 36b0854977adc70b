"""What the readers and writers of several formats share.

A reader returns a ``source.Source``; a writer is a ``exporter.DatasetExporter``, or a ``batches.Exporter`` of batches.
"""
