"""Datasets in buckets: files at a URL, and reading them by ranges."""
