"""Parquet of the Hugging Face hub's library ``datasets``, with files of pictures in columns.

``writer.HfParquetExporter`` writes a row per step, which the format ``parquet`` reads.
"""

from rlx.formats.registry import Format

FORMAT = Format("hf_parquet", __name__, writes=("datasets",))
