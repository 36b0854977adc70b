"""Samplers: which rows of a storage make a batch.

``steps.RandomSampler`` and ``slices.SliceSampler`` draw evenly, ``prioritized.PrioritizedSampler`` by priority.
"""
