"""Storages: where a replay buffer keeps its steps.

``ring`` is the base of those that are written to; ``dataset`` reads a dataset on disk.
"""
