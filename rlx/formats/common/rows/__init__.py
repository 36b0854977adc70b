"""Steps in rows: which rows are an episode, and reading them in order."""
