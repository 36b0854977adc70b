"""torch's files of batches."""
