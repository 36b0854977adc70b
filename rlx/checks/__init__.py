"""Checks of a dataset's contents: flags, rewards, duplicates, values and joins.

``examination.examine`` runs all checks over the blocks of a dataset or of another project's files.
"""
