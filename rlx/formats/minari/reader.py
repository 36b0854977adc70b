"""Minari's datasets (HDF5, Arrow and Parquet, format 0.4 and 0.5) as in its local cache.

An episode of T steps has T + 1 observations and infos, so final observations are recorded. Values, dtypes and names are
the file's own; ``infos`` becomes ``info``, as in TorchRL. Metadata of the whole dataset, such as its author, are noted
under ``minari``, and the exporter writes them again.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlx.block import Block
from rlx.errors import CorruptShardError, SourceError, SourceNotFoundError
from rlx.files.disk import parse_object, read_object
from rlx.formats.common.fields import NOT_OF_STEPS, can_be_noted, expecting, not_taken_note
from rlx.formats.common.hdf5 import file as hdf5_file
from rlx.formats.common.provenance import KEY, read_notes
from rlx.formats.common.rows.episodes import EPISODES_WITHOUT_STEP, WITHOUT_STEP, shard_bounds
from rlx.formats.common.skipping import add_hint, is_skipping, skippable, skipping, typical, whole
from rlx.formats.common.source import EpisodeGroups
from rlx.formats.minari import arrow
from rlx.formats.minari.episode import Episode, EpisodeDataset, MinariFields, StoredEpisode, fields_of
from rlx.formats.minari.layout import ID, LAYOUT, MAIN_DATA, MAX_DEPTH, METADATA, NAMED, STEPS, Space, check
from rlx.manifest import FILE_NAME
from rlx.schema import Schema

_MAX_METADATA_BYTES = 64 * 2**20
# Keys of the metadata that are read, or derived from the data.
_METADATA = """
total_episodes total_steps data_format jpeg_encoding observation_space action_space env_spec dataset_id minari_version
dataset_size
"""
_KNOWN = frozenset({*_METADATA.split(), KEY})
_EPISODE = re.compile(r"episode_\d{1,12}")
_STORAGES = ("hdf5", "arrow", "parquet")
_MAX_MISSING = 10_000
# The versions of one layout: Minari reads only those that it lists.
_VERSIONS = re.compile(r"0\.[45](\.\w+)*")


@dataclass(frozen=True, slots=True)
class Minari(EpisodeGroups):
    """One Minari dataset.

    Args:
        root: its ``data`` directory.
        numbers: of the episodes.
        first_episodes: index in these of the first episode of every shard, and the number of episodes.
    """

    root: Path
    id: str
    schema: Schema
    notes: Mapping[str, Any]
    leaves: Mapping[str, EpisodeDataset]
    numbers: tuple[int, ...]
    first_episodes: tuple[int, ...]
    storage: str = "hdf5"

    def files(self, shard: int) -> Sequence[str]:
        """Return the two files of an HDF5 dataset; else the metadata and one file per episode."""
        if self.storage == "hdf5":
            return [MAIN_DATA, METADATA]
        return [METADATA, *(arrow.part_name(number, self.storage) for number in self._numbers(shard))]

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:
        """Yield the steps of a shard, an episode at a time, long ones in pieces."""
        with expecting(LAYOUT), self._opened() as open_episode:
            if not (self.root / METADATA).is_file():
                raise SourceNotFoundError(f"{self.root / METADATA} is missing")
            for number in self._numbers(shard):
                yield from whole(NAMED.format(number), _blocks(open_episode, number, dropped), dropped)

    def is_intact(self) -> bool:
        """Return whether no episode would be left out for its lengths; True if none is left out at all."""
        with skipping(is_skipping()) as left, self._opened() as open_episode:
            for number in self.numbers if is_skipping() else ():
                with skippable(NAMED.format(number)), open_episode(number):
                    pass
        return not left

    def _numbers(self, shard: int) -> Sequence[int]:
        first, stop = self.first_episodes[shard : shard + 2]
        return self.numbers[first:stop]

    @contextmanager
    def _opened(self) -> Iterator[Callable[[int], StoredEpisode]]:
        if self.storage == "hdf5":
            with hdf5_file.opened(self.root / MAIN_DATA) as file:
                yield lambda number: Episode(file, number, self.schema, self.leaves)
        else:
            yield lambda number: arrow.ArrowEpisode(self.root, self.storage, number, self.schema, self.leaves)


def _blocks(open_episode: Callable[[int], StoredEpisode], number: int, dropped: Counter[str]) -> Iterator[Block]:
    with open_episode(number) as episode:
        if not episode.steps:
            dropped[WITHOUT_STEP] += 1
        yield from episode.blocks()


@expecting(LAYOUT)
def open_minari(directory: Path) -> Minari:
    """Return the dataset in a directory: ``.../door/human-v2`` or ``data`` below."""
    root = directory.absolute()
    root = root / "data" if not (root / METADATA).exists() and (root / "data" / METADATA).exists() else root
    metadata = read_object(root / METADATA, _MAX_METADATA_BYTES)
    if (storage := metadata.get("data_format", "hdf5")) not in _STORAGES:
        raise SourceError(f"{root}: data format {storage!r:.40}, expected {', '.join(_STORAGES)}")
    version = metadata.get("minari_version")
    if not isinstance(version, str) or not _VERSIONS.fullmatch(version):
        raise SourceError(f"{root / METADATA}: minari_version: expected 0.4 or 0.5, found {version!r:.80}")
    observations, actions = (_space(metadata, name, root) for name in ("observation_space", "action_space"))
    spaces = {"observations": observations, "actions": actions}
    count = _total(metadata, "total_episodes", root)
    if storage == "hdf5":
        found, steps, others = _scanned(root, metadata, spaces)
    else:
        found, steps, others = arrow.scanned(root, str(storage), count, spaces)
    lengths = list(steps.values())
    schema = Schema(found.fields)
    notes = {**read_notes(metadata.get(KEY)), **_origin(metadata)}
    described, not_taken = _description(metadata)
    notes |= {"minari": described} if described else {}
    notes |= {"lossy_jpeg": found.lossy} if found.lossy else {}
    notes |= {EPISODES_WITHOUT_STEP: lengths.count(0)} if 0 in lengths else {}
    notes |= not_taken_note({**found.not_taken, **dict.fromkeys([*others, *not_taken], NOT_OF_STEPS)})
    bounds = shard_bounds(lengths)
    run = Minari(root, _id(metadata, root), schema, notes, found.leaves, tuple(steps), bounds, str(storage))
    if (said := _total(metadata, "total_steps", root)) != sum(lengths) and len(steps) == count and run.is_intact():
        where = root / MAIN_DATA if storage == "hdf5" else root
        error = CorruptShardError(f"{where}: expected {said:,} steps, found {sum(lengths):,}")
        add_hint(error)
        raise error
    return run


def _scanned(
    root: Path, metadata: Mapping[str, Any], spaces: Mapping[str, Space | None]
) -> tuple[MinariFields, dict[int, int], list[str]]:
    """Return the fields of an HDF5 file, the steps of every episode by its number, and names of other data in it."""
    with hdf5_file.opened(root / MAIN_DATA) as file:
        names = hdf5_file.names(file)
        there = {int(name.removeprefix("episode_")) for name in names if _EPISODE.fullmatch(name)}
        others = [name for name in names if not _EPISODE.fullmatch(name)]
        if not there:
            raise SourceError(f"{root / MAIN_DATA} has no episode")
        said, numbers = _total(metadata, "total_episodes", root), {*range(len(there))}
        if said != len(there):
            if not is_skipping() or said < len(there):
                error = CorruptShardError(f"{root / MAIN_DATA}: expected {said:,} episodes, found {len(there):,}")
                add_hint(error)
                raise error
            numbers = {*there, *range(min(said, max(there) + _MAX_MISSING))}  # to name those that are missing
        steps = dict[int, int]()
        for number in sorted(numbers):
            with skippable(NAMED.format(number)):
                steps[number] = hdf5_file.integer(hdf5_file.group(file, f"episode_{number}"), STEPS)
        found = typical(steps, NAMED, lambda first: fields_of(file, first, steps, spaces, metadata.get(KEY)))
        others += [f"attribute {name}" for name in hdf5_file.attributes(file)]
    return found, steps, others


def find_runs(directory: Path) -> list[Minari]:
    """Return the datasets in a directory, sorted: itself, or those in the namespaces below."""
    found = [directory] if _is_data(directory) else []
    below = found or (sorted(_data_directories(directory, 0)) if directory.is_dir() else [])
    return [open_minari(path) for path in below]


def _data_directories(directory: Path, depth: int) -> Iterator[Path]:
    if _is_data(directory / "data"):
        yield directory / "data"
    elif depth < MAX_DEPTH and not (directory / FILE_NAME).exists():  # which rlx's own datasets have
        for child in os.scandir(directory):
            if child.is_dir(follow_symlinks=False):
                yield from _data_directories(Path(child.path), depth + 1)


def _is_data(directory: Path) -> bool:
    parts = (arrow.part_name(0, storage) for storage in _STORAGES[1:])
    return (directory / METADATA).is_file() and any((directory / name).is_file() for name in (MAIN_DATA, *parts))


def _space(metadata: Mapping[str, Any], name: str, root: Path) -> Space | None:
    text, place = metadata.get(name), f"{root / METADATA}: {name}"
    if not isinstance(text, str):
        return None
    space = parse_object(text, place)
    try:
        check(space)
    except ValueError as exc:
        raise CorruptShardError(f"{place}: {exc}") from exc
    return space


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
    if isinstance(spec, str) and isinstance(environment := parse_object(spec, "env_spec").get("id"), str):
        origin["environment"] = environment
        if can_be_noted(spec):
            origin["env_spec"] = spec
    if str(metadata.get("dataset_id")).startswith("D4RL/"):
        origin["citation"] = "Fu et al. 2020, D4RL: Datasets for Deep Data-Driven Reinforcement Learning"
    return origin


def _description(metadata: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the other metadata of the whole dataset, and the names of those that a manifest cannot keep."""
    others = {name: said for name, said in metadata.items() if name not in _KNOWN}
    kept = {name: said for name, said in others.items() if can_be_noted(said)}
    return kept, [f"{METADATA}: {name}" for name in others if name not in kept]
