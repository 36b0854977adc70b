"""Checkpoints of rlx's replay buffer."""
