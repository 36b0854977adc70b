"""RL Unplugged's Atari episodes."""
