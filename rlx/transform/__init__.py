"""Transforms of datasets, of which several are transforms of a buffer's batches too; and selections of trajectories.

``registry.parse`` returns the transform of a text, ``protocol.fitted`` several as they are applied to a dataset.
"""
