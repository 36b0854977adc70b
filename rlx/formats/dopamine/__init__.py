"""Dopamine's replay logs, such as the DQN Replay Dataset."""
