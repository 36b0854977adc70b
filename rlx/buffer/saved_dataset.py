"""The steps of a buffer as a dataset on disk: ``ReplayBuffer.save_dataset``."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.buffer.index.continuity import Path as LeafPath
from rlx.buffer.index.continuity import observed
from rlx.buffer.protocol import Rows, Storage, TrajectoryIndex
from rlx.buffer.storage.step_schema import parted
from rlx.distribution import version
from rlx.errors import DatasetExistsError, SchemaMismatchError
from rlx.files.disk import is_there
from rlx.manifest import FILE_NAME, Manifest, ShardRecord
from rlx.schema import FLAGS, Field, Role, Schema, check_name
from rlx.store.codec import Codec
from rlx.store.dataset_writer import DatasetWriter, claimed, write_all
from rlx.store.ted import to_rows
from rlx.store.writer import train_dictionaries, write_shard
from rlx.wording import did_you_mean

Columns = Mapping[LeafPath, NDArray[Any]]
STEPS_PER_SHARD = 100_000
_BLOCK_BYTES = 32 * 2**20
_BLOCK_STEPS = 4096
_REWARD: LeafPath = ("next", "reward")
_DONE, _TERMINATED, _TRUNCATED = (("next", flag) for flag in ("done", "terminated", "truncated"))
_FLAGS = (_DONE, _TERMINATED, _TRUNCATED)
# Keys whose values follow from the trajectories that a dataset keeps.
_DERIVED = frozenset(
    {*_FLAGS, ("index",), ("_origin",), ("collector", "traj_ids"), ("next", "is_init")}
    | {(flag,) for flag in ("done", "terminated", "truncated")}
)


@dataclass(frozen=True, slots=True)
class Saving:
    """How the steps of a buffer are written.

    Args:
        exclude: keys that are left out, with all keys below them.
        store: ``zarr`` or ``memmap``.
        overwrite: whether to replace an existing dataset, once the new one is complete.
    """

    id: str
    exclude: Collection[LeafPath]
    store: str
    codec: Codec
    overwrite: bool


def save_dataset(storage: Storage, index: TrajectoryIndex, path: Path, saving: Saving) -> None:
    """Write the steps of a storage as a dataset, trajectory by trajectory in the order of their first steps."""
    if not len(storage):
        raise SchemaMismatchError("the buffer has no steps: expected at least one to save")
    first = storage.row_at(np.zeros(1, np.int64))
    _check_excluded(storage, first, saving.exclude)
    columns = _columns(storage, first, saving.exclude)
    fields = _fields(columns, _observations(storage, index, columns))
    notes = {"renamed": fields.renamed} if fields.renamed else {}
    shards = _shards(index)
    made = {"command": "ReplayBuffer.save_dataset", "rlx": version(), "parents": []}
    described = Manifest(saving.id, saving.store, saving.codec.to_json(), fields.schema, notes=notes, lineage=[made])
    saved = _SavedSteps(storage, index, fields, saving.exclude)

    def write(writer: DatasetWriter, names: Sequence[str]) -> Sequence[ShardRecord]:
        form = writer.format()
        form = replace(form, dictionaries=train_dictionaries(saved.blocks(shards[0], _Numbers()), form))
        numbers = _Numbers()
        return [
            write_shard(writer.partial(name), name, form, saved.blocks(trajectories, numbers))
            for name, trajectories in zip(names, shards, strict=True)
        ]

    with claimed(path, overwrite=saving.overwrite) as claim:
        if is_there(path / FILE_NAME) and not saving.overwrite:
            raise DatasetExistsError(f"{path} holds a dataset", hint="overwrite=True replaces it")
        write_all(claim.place, described, len(shards), write)
        claim.finish()


@dataclass(frozen=True, slots=True)
class _Fields:
    """Which leaf each field is of.

    Args:
        paths: the leaf of every field but the flags.
        has_next: whether observations after the steps are stored.
        renamed: new names of leaves under ``next`` that differ from those of the same name at the root.
    """

    schema: Schema
    paths: Mapping[str, LeafPath]
    has_next: bool
    renamed: Mapping[str, str]


def _check_excluded(storage: Storage, rows: Rows, exclude: Collection[LeafPath]) -> None:
    tensors, texts = parted(storage.get(rows))
    there = [*tensors, *texts]
    for key in exclude:
        if not any(path[: len(key)] == key for path in there):
            names = ["/".join(path) for path in there]
            raise SchemaMismatchError(
                f"exclude: no key {'/'.join(key)!r}: expected one of {', '.join(sorted(names))}",
                hint=did_you_mean("/".join(key), names),
            )


def _columns(storage: Storage, rows: Rows, exclude: Collection[LeafPath]) -> Columns:
    """Return the leaves of stored steps [n] as numpy arrays, texts as objects."""
    steps = storage.get(rows)
    tensors, texts = parted(steps)
    columns: dict[LeafPath, NDArray[Any]] = {}
    for path, leaf in {**tensors, **texts}.items():
        if any(path[: len(key)] == key for key in exclude):
            continue
        try:
            columns[path] = to_rows(leaf)
        except SchemaMismatchError as exc:
            raise _refused(path, str(exc)) from exc
    return columns


def _refused(path: LeafPath, reason: str) -> SchemaMismatchError:
    key = path[0] if len(path) == 1 else path
    return SchemaMismatchError(
        f"{'/'.join(path)} cannot be saved: {reason}", hint=f"leave it out: save_dataset(path, exclude=[{key!r}])"
    )


def _observations(storage: Storage, index: TrajectoryIndex, columns: Columns) -> set[LeafPath]:
    """Return the leaves to be stored once for two steps: observations, and others that are the next step's too."""
    known = {*observed(columns, storage.observation_keys), *(path for path in columns if path[0] == "observation")}
    others = {
        path
        for path, rows in columns.items()
        if path not in known | _DERIVED
        and (after := columns.get(("next", *path))) is not None
        and (rows.dtype, rows.shape) == (after.dtype, after.shape)
    }
    for start in range(0, len(storage), _BLOCK_STEPS):
        if not others:
            break
        rows = storage.row_at(np.arange(start, min(start + _BLOCK_STEPS, len(storage))))
        following = index.follow(rows, 2)[:, 1]
        is_followed = following >= 0
        after = storage.get(rows[is_followed], [("next", *path) for path in others])
        now = storage.get(following[is_followed], list(others))
        others = {path for path in others if not _differ(to_rows(now[path]), to_rows(after["next", *path])).any()}
    return known | others


