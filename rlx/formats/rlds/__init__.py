"""RLDS as TensorFlow Datasets keeps it."""
