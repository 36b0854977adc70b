"""The functions of ``rlx``: one for each command, with the command's names and defaults.

``merging.merge`` is an example; ``dataset.Dataset``, which ``dataset.open`` returns, has them as methods.
"""
