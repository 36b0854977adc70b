"""The table of formats: rlx's own, and those that other packages add.

The table needs no reader and no writer, and so none of the packages that they import.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Literal

from rlx.errors import PluginError, UnknownFormatError
from rlx.plugins import plugins
from rlx.wording import did_you_mean

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from rlx.formats.common.batches import DirectoryExporter, Exporter
    from rlx.formats.common.exporter import DatasetExporter
    from rlx.formats.common.provenance import LocalRun
    from rlx.formats.common.signs import Sign

# Options of formats of tables, each of which names the column of this TED path.
COLUMN_PATHS: Mapping[str, str] = MappingProxyType(
    {
        "observation": "observation",
        "next_observation": "next/observation",
        "action": "action",
        "reward": "next/reward",
        "terminated": "next/terminated",
        "truncated": "next/truncated",
        "done": "next/done",
        "trajectory": "collector/traj_ids",
    }
)
COLUMN_OPTIONS: Mapping[str, type[str]] = MappingProxyType(dict.fromkeys(COLUMN_PATHS, str))


@dataclass(frozen=True, slots=True)
class Format:
    """One format, as the ``__init__.py`` of its folder describes it.

    ``reader.py`` of a folder has ``open_<name>(path, **options)`` and, if a path may hold several runs,
    ``find_runs(path)``. ``writer.py`` has ``DATASETS``, the
    exporter of datasets, and ``BATCHES``, that of batches. Names that both use are in ``__init__.py``, or, with
    functions, in ``layout.py``.

    Args:
        name: for users.
        folder: the package, ``__name__``.
        reads: what a path may hold: one dataset, or several runs; None if rlx does not read the format.
        options: type of every option of the reader, by name.
        signs: what a path of the format has, one of them.
        marks: members of an HDF5 file, or files of a directory, that suggest the format although others are missing.
        is_hdf5: whether a dataset is an HDF5 file, or has one.
        writes: what rlx writes in it.
        suffixes: other suffixes than the name for files of batches.
        layout: the expected layout, for messages.
        exporter: name of its exporter in a ``writer.py`` of several formats.
    """

    name: str
    folder: str
    reads: Literal["dataset", "runs"] | None = None
    options: Mapping[str, type[int]] | Mapping[str, type[str]] = field(default_factory=dict)
    signs: Sequence[Sign] = ()
    marks: Sequence[str] = ()
    is_hdf5: bool = False
    writes: Sequence[Literal["datasets", "batches"]] = ()
    suffixes: Sequence[str] = ()
    layout: str = ""
    exporter: str = ""

    @property
    def opens(self) -> bool:
        """Whether ``open`` can diagnose what is wrong with a path."""
        return hasattr(self._reader, f"open_{self.name}")

    def recognises(self, path: Path) -> bool:
        """Return whether a path holds data of this format, and of no other; imports no reader."""
        return any(sign.is_at(path) for sign in self.signs)

    def open(self, path: Path, **options: int | str) -> LocalRun:
        """Return the dataset at a path.

        Raises:
            SourceNotFoundError: the path does not exist.
            CorruptShardError: a part is missing, holds no numbers, or has more or fewer rows than another.
            SourceError: it is of another format or version, or has no step.
            MissingExtraError: a package that reads the format is not installed.
        """
        found: LocalRun = getattr(self._reader, f"open_{self.name}")(path, **options)
        return found

    def find_runs(self, path: Path) -> Sequence[LocalRun]:
        """Return the runs at a path or below."""
        found: Sequence[LocalRun] = self._reader.find_runs(path)
        return found

    @property
    def datasets(self) -> DatasetExporter:
        """The exporter of datasets."""
        found: DatasetExporter = self._exporter("DATASETS")
        return found

    @property
    def batches(self) -> Exporter | DirectoryExporter:
        """The exporter of batches."""
        found: Exporter | DirectoryExporter = self._exporter("BATCHES")
        return found

    @property
    def _reader(self) -> ModuleType:
        return import_module(f"{self.folder}.reader")

    def _exporter(self, name: str) -> Any:
        return getattr(import_module(f"{self.folder}.writer"), self.exporter or name)


@cache
def formats() -> Mapping[str, Format]:
    """Return all formats by name, sorted.

    Example:
        >>> formats()["d4rl"].reads, formats()["pt"].writes
        ('dataset', ('batches',))
    """
    found = {}
    for name, plugin in sorted(plugins("rlx.formats").items()):
        try:
            one = plugin.load(Format)
        except PluginError as exc:
            logger.warning("%s", exc)
            continue
        if one.name == name:
            found[name] = one
        else:
            logger.warning("%s is refused: it names itself %r", plugin, one.name)
    return MappingProxyType(found)


def readable() -> Mapping[str, Format]:
    """Return the formats that rlx reads."""
    return {name: one for name, one in formats().items() if one.reads is not None}


def writable(what: Literal["datasets", "batches"]) -> Mapping[str, Format]:
    """Return the formats in which rlx writes datasets, or batches."""
    return {name: one for name, one in formats().items() if what in one.writes}


def format_of(path: Path) -> str:
    """Return the name of the format of batches with a file's suffix.

    Raises:
        UnknownFormatError: no format has it.

    Example:
        >>> format_of(Path("slices.hdf5"))
        'h5'
    """
    suffix, known = path.suffix.removeprefix(".").lower(), writable("batches")
    for name, one in known.items():
        if suffix in (name, *one.suffixes):
            return name
    raise UnknownFormatError(
        f"{path.name}: expected a name that ends in .{', .'.join(known)}",
        hint=did_you_mean(suffix, known) or "or give `format`",
    )
