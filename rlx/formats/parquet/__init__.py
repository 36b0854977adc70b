"""Parquet tables of steps."""

from rlx.formats.registry import Format

FORMAT = Format("parquet", __name__, reads="dataset", writes=("datasets", "batches"))
