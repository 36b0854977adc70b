"""Comparison of two datasets: manifests, trajectories, and every field of every step."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.progress import Progress
from rlx.schema import Field
from rlx.store.dataset import Dataset
from rlx.store.trajectories import COLUMNS, Trajectories

_BATCH_BYTES = 2**24
_MAX_BATCH = 8192
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between two datasets.

    Args:
        part: ``manifest``, ``lineage``, ``trajectories`` or ``fields``.
        name: of the entry, column or field that differs.
        a: what the first dataset has there; None if nothing.
        b: what the second one has.
        count: trajectories or steps that differ; None where they cannot be counted.
        first: the first of them.
    """

    part: str
    name: str
    a: str | None
    b: str | None
    count: int | None = None
    first: int | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences between two datasets.

    Args:
        a: path, id or URL of the first dataset.
        b: of the second one.
        differences: all of them; empty if the datasets are equal.
        read: steps that were read and compared; fewer than there are where files have equal checksums.
    """

    a: str
    b: str
    differences: list[Difference]
    read: int

    @property
    def equal(self) -> bool:
        """Whether no difference was found."""
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        """Return the keys that scripts rely on."""
        return {**asdict(self), "equal": self.equal}


def compare(a: Dataset, b: Dataset, *, progress: Progress) -> Comparison:
    """Compare two datasets, however they are stored and cut into shards."""
    differences = [*_manifests(a, b), *_lineages(a, b), *_tables(a.trajectories, b.trajectories)]
    read = 0
    if not _same_files(a, b):
        read = min(len(a), len(b))
        differences += _fields(a, b, read, progress)
    return Comparison(a.where, b.where, differences, read)


def _manifests(a: Dataset, b: Dataset) -> Iterator[Difference]:
    one, other = a.manifest, b.manifest
    for name in ("id", "store", "codec", "steps", "missing"):
        left, right = getattr(one, name), getattr(other, name)
        if left != right:
            yield Difference("manifest", name, _short(left), _short(right))
    for name in dict.fromkeys([*one.notes, *other.notes]):
        noted = [_short(each.notes[name]) if name in each.notes else None for each in (one, other)]
        if None in noted or one.notes[name] != other.notes[name]:
            yield Difference("manifest", f"notes/{name}", noted[0], noted[1])
    shards = [[shard.name for shard in each.shards] for each in (one, other)]
    if shards[0] != shards[1]:
        yield Difference("manifest", "shards", _short(shards[0]), _short(shards[1]))


def _lineages(a: Dataset, b: Dataset) -> Iterator[Difference]:
    left, right = ([step.get("command") for step in each.manifest.lineage] for each in (a, b))
    if left != right:
        yield Difference("lineage", "command", _short(left), _short(right))


def _tables(a: Trajectories, b: Trajectories) -> Iterator[Difference]:
    if len(a) != len(b):
        yield Difference("trajectories", "number", f"{len(a):,}", f"{len(b):,}")
    both = min(len(a), len(b))
    left, right = a.columns(), b.columns()
    for name in COLUMNS:
        yield from _rows("trajectories", name, left[name][:both], right[name][:both], 0)


def _fields(a: Dataset, b: Dataset, steps: int, progress: Progress) -> list[Difference]:
    """Compare the fields of the steps that both datasets have, in batches."""
    found = [
        Difference("fields", name, _kind(a, name), _kind(b, name))
        for name in sorted({*a.schema, *b.schema})
        if _kind(a, name) != _kind(b, name)
    ]
    common = [name for name in a.schema if name in b.schema and _layout(a.schema[name]) == _layout(b.schema[name])]
    row_bytes = max(1, a.schema.raw_bytes(1, 0))
    batch = int(np.clip(_BATCH_BYTES // row_bytes, 1, _MAX_BATCH))
    counted: dict[str, Difference] = {}
    progress.expect("steps", steps)
    for start in range(0, steps, batch):
        rows = np.arange(start, min(start + batch, steps))
        left, right = (each.steps.read_all(each.steps.locate(rows)) for each in (a, b))
        for name in common:
            for key, one, other in zip((name, f"next/{name}"), left[name], right[name], strict=True):
                if one is None or other is None:
                    continue
                for difference in _rows("fields", key, one, other, start):
                    counted[key] = _added(counted.get(key), difference)
        progress.advance("steps", len(rows))
    return [*found, *counted.values()]


def _rows(part: str, name: str, a: Any, b: Any, start: int) -> Iterator[Difference]:
    """Yield the difference of two arrays with the same number of rows, if they differ; equal NaN are equal."""
    one, other = np.asarray(a), np.asarray(b)
    differ = _differ(one, other)
    count = int(differ.sum())
    if count:
        first = int(np.argmax(differ))
        yield Difference(part, name, *_shown(one[first], other[first]), count, start + first)


def _shown(a: Any, b: Any) -> tuple[str, str]:
    """Return two rows that differ; of arrays, the first numbers that differ and where they are."""
    if not np.ndim(a):
        return _short(a), _short(b)
    at = tuple(np.argwhere((a != b) & ((a == a) | (b == b)))[:1].reshape(-1).tolist())  # both may be NaN
    return (_short(a), _short(b)) if not at else (f"{list(at)}: {_short(a[at])}", f"{list(at)}: {_short(b[at])}")


def _differ(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.bool_]:
    """Return [n] whether rows differ, to the last bit."""
    rows = len(a)
    if a.dtype != b.dtype:
        return np.ones(rows, bool)
    if not a.size:
        return np.zeros(rows, bool)
    if a.dtype.hasobject:
        found: NDArray[np.bool_] = (a != b).reshape(rows, -1).any(1)
        return found
    left, right = (np.ascontiguousarray(each).reshape(rows, -1).view(np.uint8) for each in (a, b))
    different: NDArray[np.bool_] = (left != right).any(1)
    return different


def _added(before: Difference | None, more: Difference) -> Difference:
    if before is None:
        return more
    return replace(before, count=(before.count or 0) + (more.count or 0))


def _same_files(a: Dataset, b: Dataset) -> bool:
    """Return whether all files have the same names, lengths and checksums, so that none has to be read."""
    one, other = ([(shard.name, shard.files) for shard in each.manifest.shards] for each in (a, b))
    return one == other and a.schema == b.schema


def _kind(dataset: Dataset, name: str) -> str | None:
    return json.dumps(dataset.schema[name].to_json(), sort_keys=True) if name in dataset.schema else None


def _layout(field: Field) -> tuple[Any, ...]:
    return field.role, field.dtype, tuple(field.shape)


def _short(value: Any) -> str:
    text = str(value.tolist() if isinstance(value, np.generic | np.ndarray) else value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
