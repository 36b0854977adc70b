"""Trajectory index: which stored steps follow each other, whatever order they were written in.

``RingTrajectoryIndex`` (``trajectory_index``) answers for the rings of a storage, by segments of trajectories.
"""
