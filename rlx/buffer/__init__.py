"""Replay buffers: storages that keep steps, samplers that choose them, writers that decide where they go."""
