"""The Parquet tables that the writer fills: steps, episodes with their statistics, final observations."""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.formats.common.exporter import Piece
from rlx.formats.lerobot.layout import (
    CUT,
    DATA_CHUNK,
    DATA_FILE,
    EPISODE,
    FINALS,
    FIRST_INDEX,
    LENGTH,
    STOP_INDEX,
    WrittenFeature,
)
from rlx.store.foreign_types import arrow_file, pyarrow

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_SAMPLE_BYTES = 2**18
_MIN_SAMPLE = 16
Statistics = dict[str, list[float]]


class VectorStatistics:
    """Statistics of each component of vectors [D]; quantiles of every k-th vector, a sample of about 256 kB at most.

    Only finite numbers count. A component without any has 0; a statistic beyond the largest float is that float.
    """

    def __init__(self, size: int) -> None:
        self._count = 0
        self._finite = np.zeros(size, np.int64)
        self._low, self._high = np.full(size, np.inf), np.full(size, -np.inf)
        self._mean, self._squares = np.zeros(size), np.zeros(size)
        self._sample = np.empty((max(_MIN_SAMPLE, _SAMPLE_BYTES // max(1, 8 * size)), size))
        self._sampled, self._every = 0, 1

    def add(self, rows: NDArray[np.generic]) -> None:
        """Add vectors [n, D]."""
        values = rows.astype(np.float64)
        if not len(values):
            return
        self._take(values)
        self._count += len(values)
        is_finite = np.isfinite(values)
        count = is_finite.sum(0)
        self._low = np.minimum(self._low, np.where(is_finite, values, np.inf).min(0))
        self._high = np.maximum(self._high, np.where(is_finite, values, -np.inf).max(0))
        # Chan's method of joining means and sums of squares is exact for large means.
        total = np.maximum(self._finite + count, 1)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = np.where(is_finite, values, 0).sum(0) / np.maximum(count, 1)
            apart = np.where(count > 0, mean - self._mean, 0)
            self._squares += (np.where(is_finite, values - mean, 0) ** 2).sum(0)
            self._squares += apart**2 * self._finite * count / total
            self._mean += apart * count / total
        self._finite += count

    def described(self) -> Statistics:
        """Return the statistics [D], and ``count`` [1]; requires at least one vector."""
        is_known = self._finite > 0
        with np.errstate(over="ignore", invalid="ignore"):
            deviation = np.sqrt(self._squares / np.maximum(self._finite, 1))
        found = {
            "min": np.where(is_known, self._low, 0),
            "max": np.where(is_known, self._high, 0),
            "mean": self._mean,
            "std": deviation,
            "count": np.array([self._count]),
            **dict(zip(QUANTILES, _quantiles(self._sample[: self._sampled]), strict=True)),
        }
        return {name: np.nan_to_num(column).tolist() for name, column in found.items()}

    def _take(self, values: NDArray[np.float64]) -> None:
        """Keep every k-th of the vectors, counted from the first one ever; when the buffer is full, k doubles."""
        taken = values[-self._count % self._every :: self._every]
        while self._sampled + len(taken) > len(self._sample):
            kept = self._sample[: self._sampled : 2]
            taken = taken[self._sampled % 2 :: 2]
            self._sampled, self._every = len(kept), 2 * self._every
            self._sample[: self._sampled] = kept.copy()
        self._sample[self._sampled : self._sampled + len(taken)] = taken
        self._sampled += len(taken)


def _quantiles(sample: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return [Q, D] quantiles of the finite numbers of every column; 0 for a column without any."""
    shares, is_finite = list(QUANTILES.values()), np.isfinite(sample)
    with np.errstate(over="ignore", invalid="ignore"):
        if is_finite.all():
            return np.quantile(sample, shares, axis=0)
        columns = [column[kept] for column, kept in zip(sample.T, is_finite.T, strict=True)]
        return np.stack([np.quantile(one, shares) if len(one) else np.zeros(len(shares)) for one in columns], 1)


class PictureStatistics:
    """Exact statistics of each channel of uint8 pictures [H, W, C], scaled to [0, 1]."""

    def __init__(self, channels: int) -> None:
        self._count = 0
        self._seen = np.zeros((channels, 256), np.int64)

    def add(self, pictures: NDArray[np.generic]) -> None:
        """Add pictures [n, H, W, C]."""
        self._count += len(pictures)
        for channel, seen in enumerate(self._seen):
            seen += np.bincount(pictures[..., channel].reshape(-1), minlength=256)

    def described(self) -> dict[str, list[list[list[float]]] | list[int]]:
        """Return the statistics [C, 1, 1], and ``count`` [1]; requires at least one picture."""
        values = np.arange(256) / 255
        weights = self._seen / self._seen.sum(1, keepdims=True)
        mean = weights @ values
        reached = np.cumsum(weights, axis=1)
        found = {
            "min": values[(self._seen > 0).argmax(1)],
            "max": values[255 - (self._seen[:, ::-1] > 0).argmax(1)],
            "mean": mean,
            "std": np.sqrt((weights * (values - mean[:, None]) ** 2).sum(1)),
            **{name: values[(reached >= share - 1e-12).argmax(1)] for name, share in QUANTILES.items()},
        }
        return {"count": [self._count], **{name: [[[value]] for value in row.tolist()] for name, row in found.items()}}


_NAMES = ("min", "max", "mean", "std", "count", *QUANTILES)
_BUFFERED_EPISODES = 100
# Each keeps a kilobyte or two in memory until the file is closed, and readers of the file load all of them.
_FILE_COLUMN_CHUNKS = 20_000
_GROUP_BYTES, _GROUP_ROWS = 2**20, 1000


class NumberedFiles:
    """Writer of tables into numbered files, each until it is full or has too many row groups.

    Args:
        template: name of a file, with placeholders for the numbers of its chunk and itself.
        limit: bytes from which on a file is full.
        chunk: files per directory.
    """

    def __init__(self, directory: Path, template: str, schema: Any, limit: int, chunk: int) -> None:
        self._directory = directory
        self._template = template
        self._schema = schema
        self._limit = limit
        self._chunk = chunk
        self._number = -1
        self._raw: Any = None
        self._writer: Any = None
        self._held: list[Any] = []
        self._chunks = 0

    @property
    def place(self) -> tuple[int, int]:
        """Number of the open file's chunk, and of the file in it."""
        return divmod(self._number, self._chunk)

    def __enter__(self) -> None:
        self._open()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.flush()
        self._close()

    def turn(self) -> None:
        """Open the next file, if this one is full."""
        if self._raw.tell() >= self._limit or self._chunks >= _FILE_COLUMN_CHUNKS:
            self._close()
            self._open()

    def write(self, columns: Mapping[str, Any], group_bytes: int) -> None:
        """Add rows to the row group; end it if it has ``group_bytes``."""
        arrow, _ = pyarrow()
        self._held.append(arrow.Table.from_arrays([columns[name] for name in self._schema.names], schema=self._schema))
        if sum(table.nbytes for table in self._held) >= group_bytes:
            self.flush()

    def flush(self) -> None:
        """End the row group."""
        if self._held:
            arrow, _ = pyarrow()
            table = arrow.concat_tables(self._held)
            self._held = []
            self._writer.write_table(table, row_group_size=len(table))
            self._chunks += len(self._schema.names)

    def _open(self) -> None:
        _, parquet = pyarrow()
        self._number, self._chunks = self._number + 1, 0
        chunk, file = self.place
        path = self._directory / (self._template.format(chunk_index=chunk, file_index=file) + ".parquet")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._raw = arrow_file(path, "wb")
        self._writer = parquet.ParquetWriter(self._raw, self._schema, compression="snappy", use_dictionary=True)

    def _close(self) -> None:
        try:
            self._writer.close()
        finally:
            self._raw.close()


class EpisodeRows:
    """Writer of one row per episode: its location and statistics; also computes statistics of all steps."""

    def __init__(
        self, directory: Path, template: str, features: Mapping[str, WrittenFeature], limit: int, chunk: int
    ) -> None:
        self._features = features
        self._tasks: dict[str, None] = {}
        self._files = NumberedFiles(directory, template, _schema(features), limit, chunk)
        self._counted = {called: feature for called, feature in features.items() if not feature.field.is_text}
        self._all = {called: _statistics(feature) for called, feature in self._counted.items()}
        self._now = dict(self._all)
        self._rows: list[dict[str, Any]] = []
        self._steps = 0
        self._place = (0, 0)

    def __enter__(self) -> None:
        self._files.__enter__()

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            self._flush()
        self._files.__exit__(kind, *rest)

    def start(self, data: NumberedFiles) -> None:
        """Begin an episode in the open file of ``data``."""
        self._now = {called: _statistics(feature) for called, feature in self._counted.items()}
        self._tasks = {}
        self._place = data.place

    def count(self, rows: Mapping[str, NDArray[np.generic]], tasks: Iterable[str]) -> None:
        """Add steps, and their tasks, to the episode."""
        self._tasks |= dict.fromkeys(tasks)
        for called, feature in self._counted.items():
            column = feature.counted(rows[called])
            self._now[called].add(column)
            self._all[called].add(column)

    def finish(self, number: int, steps: int) -> None:
        """End the episode."""
        chunk, file = self._files.place
        row: dict[str, Any] = {
            EPISODE: number,
            "tasks": list(self._tasks),
            LENGTH: steps,
            DATA_CHUNK: self._place[0],
            DATA_FILE: self._place[1],
            FIRST_INDEX: self._steps,
            STOP_INDEX: self._steps + steps,
        }
        for called, statistics in self._now.items():
            described = {**statistics.described(), "count": [steps]}
            row |= {f"stats/{called}/{name}": values for name, values in described.items()}
        self._rows.append({**row, "meta/episodes/chunk_index": chunk, "meta/episodes/file_index": file})
        self._steps += steps
        if len(self._rows) >= _BUFFERED_EPISODES:
            self._flush()
            self._files.turn()

    def statistics(self) -> dict[str, Any]:
        """Return the statistics of all steps."""
        if not self._steps:
            return {}
        return {called: {**one.described(), "count": [self._steps]} for called, one in self._all.items()}

    def _flush(self) -> None:
        if self._rows:
            arrow, _ = pyarrow()
            table = arrow.Table.from_pylist(self._rows, schema=_schema(self._features))
            self._rows = []
            self._files.write({name: table[name] for name in table.schema.names}, 0)


def _schema(features: Mapping[str, WrittenFeature]) -> Any:
    arrow, _ = pyarrow()
    number, numbers = arrow.int64(), arrow.list_(arrow.float64())
    channels = arrow.list_(arrow.list_(numbers))
    before = (LENGTH, DATA_CHUNK, DATA_FILE, FIRST_INDEX, STOP_INDEX)
    fields = [(EPISODE, number), ("tasks", arrow.list_(arrow.string())), *((name, number) for name in before)]
    for called, feature in features.items():
        if feature.field.is_text:
            continue
        kind = channels if feature.is_image else numbers
        fields += [(f"stats/{called}/{name}", arrow.list_(number) if name == "count" else kind) for name in _NAMES]
    return arrow.schema([*fields, ("meta/episodes/chunk_index", number), ("meta/episodes/file_index", number)])


def _statistics(feature: WrittenFeature) -> VectorStatistics | PictureStatistics:
    return PictureStatistics(feature.shape[-1]) if feature.is_image else VectorStatistics(feature.shape[-1])


class FinalObservations:
    """Writer of the final observations that are recorded, with number and length of their episodes."""

    def __init__(self, directory: Path, features: Mapping[str, WrittenFeature], names: Mapping[str, str]) -> None:
        self._path = directory / FINALS
        self._features = features
        self._names = names
        self._numbers: list[tuple[int, int, bool]] = []
        self._rows: dict[str, list[NDArray[np.generic]]] = {name: [] for name in features}
        self._bytes = 0
        self._open = ExitStack()
        self._writer: Any = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, *_: object) -> None:
        with self._open:
            if kind is None:
                self._flush()

    def add(self, piece: Piece, *, is_cut: bool) -> None:
        """Add the last piece of an episode, if its final observation is recorded."""
        if not piece.final_recorded:
            return
        self._numbers.append((piece.trajectory, piece.start + piece.steps, is_cut))
        for name, rows in self._rows.items():
            rows.append(piece.next(name)[-1:].copy())
            self._bytes += rows[-1].nbytes
        if self._bytes >= _GROUP_BYTES or len(self._numbers) >= _GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if not self._numbers:
            return
        arrow, parquet = pyarrow()
        columns = dict(zip((EPISODE, LENGTH, CUT), map(arrow.array, zip(*self._numbers, strict=True)), strict=True))
        for name, rows in self._rows.items():
            columns[self._names[name]] = self._features[name].column(np.concatenate(rows))
            rows.clear()
        self._numbers, self._bytes = [], 0
        table = arrow.table(columns)
        if self._writer is None:
            file = self._open.enter_context(arrow_file(self._path, "wb"))
            self._writer = self._open.enter_context(parquet.ParquetWriter(file, table.schema, compression="snappy"))
        self._writer.write_table(table, row_group_size=len(table))