def _differ(now: NDArray[Any], after: NDArray[Any]) -> NDArray[np.bool_]:
    """Return [n] whether rows differ, NaN equal to NaN."""
    differ: Any = now != after
    if now.dtype.kind == "f":
        differ &= ~(np.isnan(now) & np.isnan(after))
    found: NDArray[np.bool_] = differ.any(axis=tuple(range(1, differ.ndim)))
    return found


def _fields(columns: Columns, observations: Collection[LeafPath]) -> _Fields:
    if _REWARD not in columns:
        raise SchemaMismatchError(f"next/reward is missing, found {', '.join(sorted(map('/'.join, columns)))}")
    if _DONE not in columns and _TERMINATED not in columns:
        raise SchemaMismatchError("next/done is missing: expected it, or next/terminated")
    for path in columns.keys() & {_REWARD, *_FLAGS}:
        if columns[path][0].size != 1 or columns[path].dtype == object:
            found = f"{columns[path].dtype}{list(columns[path].shape[1:])}"
            raise SchemaMismatchError(f"{'/'.join(path)} is {found}: expected one number per step")
    lacking = sorted(path for path in observations if ("next", *path) not in columns)
    if lacking and len(lacking) < len(observations):
        raise SchemaMismatchError(f"next/{'/'.join(lacking[0])} is missing: expected it, as of other observations")
    for path in () if lacking else sorted(observations):
        kinds = [f"{rows.dtype}{list(rows.shape[1:])}" for rows in (columns[path], columns["next", *path])]
        if kinds[0] != kinds[1]:
            reason = f"it is {kinds[0]}, and {kinds[1]} under next: expected one kind, as an observation is stored once"
            raise _refused(path, reason)
    fields: dict[str, Field] = {}
    paths: dict[str, LeafPath] = {}
    renamed: dict[str, str] = {}
    for path in sorted(columns, key=lambda path: path not in observations):
        is_next = path[0] == "next"
        if path in _DERIVED or (is_next and path[1:] in observations):
            continue
        name = "/".join(path[1:] if is_next else path)
        if path == ("reward",):
            raise _refused(path, f"next/{name} is another value of the same name")
        if is_next and path[1:] in columns and path[1:] not in _DERIVED:
            old, name = name, "/".join((*path[1:-1], f"next_{path[-1]}"))
            renamed[f"next/{old}"] = f"next/{name}"
        if name in fields:  # of a name with a slash
            raise _refused(path, f"another key would be saved as {name} too")
        role = Role.OBSERVATION if path in observations else Role.NEXT if is_next else Role.STEP
        try:
            fields[name] = Field.of(columns[path].reshape(-1) if path == _REWARD else columns[path], role)
            check_name(name, fields[name])
        except SchemaMismatchError as exc:
            raise _refused(path, str(exc)) from exc
        paths[name] = path
    return _Fields(Schema({**fields, **FLAGS}), paths, not lacking, renamed)


