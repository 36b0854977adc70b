"""Minari's datasets (HDF5, format 0.4 and 0.5) as they lie in its local cache.

An episode of T steps has T + 1 observations and infos, so nothing is missing and nothing has to be invented. Values,
dtypes and names are the file's own; ``infos`` becomes ``info``, as TorchRL has it.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import imagecodecs
import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import CorruptShardError, SchemaMismatchError, SourceError, SourceNotFoundError
from rlx.schema import Field, Role, Schema
from rlx.source import hdf5_file
from rlx.source.expected_layout import expecting
from rlx.source.extra_fields import NOT_NUMBERS_OR_TEXT, not_taken_note
from rlx.source.finite import check_field
from rlx.source.minari_space import Space, describe, is_image, leaf_space
from rlx.source.protocol import block_steps
from rlx.source.provenance import KEY, told_notes

METADATA = "metadata.json"
MAIN_DATA = "main_data.hdf5"
STEPS_PER_SHARD = 100_000
_MAX_METADATA_BYTES = 64 * 2**20
_MAX_ENV_SPEC = 10_000  # characters
_MAX_DEPTH = 5
ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)*")
LAYOUT = (
    "expected Minari's layout: data/metadata.json with total_episodes, total_steps and minari_version, and in "
    "data/main_data.hdf5 for every episode i a group episode_<i> with the attribute total_steps, "
    "observations [T + 1, ...], actions [T, ...], rewards [T], terminations [T], truncations [T]"
)
# Minari itself reads the versions that it knows, one by one; these two wrote the same.
_VERSIONS = re.compile(r"0\.[45](\.\w+)*")
# Minari's name, ours, and the rows of an episode of T steps: T, or T + 1.
_GROUPS = (
    ("observations", "observation", Role.OBSERVATION),
    ("actions", "action", Role.STEP),
    ("rewards", "reward", Role.NEXT),
    ("terminations", "terminated", Role.NEXT),
    ("truncations", "truncated", Role.NEXT),
    ("infos", "info", Role.OBSERVATION),
)


@dataclass(frozen=True, slots=True)
class Minari:
    """One Minari dataset.

    Args:
        root: its ``data`` directory.
        id: Minari's name of it.
        schema: what one step holds.
        notes: which pictures went through JPEG, which leaves are text and were left out.
        leaves: path in an episode's group of every field.
        first_episodes: first episode of every shard, and the number of episodes.
    """

    root: Path
    id: str
    schema: Schema
    notes: Mapping[str, Any]
    leaves: Mapping[str, str]
    first_episodes: tuple[int, ...]

    def shards(self) -> Sequence[int]:
        """Groups of whole episodes, about 100,000 steps each."""
        return range(len(self.first_episodes) - 1)

    def files(self, shard: int) -> Sequence[str]:  # noqa: ARG002  (all shards lie in one file)
        """The two files of the dataset."""
        return [MAIN_DATA, METADATA]

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:
        """The steps of a shard, an episode at a time, long ones in pieces.

        Raises:
            SourceNotFoundError: a file is missing.
            CorruptShardError: an episode lacks a field, or has one of another type or length than it should.
        """
        max_steps = block_steps(self.schema)
        with expecting(LAYOUT), hdf5_file.opened(self.root / MAIN_DATA) as file:
            if not (self.root / METADATA).is_file():
                raise SourceNotFoundError(f"{self.root / METADATA} is missing")
            for number in range(*self.first_episodes[shard : shard + 2]):
                episode = _Episode(file, number, self.schema, self.leaves)
                if episode.steps == 0:
                    dropped["episode_without_step"] += 1
                for start in range(0, episode.steps, max_steps):
                    yield episode.block(start, min(start + max_steps, episode.steps))


@expecting(LAYOUT)
def open_minari(directory: Path) -> Minari:
    """The dataset in a directory, which is Minari's (``.../door/human-v2``) or the ``data`` below.

    Raises:
        SourceNotFoundError: there is none.
        CorruptShardError: its metadata or its first episode are not what they should be.
        SourceError: it is not of the HDF5 format, or has no episode.
    """
    root = directory.absolute()
    root = root / "data" if not (root / METADATA).exists() and (root / "data" / METADATA).exists() else root
    metadata = _read_metadata(root / METADATA)
    if metadata.get("data_format", "hdf5") != "hdf5":
        raise SourceError(f"{root}: data format {metadata['data_format']!r}, expected 'hdf5'")
    version = metadata.get("minari_version")
    if not isinstance(version, str) or not _VERSIONS.fullmatch(version):
        raise SourceError(f"{root / METADATA}: minari_version: expected 0.4 or 0.5, found {version!r:.80}")
    observations, actions = (_space(metadata, name, root) for name in ("observation_space", "action_space"))
    spaces = {"observations": observations, "actions": actions}
    with hdf5_file.opened(root / MAIN_DATA) as file:
        count = hdf5_file.count(file)
        if count == 0:
            raise SourceError(f"{root / MAIN_DATA} has no episode")
        if (said := _total(metadata, "total_episodes", root)) != count:
            raise CorruptShardError(f"{root / MAIN_DATA}: expected {said:,} episodes, found {count:,}")
        fields, leaves, notes = _fields(hdf5_file.group(file, "episode_0"), spaces)
        bounds, steps = _shard_bounds(file, count)
        if (said := _total(metadata, "total_steps", root)) != steps:
            raise CorruptShardError(f"{root / MAIN_DATA}: expected {said:,} steps, found {steps:,}")
    try:
        schema = Schema(fields)
    except SchemaMismatchError as exc:
        raise CorruptShardError(f"{root / MAIN_DATA}: {exc}") from exc
    return Minari(
        root,
        _id(metadata, root),
        schema,
        {**told_notes(metadata.get(KEY)), **_origin(metadata), **notes},
        leaves,
        bounds,
    )


def find_runs(directory: Path) -> list[Minari]:
    """The datasets in a directory, by name: one itself, or some in the namespaces below."""
    found = [directory] if (directory / METADATA).is_file() and (directory / MAIN_DATA).is_file() else []
    return [open_minari(path) for path in found or sorted(_data_directories(directory, 0))]


def _data_directories(directory: Path, depth: int) -> Iterator[Path]:
    if not directory.is_dir():
        return
    if (directory / "data" / METADATA).is_file() and (directory / "data" / MAIN_DATA).is_file():
        yield directory / "data"
    elif depth < _MAX_DEPTH:
        for child in directory.iterdir():
            if child.is_dir() and not child.is_symlink():
                yield from _data_directories(child, depth + 1)


def _read_metadata(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        raise SourceNotFoundError(f"{path} is missing")
    if path.stat().st_size > _MAX_METADATA_BYTES:
        raise CorruptShardError(f"{path}: expected at most {_MAX_METADATA_BYTES:,} bytes")
    return _parsed(path.read_bytes(), str(path))


def _parsed(text: str | bytes, place: str) -> Mapping[str, Any]:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise CorruptShardError(f"{place}: expected JSON, found {exc}") from exc
    if not isinstance(parsed, dict):
        raise CorruptShardError(f"{place}: expected a JSON object, found {type(parsed).__name__}")
    return parsed


def _space(metadata: Mapping[str, Any], name: str, root: Path) -> Space | None:
    text = metadata.get(name)
    return _parsed(text, f"{root / METADATA}: {name}") if isinstance(text, str) else None


def _total(metadata: Mapping[str, Any], name: str, root: Path) -> int:
    found = metadata.get(name)
    if type(found) is not int:
        raise CorruptShardError(f"{root / METADATA}: {name}: expected a whole number, found {found!r:.80}")
    return found


def _id(metadata: Mapping[str, Any], root: Path) -> str:
    named = metadata.get("dataset_id")
    if isinstance(named, str) and ID.fullmatch(named):
        return named
    return root.parent.name if ID.fullmatch(root.parent.name) else "minari"


def _origin(metadata: Mapping[str, Any]) -> dict[str, str]:
    version, spec = metadata.get("minari_version"), metadata.get("env_spec")
    origin = {"format": f"Minari {version}"} if isinstance(version, str) else {}
    if isinstance(spec, str) and isinstance(environment := _parsed(spec, "env_spec").get("id"), str):
        origin["environment"] = environment
        if len(spec) <= _MAX_ENV_SPEC:
            origin["env_spec"] = spec
    return origin


def _shard_bounds(file: h5py.File, count: int) -> tuple[tuple[int, ...], int]:
    """First episode of every shard and the number of episodes; how many steps they have in all."""
    bounds, steps, before = [0], 0, 0
    for number in range(count):
        if steps - before >= STEPS_PER_SHARD:
            bounds.append(number)
            before = steps
        steps += hdf5_file.attribute(hdf5_file.group(file, f"episode_{number}"), "total_steps")
    return (*bounds, count), steps


def _fields(
    episode: h5py.Group, spaces: Mapping[str, Space | None]
) -> tuple[dict[str, Field], dict[str, str], dict[str, Any]]:
    """The fields of an episode, the path of each in it, and what is to be noted of them."""
    fields: dict[str, Field] = {}
    paths: dict[str, str] = {}
    left_out, lossy = [], []
    for group, ours, role in _GROUPS:
        for path in hdf5_file.leaves(episode, group) if group != "infos" or group in episode else []:
            below = path[len(group) + 1 :]
            space = leaf_space(spaces.get(group), below)
            field = _field(hdf5_file.dataset(episode, path), role, space)
            if field is None:
                left_out.append(path)
                continue
            name = f"{ours}/{below}" if below else ours
            fields[name], paths[name] = field, path
            if _is_jpeg(hdf5_file.dataset(episode, path), field.shape):
                lossy.append(name)
    for group, ours, _ in _GROUPS[:2]:
        if not any(name.split("/")[0] == ours for name in fields):
            raise CorruptShardError(f"{episode.file.filename}: {episode.name}/{group}: expected numbers")
    notes: dict[str, Any] = {}
    if lossy:
        notes["lossy_jpeg"] = lossy
    notes |= not_taken_note(dict.fromkeys(left_out, NOT_NUMBERS_OR_TEXT))
    return fields, paths, notes


def _field(dataset: h5py.Dataset, role: Role, space: Space | None) -> Field | None:
    """The field that a dataset is; none where its rows are no numbers."""
    described = describe(space)
    if is_image(space) and dataset.ndim <= 2:
        assert space is not None
        return Field("uint8", tuple(space["shape"]), role, described)
    if dataset.dtype.kind not in "biuf" or dataset.ndim == 0:
        return None
    return Field(dataset.dtype.name, dataset.shape[1:], role, described)


def _is_jpeg(dataset: h5py.Dataset, shape: tuple[int, ...]) -> bool:
    """Whether the rows are not the pictures of this shape, but JPEG files of them."""
    return len(shape) >= 2 and dataset.ndim <= 2


class _Episode:
    """One episode, whose fields are known to be there, of the right type and length."""

    def __init__(self, file: h5py.File, number: int, schema: Schema, leaves: Mapping[str, str]) -> None:
        group = hdf5_file.group(file, f"episode_{number}")
        self._number = number
        self._schema = schema
        self._datasets = {name: hdf5_file.dataset(group, path) for name, path in leaves.items()}
        self.steps = self._rows("reward")
        if (said := hdf5_file.attribute(group, "total_steps")) != self.steps:
            raise self._corrupt("reward", f"{said:,} rows as total_steps of the episode says", f"{self.steps:,}")
        for name, field in schema.fields.items():
            expected = self.steps + (field.role == Role.OBSERVATION)
            if self._rows(name) != expected:
                raise self._corrupt(name, f"{expected:,} rows", f"{self._rows(name):,}")
            self._check_type(name, field)

    def block(self, start: int, stop: int) -> Block:
        """The steps from ``start`` to ``stop``."""
        is_last = stop == self.steps
        ends = {Role.OBSERVATION: stop + is_last}
        data = {
            name: self._read(name, start, ends.get(field.role, stop)) for name, field in self._schema.fields.items()
        }
        for name in ("terminated", "truncated"):
            early = np.flatnonzero(data[name][: len(data[name]) - is_last])
            if len(early):
                raise self._corrupt(name, "it at the last step only", f"it at step {start + int(early[0]):,}")
        return Block(
            data,
            lengths=np.array([stop - start]),
            episodes=np.array([self._number]),
            from_reset=np.array([True]),
            final_recorded=np.array([True]),
            is_open=not is_last,
        )

    def _rows(self, name: str) -> int:
        dataset = self._datasets[name]
        return int(dataset.shape[0]) if dataset.ndim else 0

    def _check_type(self, name: str, field: Field) -> None:
        dataset = self._datasets[name]
        if _is_jpeg(dataset, field.shape):
            is_bytes = h5py.check_vlen_dtype(dataset.dtype) == np.uint8 or dataset.dtype == np.uint8
            if not is_bytes:
                raise self._corrupt(name, "JPEG pictures", str(dataset.dtype))
        elif dataset.dtype.name != field.dtype or dataset.shape[1:] != field.shape:
            found = f"{dataset.dtype.name}{list(dataset.shape[1:])}"
            raise self._corrupt(name, f"{field.dtype}{list(field.shape)}", found)

    def _read(self, name: str, start: int, stop: int) -> NDArray[Any]:
        dataset, shape = self._datasets[name], self._schema[name].shape
        rows = hdf5_file.read(dataset, start, stop)
        check_field(name, self._schema[name], rows, hdf5_file.place(dataset), start)
        if not _is_jpeg(dataset, shape):
            return rows
        pictures = np.empty((len(rows), *shape), np.uint8)
        for number, jpeg in enumerate(rows):
            pictures[number] = self._decode(name, jpeg, start + number, shape)
        return pictures

    def _decode(self, name: str, jpeg: NDArray[Any], row: int, shape: tuple[int, ...]) -> NDArray[Any]:
        try:
            picture: NDArray[Any] = imagecodecs.jpeg8_decode(jpeg.tobytes())
        except imagecodecs.Jpeg8Error as exc:
            raise self._corrupt(name, f"a JPEG picture at row {row:,}", str(exc)) from exc
        if picture.shape != shape:
            raise self._corrupt(name, f"a picture of {list(shape)} at row {row:,}", str(list(picture.shape)))
        return picture

    def _corrupt(self, name: str, expected: str, found: str) -> CorruptShardError:
        dataset = self._datasets[name]
        return CorruptShardError(f"{dataset.file.filename}: {dataset.name}: expected {expected}, found {found}")
