"""The functions of ``rlx``: a file for each, with its arguments, its checks and its work in this order.

``convert.convert`` is an example. What several share has a file of its own: ``options`` declares arguments, ``inputs``
opens what is read, ``ingest`` writes shards and ``assembly`` links them, ``fetching``, ``sending`` and ``receiving``
transfer files, and ``report`` has the results. ``dataset.Dataset``, which ``dataset.open`` returns, has several
functions as methods.
"""
