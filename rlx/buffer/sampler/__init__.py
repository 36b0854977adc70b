"""Samplers: which rows of a storage make a batch.

``steps`` and ``slices`` draw evenly, ``prioritized`` and ``prioritized_slices`` by priority.
"""
