"""Which stored steps follow each other, whatever order they were written in.

``trajectory_index`` answers for the rings of a storage, ``dataset_index`` for a dataset on disk.
"""
