"""Datasets on disk: shards of arrays, their codecs, their writer and their reader.

Read with ``dataset.Dataset``, write shards with ``writer.write_shard`` and list them with
``dataset_writer.open_writer``.
"""
