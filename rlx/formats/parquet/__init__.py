"""Parquet tables of steps.

``reader.open_parquet`` opens one; ``writer.ParquetDatasetExporter`` writes datasets and ``writer.ParquetExporter``
batches. ``writer.HfParquetExporter`` writes pictures in columns, as the Hugging Face hub's library ``datasets``
does; the format ``parquet`` reads them.
"""

from rlx.formats.registry import COLUMN_OPTIONS, Format

FORMATS = (
    Format(
        "parquet",
        __name__,
        reads="dataset",
        options=dict.fromkeys((*COLUMN_OPTIONS, "split"), str),
        writes=("datasets", "batches"),
    ),
    Format("hf_parquet", __name__, writes=("datasets",), exporter="HF_DATASETS"),
)
