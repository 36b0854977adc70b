"""The work of the commands: from sources to datasets, and from datasets to datasets and files.

A file for each command, such as ``convert.convert``; those that write shards share ``ingest.Ingest``.
"""
