"""JSON lines of batches."""
