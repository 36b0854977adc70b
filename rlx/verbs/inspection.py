"""Inspections: the contents of a dataset."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from rlx.errors import DatasetExistsError, UnknownFormatError
from rlx.files.atomic import whole
from rlx.manifest import Manifest
from rlx.store.codec import Codec
from rlx.store.dataset import Dataset
from rlx.store.layout import find_dataset
from rlx.store.statistics import EpisodeStatistics, summary
from rlx.store.trajectories import Trajectories
from rlx.verbs.arguments import StrPath

_PART_ROWS = 4096


@dataclass(frozen=True, slots=True)
class TrajectoryTable:
    """The trajectories of a dataset, one row each; iterates over rows as ``--json`` prints them.

    Args:
        columns: the table; every column has N rows.
        shards: name and number of trajectories of each shard, in order.
    """

    columns: Trajectories
    shards: Sequence[tuple[str, int]]

    def __len__(self) -> int:
        return len(self.columns)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for part in self.parts():
            columns = [[values] * len(part["id"]) if isinstance(values, str) else values for values in part.values()]
            for row in zip(*columns, strict=True):
                yield dict(zip(part, row, strict=True))

    def parts(self) -> Iterator[dict[str, Any]]:
        """Yield values by column for some thousand rows at a time: a list, or the shard's name for all of them."""
        table = self.columns
        columns: dict[str, NDArray[Any]] = {
            "start": table.start,
            "length": table.length,
            "return": table.returns,
            "terminated": table.terminated,
            "truncated": table.truncated,
            "episode": table.episode,
            "from_reset": table.from_reset,
            "final_recorded": table.final_recorded,
            "cut": table.cut,
            "whole": table.whole,
        }
        stop = 0
        for shard, count in self.shards:
            first, stop = stop, stop + count
            for low in range(first, stop, _PART_ROWS):
                high = min(low + _PART_ROWS, stop)
                part: dict[str, Any] = {name: column[low:high].tolist() for name, column in columns.items()}
                part["return"] = [value if math.isfinite(value) else None for value in part["return"]]
                yield {"id": list(range(low, high)), "shard": shard, **part}


@dataclass(frozen=True, slots=True)
class Inspection:
    """The contents of a dataset and where they came from.

    Args:
        id: name of the dataset.
        path: its directory or URL.
        format_version: version of the format on disk.
        store: ``zarr`` or ``memmap``.
        codec: such as ``zstd-dict:level=6,chunk=1``.
        steps: steps of all shards.
        trajectories: trajectories of all shards.
        episodes: ``whole`` and ``pieces``, and ``mean_return`` and ``mean_length`` of whole episodes; None if unknown.
        shards: name, steps, trajectories, bytes, mean return of whole episodes, dropped rows and origin of each shard.
        missing_shards: names of shards that are planned and not written yet.
        bytes: bytes on disk.
        raw_bytes: bytes of the uncompressed fields.
        ratio: raw_bytes per byte; None for an empty dataset.
        schema: role, dtype, shape and perhaps space of each field.
        notes: notes of the data.
        lineage: commands that made the dataset, the first one first.
        stats: statistics by name, on request.
        trajectory: table of all trajectories, on request.
        plot: image file with the plots, on request.
    """

    id: str
    path: str
    format_version: int
    store: str
    codec: str
    steps: int
    trajectories: int
    episodes: Mapping[str, Any]
    shards: Sequence[Mapping[str, Any]]
    missing_shards: Sequence[str]
    bytes: int
    raw_bytes: int
    ratio: float | None
    schema: Mapping[str, Mapping[str, Any]]
    notes: Mapping[str, Any]
    lineage: Sequence[Mapping[str, Any]]
    stats: Mapping[str, Any] | None = None
    trajectory: TrajectoryTable | None = None
    plot: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the keys that scripts rely on."""
        shown: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        on_request = {
            "stats": self.stats,
            "trajectory": None if self.trajectory is None else list(self.trajectory),
            "plot": None if self.plot is None else str(self.plot),
        }
        return {name: value for name, value in {**shown, **on_request}.items() if value is not None or name == "ratio"}


def inspection(dataset: StrPath, *, stats: bool, trajectories: bool, plot: Path | None) -> Inspection:
    """Return the contents of a dataset; see ``rlx.inspect``."""
    path, manifest = find_dataset(dataset)
    table = _table(dataset, manifest) if trajectories else None
    raw_bytes = manifest.schema.raw_bytes(manifest.steps, manifest.trajectories)
    return Inspection(
        id=manifest.id,
        path=str(path),
        format_version=manifest.format_version,
        store=manifest.store,
        codec=str(Codec.from_json(manifest.codec)),
        steps=manifest.steps,
        trajectories=manifest.trajectories,
        episodes=EpisodeStatistics.of(manifest.shards).summary(),
        shards=[
            {
                "name": shard.name,
                "steps": shard.steps,
                "trajectories": shard.trajectories,
                "bytes": shard.bytes,
                "mean_return": EpisodeStatistics.of([shard]).summary()["mean_return"],
                "dropped": dict(shard.dropped),
                "origin": dict(shard.origin),
            }
            for shard in manifest.shards
        ],
        missing_shards=manifest.missing,
        bytes=manifest.bytes,
        raw_bytes=raw_bytes,
        ratio=round(raw_bytes / manifest.bytes, 3) if manifest.bytes else None,
        schema=manifest.schema.to_json(),
        notes=dict(manifest.notes),
        lineage=[dict(step) for step in manifest.lineage],
        stats=summary(manifest.shards) if stats else None,
        trajectory=table,
        plot=None if plot is None else _plotted(dataset, plot),
    )


def _table(dataset: StrPath, manifest: Manifest) -> TrajectoryTable:
    columns = Dataset(dataset, partial=True).trajectories
    return TrajectoryTable(columns, [(shard.name, shard.trajectories) for shard in manifest.shards])


def _plotted(dataset: StrPath, path: Path) -> Path:
    from rlx.viewer.overview import plots_png  # needs an extra

    if path.suffix.lower() != ".png":
        raise UnknownFormatError(f"{path.name}: expected a name that ends in .png")
    if path.is_dir():
        raise DatasetExistsError(f"{path} is a directory; expected a new name, or a file to replace")
    plots = plots_png(Dataset(dataset, partial=True))
    with whole(path) as partial:
        partial.write_bytes(plots)
    return path
