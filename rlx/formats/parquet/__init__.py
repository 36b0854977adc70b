"""Parquet tables of steps.

``reader.open_parquet`` opens one; ``writer.ParquetDatasetExporter`` writes datasets and ``writer.ParquetExporter``
batches. ``writer.HfParquetExporter`` writes pictures in columns, as the Hugging Face hub's library ``datasets``
does; the format ``parquet`` reads them.
"""

from rlx.formats.common.parquet_file import MAGIC
from rlx.formats.common.signs import Sign
from rlx.formats.registry import COLUMN_OPTIONS, Format

# The directory, or the one in it, of the files of a dataset on the hub that is joined of two tables.
JOINED = "transitions"
_FILES = ("*.parquet", "data/*.parquet", f"{JOINED}/*/*.parquet")
FORMAT = Format(
    "parquet",
    __name__,
    reads="dataset",
    options=dict.fromkeys((*COLUMN_OPTIONS, "split"), str),
    writes=("datasets", "batches"),
    # LeRobot's files are below `meta` and `data`.
    signs=(Sign(begins=MAGIC), *(Sign(files=(files,), begins=MAGIC, lacks=("meta",)) for files in _FILES)),
)
HF_PARQUET = Format("hf_parquet", __name__, writes=("datasets",), exporter="HF_DATASETS")
