"""The formats that rlx exports to, and how a file comes to be: in full, or not at all."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from rlx.errors import DatasetExistsError, UnknownFormatError
from rlx.files.atomic import whole
from rlx.formats.common.batches import Columns, DirectoryExporter, Exporter
from rlx.formats.h5.writer import H5Exporter
from rlx.formats.jsonl.writer import JsonlExporter
from rlx.formats.npz.writer import NpzExporter
from rlx.formats.parquet.writer import ParquetExporter
from rlx.formats.pt.writer import PtExporter
from rlx.formats.zarr.writer import ZarrExporter

EXPORTERS: Mapping[str, Exporter | DirectoryExporter] = MappingProxyType(
    {
        "npz": NpzExporter(),
        "pt": PtExporter(),
        "h5": H5Exporter(),
        "zarr": ZarrExporter(),
        "parquet": ParquetExporter(),
        "jsonl": JsonlExporter(),
    }
)
_ALIASES = MappingProxyType({"hdf5": "h5", "pth": "pt", "ndjson": "jsonl"})


def format_of(path: Path) -> str:
    """Return name of the format that a file's suffix means.

    Raises:
        UnknownFormatError: none does.

    Example:
        >>> format_of(Path("slices.hdf5"))
        'h5'
    """
    suffix = path.suffix.removeprefix(".").lower()
    name = _ALIASES.get(suffix, suffix)
    if name not in EXPORTERS:
        raise UnknownFormatError(
            f"{path.name}: expected a name that ends in .{', .'.join(EXPORTERS)}", hint="or give --format"
        )
    return name


def export(batches: Iterable[Columns], path: Path, exporter: Exporter | DirectoryExporter) -> None:
    """Write batches to a file, or directory, that is there when all of it is; one that was there is replaced.

    Raises:
        DatasetExistsError: something lies there that this format could not have written.
        DiskFullError: no space is left.
        MissingExtraError: the format needs a package that is not installed.
    """
    is_directory = isinstance(exporter, DirectoryExporter)
    if path.is_dir() and not (is_directory and (path / "zarr.json").is_file()):
        raise DatasetExistsError(f"{path} is a directory; expected a new name, or a file to replace")
    with whole(path) as partial:
        _write(batches, partial, exporter)


def _write(batches: Iterable[Columns], path: Path, exporter: Exporter | DirectoryExporter) -> None:
    if isinstance(exporter, DirectoryExporter):
        exporter.write_directory(batches, path)
        return
    with path.open("w+b") as file:
        exporter.write(batches, file)
