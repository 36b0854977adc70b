"""The work of the commands: from sources to datasets, and from datasets to datasets and files.

``convert.convert`` is an example; the commands that write shards share ``ingest.Ingest``.
"""
