"""The functions of ``rlx``: one for each command, with the command's names and defaults.

A file for each, such as ``merging.merge``; ``dataset.Dataset``, which ``opening.open`` returns, has them as methods.
"""
