"""Trajectory index: which stored steps follow each other, whatever the order of writing.

``RingTrajectoryIndex`` (``trajectory_index``) answers for the rings of a storage, by segments of trajectories.
"""
