"""The episodes of a Minari dataset: their fields, as in the first episode, and blocks of one episode."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import CorruptShardError
from rlx.formats.common.fields import NOT_A_ROW_PER_STEP, NOT_OF_STEPS, ExtraFields, RowType
from rlx.formats.common.hdf5 import file as hdf5_file
from rlx.formats.common.hdf5.episodes import Hdf5Columns
from rlx.formats.common.hdf5.file import is_text, unreadable
from rlx.formats.common.pictures import decode_picture
from rlx.formats.common.provenance import noted_fields, read_notes
from rlx.formats.common.rows.episodes import episode_blocks
from rlx.formats.common.source import MalformedError
from rlx.formats.minari.layout import ATTRIBUTES, CUT, GROUPS, INFOS, STEPS, Space, describe, is_image, leaf_space
from rlx.schema import FLAGS, TEXT, Field, Role, Schema

ROLES = {"observation": Role.OBSERVATION, "action": Role.STEP}


@dataclass(frozen=True, slots=True)
class EpisodeDataset:
    """A dataset of an episode of T steps.

    Args:
        path: in the episode's group.
        first: row of the first step.
        extra: rows beyond T.
    """

    path: str
    first: int = 0
    extra: int = 0


@dataclass(frozen=True, slots=True)
class MinariFields:
    """The fields of episodes.

    Args:
        leaves: dataset of each field, by name.
        lossy: names of the fields whose pictures are JPEG.
    """

    fields: Mapping[str, Field]
    leaves: Mapping[str, EpisodeDataset]
    lossy: list[str]
    not_taken: Mapping[str, str]


def fields_of(
    file: h5py.File, first: int, numbers: Collection[int], spaces: Mapping[str, Space | None], noted: Any
) -> MinariFields:
    """Return the fields of the episodes of a file, as in the first.

    Args:
        numbers: of all episodes.
        spaces: of ``observations`` and ``actions``.
        noted: the notes of rlx, if any: which infos are fields of its own, with one row more than steps.
    """
    episode = hdf5_file.group(file, f"episode_{first}")
    steps = hdf5_file.integer(episode, STEPS)
    leaves: dict[str, EpisodeDataset] = {}
    extras = ExtraFields()
    lossy: list[str] = []
    for group, ours in GROUPS.items():
        role = ROLES.get(ours, Role.NEXT)
        for path in hdf5_file.leaves(episode, group):
            below = path[len(group) + 1 :]
            found, space = hdf5_file.dataset(episode, path), leaf_space(spaces.get(group), below)
            name = f"{ours}/{below}" if below else ours
            if extras.add(path, name, _kind(found, space), role, describe(space)):
                leaves[name] = EpisodeDataset(path, extra=int(role == Role.OBSERVATION))
                if is_jpeg(found, extras.fields[name]):
                    lossy.append(name)
    for group, ours in GROUPS.items():
        if ours in ROLES and not any(name.split("/")[0] == ours for name in leaves):
            raise CorruptShardError(f"{file.filename}: {episode.name}/{group}: expected numbers or text")
    own = _own_fields(noted)
    for path in _others(episode):
        found = hdf5_file.dataset(episode, path)
        name, role, leaf = _placed(path, len(found) - steps if found.ndim else None, own)
        if leaf is None:
            extras.leave(path, NOT_A_ROW_PER_STEP)
        elif is_text(found) and (reason := _unreadable(file, numbers, path)) is not None:
            extras.leave(path, reason)
        elif extras.add(path, name, _kind(found, None), role):
            leaves[name] = leaf
    not_taken = {**extras.not_taken, **_unknown(file, numbers, episode)}
    return MinariFields(extras.fields, leaves, lossy, not_taken)


def _unreadable(file: h5py.File, numbers: Collection[int], path: str) -> str | None:
    """Return why the text at a path cannot be read in one of the episodes; None if it can be in all."""
    episodes = (hdf5_file.group(file, f"episode_{number}") for number in numbers)
    return next(
        filter(None, (unreadable(hdf5_file.dataset(one, path)) for one in episodes if hdf5_file.has(one, path))), None
    )


def is_jpeg(found: h5py.Dataset, field: Field) -> bool:
    """Return whether the rows are JPEG files of the pictures of a field."""
    return len(field.shape) >= 2 and not field.is_text and found.ndim <= 2


def _is_bytes(found: h5py.Dataset) -> bool:
    return bool(h5py.check_vlen_dtype(found.dtype) == np.uint8 or found.dtype == np.uint8)


def _kind(found: h5py.Dataset, space: Space | None) -> RowType | None:
    if is_image(space) and found.ndim <= 2:
        assert space is not None
        return "uint8", tuple(space["shape"])
    if is_text(found):
        return (TEXT, found.shape[1:]) if space is None or space.get("type") == "Text" else None
    return (found.dtype.name, found.shape[1:]) if hdf5_file.is_numbers(found) else None


def _others(episode: h5py.Group) -> Iterator[str]:
    for name in hdf5_file.names(episode):
        if name not in GROUPS:
            yield from hdf5_file.leaves(episode, name)


def _placed(
    path: str, extra: int | None, own: Mapping[str, tuple[str, Role]]
) -> tuple[str, Role, EpisodeDataset | None]:
    """Return name, role and rows of a further dataset; no rows (None) unless it has one per step.

    Minari's infos include those of the reset: one row more than steps, as observations have.
    """
    if path in own and extra == 1:
        name, role = own[path]
        return name, role, EpisodeDataset(path, first=int(role == Role.NEXT), extra=1)
    is_info = path.startswith(f"{INFOS}/")
    name = path.replace(INFOS, "info", 1) if is_info else path
    if is_info and extra == 1:
        return name, Role.OBSERVATION, EpisodeDataset(path, extra=1)
    role = Role.NEXT if is_info else Role.STEP
    return name, role, EpisodeDataset(path) if extra == 0 else None


def _own_fields(noted: Any) -> dict[str, tuple[str, Role]]:
    """Return name and role of the fields that rlx wrote as infos, by path."""
    try:
        named = {str(path): str(name) for path, name in noted["infos"].items()}
    except (TypeError, KeyError, AttributeError):
        return {}
    fields = noted_fields(read_notes(noted))
    return {path: (name, fields[name].role) for path, name in named.items() if name in fields}


def _unknown(file: h5py.File, numbers: Collection[int], first: h5py.Group) -> dict[str, str]:
    """Return the reason for every unknown attribute of an episode, and every member that the first episode lacks."""
    known = _members(first)
    found: dict[str, str] = {}
    for number in numbers:
        episode = hdf5_file.group(file, f"episode_{number}")
        for name in hdf5_file.attributes(episode):
            if name not in ATTRIBUTES:
                found[f"episode_*: attribute {name}"] = NOT_OF_STEPS
        for group, names in known.items():
            if group and not hdf5_file.has(episode, group):
                continue
            there = hdf5_file.names(hdf5_file.group(episode, group) if group else episode)
            for name in set(there) - names:
                found[f"{group}/{name}" if group else name] = "not in every episode"
    return found


def _members(episode: h5py.Group) -> dict[str, set[str]]:
    members: dict[str, set[str]] = {"": set(hdf5_file.names(episode))}
    for name in members[""]:
        for path in hdf5_file.leaves(episode, name):
            parts = path.split("/")
            for depth in range(1, len(parts)):
                members.setdefault("/".join(parts[:depth]), set()).add(parts[depth])
    return members


class StoredEpisode(ABC):
    """An episode of T steps in blocks, in any storage; a context manager, which closes it."""

    steps: int
    _number: int
    _schema: Schema
    _is_cut = False

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None:
        """Close the file."""

    @abstractmethod
    def _read(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Return rows of a field."""

    @abstractmethod
    def _corrupt(self, name: str, expected: str, found: str) -> CorruptShardError:
        """Return the error of a damaged field."""

    def blocks(self) -> Iterator[Block]:
        """Yield all steps."""
        return episode_blocks(self._schema, self._checked, steps=self.steps, number=self._number, cut=self._is_cut)

    def _checked(self, name: str, start: int, stop: int) -> NDArray[Any]:
        rows = self._read(name, start, stop)
        if name in FLAGS and len(early := np.flatnonzero(rows[: len(rows) - (stop == self.steps)])):
            raise self._corrupt(name, "it at the last step only", f"it at step {start + int(early[0]):,}")
        return rows


