"""Transforms of datasets: functions of blocks, and selections of trajectories.

``registry.parse`` returns the transform of a text, ``chain.fitted`` the transforms as they are applied to a dataset.
"""
