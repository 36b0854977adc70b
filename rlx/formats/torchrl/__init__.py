"""TorchRL's memory maps."""
