"""Datasets changed on their way into another: pure functions of blocks, and which trajectories are left."""