def _shards(index: TrajectoryIndex) -> list[list[Rows]]:
    first, length = index.trajectories()
    shards: list[list[Rows]] = [[]]
    steps = 0
    for row, count in zip(first, length.tolist(), strict=True):
        if steps >= STEPS_PER_SHARD:
            shards.append([])
            steps = 0
        shards[-1].append(index.follow(np.array([row]), count)[0])
        steps += count
    return shards


class _Numbers:
    """State that the next block needs of the previous one.

    Attributes:
        after_end: whether the step before ended an episode.
    """

    def __init__(self) -> None:
        self.episode = 0
        self.is_open = False
        self.after_end = False


@dataclass(frozen=True, slots=True)
class _SavedSteps:
    """Reader of trajectories as blocks."""

    storage: Storage
    index: TrajectoryIndex
    fields: _Fields
    exclude: Collection[LeafPath]

    def blocks(self, trajectories: Sequence[Rows], numbers: _Numbers) -> Iterator[Block]:
        rows = np.concatenate(trajectories)
        stops = np.cumsum([len(one) for one in trajectories])
        starts = np.append(0, stops[:-1])
        bounds = {name: np.zeros(len(rows), bool) for name in ("starts", "resets", "ends")}
        bounds["starts"][starts] = bounds["ends"][stops - 1] = True
        bounds["resets"][starts] = self.index.at_reset(rows[starts])
        size = max(1, min(_BLOCK_STEPS, _BLOCK_BYTES // self.fields.schema.row_bytes))
        for start in range(0, len(rows), size):
            stop = min(start + size, len(rows))
            # One more row shows whether the trajectory continues after the block.
            columns = _columns(self.storage, rows[start : stop + 1], self.exclude)
            here = {name: flags[start:stop] for name, flags in bounds.items()}
            yield _block(columns, self.fields, here, numbers)


def _block(columns: Columns, fields: _Fields, bounds: Mapping[str, NDArray[np.bool_]], numbers: _Numbers) -> Block:
    """Return the steps of all rows but the one that follows the block, if it is there.

    Args:
        bounds: [n] whether each step ``starts`` or ``ends`` a trajectory of the index, and whether it ``resets``.
    """
    steps = len(bounds["ends"])
    terminated, truncated = _flags({path: rows[:steps] for path, rows in columns.items() if path in _FLAGS})
    done = terminated | truncated
    closed = bounds["ends"] | done | _torn(columns, fields, steps)
    cut = closed & ~done
    data = {name: columns[path][:steps] for name, path in fields.paths.items()}
    for name in fields.schema.names(Role.OBSERVATION):
        final = columns["next", *fields.paths[name]][:steps] if fields.has_next else fields.schema[name].zeros(steps)
        data[name] = np.insert(data[name], np.flatnonzero(closed) + 1, final[closed], axis=0)
    data |= {"reward": data["reward"].reshape(-1), "terminated": terminated, "truncated": truncated | cut}

    last = np.flatnonzero(closed)
    stops = last + 1 if closed[-1] else np.append(last + 1, steps)
    starts = np.append(0, stops[:-1])
    resets = bounds["resets"] | (~bounds["starts"] & np.append(numbers.after_end, done[:-1]))
    count, begun = len(starts), numbers.episode - numbers.is_open
    block = Block(
        data,
        stops - starts,
        begun + np.arange(count),
        resets[starts],
        np.full(count, fields.has_next),
        is_open=not closed[-1],
        cut=np.append(cut[last], False)[:count],
    )
    numbers.episode, numbers.is_open, numbers.after_end = begun + count, not closed[-1], bool(done[-1])
    return block


def _flags(columns: Columns) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return [n] whether each step is terminated, and whether it is truncated: an end that is neither is truncated, or
    terminated where only ``done`` is stored."""
    flags = {path: rows.reshape(-1).astype(bool) for path, rows in columns.items()}
    none = np.zeros(len(next(iter(flags.values()))), bool)
    done, truncated = flags.get(_DONE, none), flags.get(_TRUNCATED, none)
    terminated = flags.get(_TERMINATED, done & ~truncated)
    return terminated, truncated | (done & ~terminated)


def _torn(columns: Columns, fields: _Fields, steps: int) -> NDArray[np.bool_]:
    """Return [steps] whether the row after each has another observation than its next one."""
    torn = np.zeros(steps, bool)
    for name in fields.schema.names(Role.OBSERVATION) if fields.has_next else ():
        now, after = columns[fields.paths[name]][1:], columns["next", *fields.paths[name]]
        torn[: len(now)] |= _differ(now, after[: len(now)])
    return torn