class Episode(StoredEpisode):
    """An episode in HDF5; raises CorruptShardError if a field is missing, or of the wrong type or length."""

    def __init__(self, file: h5py.File, number: int, schema: Schema, leaves: Mapping[str, EpisodeDataset]) -> None:
        group = hdf5_file.group(file, f"episode_{number}")
        self._number = number
        self._schema = schema
        self._leaves = leaves
        self._is_cut = hdf5_file.attribute(group, CUT) is not None
        self._datasets = {name: hdf5_file.dataset(group, leaf.path) for name, leaf in leaves.items()}
        self.steps = self._rows("reward")
        if (said := hdf5_file.integer(group, STEPS)) != self.steps:
            raise self._corrupt("reward", f"{said:,} rows as total_steps of the episode says", f"{self.steps:,}")
        for name, field in schema.fields.items():
            expected = self.steps + leaves[name].extra
            if self._rows(name) != expected:
                raise self._corrupt(name, f"{expected:,} rows", f"{self._rows(name):,}")
            if is_jpeg(self._datasets[name], field) and not _is_bytes(self._datasets[name]):
                raise self._corrupt(name, "JPEG pictures", str(self._datasets[name].dtype))
        plain = {name: found for name, found in self._datasets.items() if not is_jpeg(found, schema[name])}
        self._columns = Hdf5Columns(plain, {}, schema)

    def __exit__(self, *_: object) -> None:
        self._columns.__exit__()

    def _rows(self, name: str) -> int:
        dataset = self._datasets[name]
        return int(dataset.shape[0]) if dataset.ndim else 0

    def _read(self, name: str, start: int, stop: int) -> NDArray[Any]:
        dataset, field = self._datasets[name], self._schema[name]
        first = self._leaves[name].first
        start, stop = start + first, stop + first
        if not is_jpeg(dataset, field):
            return self._columns.rows(name, start, stop)
        rows = hdf5_file.read(dataset, start, stop)
        pictures = np.empty((len(rows), *field.shape), np.uint8)
        shape = field.shape if len(field.shape) == 3 else (*field.shape, 1)
        for number, jpeg in enumerate(rows):
            try:
                pictures[number] = decode_picture(jpeg.tobytes(), shape).reshape(field.shape)
            except MalformedError as exc:
                raise self._corrupt(name, f"a JPEG picture at row {start + number:,}", str(exc)) from exc
        return pictures

    def _corrupt(self, name: str, expected: str, found: str) -> CorruptShardError:
        dataset = self._datasets[name]
        return CorruptShardError(f"{dataset.file.filename}: {dataset.name}: expected {expected}, found {found}")
