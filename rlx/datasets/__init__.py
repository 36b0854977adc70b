"""Replay buffers over datasets at rest, under the names that TorchRL's users know."""
