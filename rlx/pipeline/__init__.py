"""The commands as functions: from sources to datasets, from datasets to datasets and files."""
