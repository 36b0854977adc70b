"""The verbs: one file for each function of ``rlx``, with its arguments, its checks and its work, and what they share.

``convert.convert`` is an example; those that write shards share ``ingest.Ingest``, and ``dataset.Dataset``, which
``dataset.open`` returns, has several as methods.
"""
