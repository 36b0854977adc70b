"""Storages: where a replay buffer keeps its steps.

``RingStorage`` (``ring``) is the base of those that are written to; ``DatasetStorage`` reads a dataset on disk.
"""
