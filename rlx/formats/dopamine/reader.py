"""The DQN Replay Dataset and other logs of Dopamine's replay buffer: ``<Game>/<run>/replay_logs/``.

A shard holds the episodes that start in the file of its number, and continues in the next files for the rest
of the last one. So no trajectory crosses a shard, and every shard is a function of the files alone.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rlx.block import Block
from rlx.errors import CorruptShardError
from rlx.formats.common.fields import NOT_A_ROW_PER_STEP, NOT_OF_STEPS, ExtraFields, expecting, not_taken_note
from rlx.formats.common.npy import gzipped
from rlx.formats.common.provenance import noted_fields, read_notes_beside
from rlx.formats.common.source import MAX_BLOCK_STEPS
from rlx.formats.dopamine import (
    ADD_COUNT,
    EPISODE_ENDS,
    FOLDER,
    LAYOUT,
    OBSERVATION,
    SMALL_ARRAYS,
    STORE,
    array_name,
    file_name,
)
from rlx.formats.dopamine.episodes import RowReader, pack, read_block, trajectories
from rlx.formats.dopamine.plan import Plan, find_arrays, make_plan
from rlx.schema import Role, Schema

# 200 iterations of at least 250,000 steps fill a ring of a million 50 times; the buffer at the end makes 51.
PUBLIC_SUFFIXES = range(51)
_ATARI = ("uint8", (84, 84))
_WORD = re.compile(r"[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class Dopamine:
    """A run logged by Dopamine. Its small arrays are read when first needed, and pickled with it.

    Args:
        root: local directory to which the names in ``files`` are relative.
        folder: directory of the files below it: ``Pong/1/replay_logs``.
        id: name of the run: ``Pong/1``.

    Every method raises SourceNotFoundError if the run or one of its small arrays is missing, and
    CorruptShardError if one is damaged or contradicts another.
    """

    root: Path
    folder: str
    id: str

    @property
    def schema(self) -> Schema:
        """Observations as in their first local file, else uint8[84, 84]; int64 actions; rewards; extra columns."""
        plain = Schema.of(observation=self._observation, action=("int64", ()))
        return Schema({**plain.fields, **self._extras.fields})

    @property
    def notes(self) -> Mapping[str, Any]:
        """Notes on what the steps do not show."""
        notes: dict[str, Any] = {
            "rewards": "clipped to [-1, 1]" if self._plan.is_clipped else "as logged",
            **read_notes_beside((self.root / self.folder).parent),
            "truncation": "recorded" if self._plan.can_truncate else "unrecorded",
            "final_observation": "missing where terminated: stored as zeros and flagged",
        }
        if missing := self._plan.missing():
            notes["missing_source_files"] = missing
        if gaps := self._plan.gaps():
            notes["steps_lost_before_shards"] = gaps
        return notes | not_taken_note(self._extras.not_taken)

    def shards(self) -> Sequence[int]:
        """Return the suffixes of the files, ascending."""
        return [int(suffix) for suffix in self._plan.suffixes]

    def files(self, shard: int) -> Sequence[str]:
        """Return the files of the shard's suffix, and of those in which its last episode continues."""
        position = self._plan.position(shard)
        spans = self._plan.spans(position)
        last = self._plan.file_of(spans[-1].end - 1) if spans else position
        arrays = (*SMALL_ARRAYS, OBSERVATION, *self._extras.keys.values()) if spans else SMALL_ARRAYS
        suffixes = self._plan.suffixes[position : last + 1].tolist()
        return [f"{self.folder}/{file_name(array, suffix)}" for suffix in suffixes for array in arrays]

    def planned(self, shard: int) -> tuple[int, int]:
        """Return how many episodes start in the shard's file, and their steps, as far as the small arrays tell."""
        spans = self._plan.spans(self._plan.position(shard))
        lead = self._plan.padding if spans and not spans[0].start else 0
        return len(spans), sum(span.stop - span.start for span in spans) - lead

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:
        """Yield the episodes that start in the shard's file; see ``Source.blocks``.

        ``dropped`` counts ``padding``, zero rows before an episode; ``cut``, last rows of episodes whose next row is
        missing; ``stale``, slots that an earlier file has too; and ``uninitialised``, slots never written. Over all
        shards, these and the steps add up to the slots of all files.
        """
        position = self._plan.position(shard)
        dropped.update(+Counter(self._plan.nothing_new(position)))
        extras = self._extras
        kinds = {extras.keys[name]: (field.dtype, field.shape) for name, field in extras.fields.items()}
        with expecting(LAYOUT), RowReader(self.root / self.folder, self._plan, self._observation, kinds) as rows:
            episodes = trajectories(self._plan, position, rows, dropped)
            for parts in pack(episodes, MAX_BLOCK_STEPS):
                yield read_block(parts, rows, extras.keys)
            rows.finish()

    @cached_property
    @expecting(LAYOUT)
    def _plan(self) -> Plan:
        return make_plan(self.root / self.folder)

    @cached_property
    def _observation(self) -> tuple[str, tuple[int, ...]]:
        for suffix in self._plan.suffixes.tolist():
            path = self.root / self.folder / file_name(OBSERVATION, suffix)
            if path.is_file():
                try:
                    with gzipped(path) as stream:
                        return stream.kind
                except CorruptShardError:
                    continue  # reported by the shard that reads it
        return _ATARI

    @cached_property
    @expecting(LAYOUT)
    def _extras(self) -> ExtraFields:
        """Return Dopamine's extra storage types, as in the first file of each, and why other arrays are left out."""
        folder, first = self.root / self.folder, int(self._plan.suffixes[0])
        found = ExtraFields(["observation", "action", "reward", "terminated", "truncated"])
        # Further observations lost their last row in this format, and have one row per step.
        noted = {
            (array_name(name), one.dtype, one.shape): (name, Role.STEP if one.role == Role.OBSERVATION else one.role)
            for name, one in noted_fields(read_notes_beside(folder.parent)).items()
        }
        for array in find_arrays(folder, first):
            if array in (*SMALL_ARRAYS, OBSERVATION, EPISODE_ENDS):
                continue
            if not array.startswith(STORE):
                found.leave(array, NOT_OF_STEPS)
                continue
            try:
                with gzipped(folder / file_name(array, first)) as stream:
                    kind, shape = stream.dtype.name, stream.shape
            except CorruptShardError as exc:
                found.leave(array, f"not an array of numbers: {exc}")
                continue
            if shape[:1] != (self._plan.capacity,):
                found.leave(array, NOT_A_ROW_PER_STEP)
                continue
            name, role = noted.get((array, kind, shape[1:]), (array.removeprefix(STORE), Role.STEP))
            found.add(array, name, (kind, shape[1:]), role)
        return found


@dataclass(frozen=True, slots=True)
class DopamineLayout:
    """How the DQN Replay Dataset names the files of one run.

    Args:
        run: 1 to 5.
        prefix: of the path, such as ``dqn/``.
    """

    game: str
    run: int
    prefix: str = ""

    def index_files(self) -> Sequence[str]:
        """Return the small arrays of every suffix; of the pickle among them, only its existence matters."""
        arrays = (*SMALL_ARRAYS, EPISODE_ENDS)
        return [f"{self._folder}/{file_name(array, suffix)}" for suffix in PUBLIC_SUFFIXES for array in arrays]

    def source(self, root: Path) -> Dopamine:
        """Return the run below a local directory."""
        return Dopamine(root, self._folder, f"{self.game}/{self.run}")

    @property
    def _folder(self) -> str:
        return f"{self.prefix}{self.game}/{self.run}/{FOLDER}"


def find_runs(directory: Path) -> list[Dopamine]:
    """Return the runs in a directory, by name.

    Args:
        directory: ``replay_logs``, or a directory one to four levels above: of a run, a game, all games, or ``dqn``.
    """
    directory = directory.absolute()
    patterns = ["/".join([*"*" * depth, FOLDER]) for depth in range(4)]
    folders = [directory, *(folder for pattern in patterns for folder in sorted(directory.glob(pattern)))]
    return [
        Dopamine(directory, folder.relative_to(directory).as_posix(), _id_of(folder))
        for folder in folders
        if folder.is_dir() and any(folder.glob(file_name(ADD_COUNT, "*")))
    ]


def _id_of(folder: Path) -> str:
    words = folder.parts[-3:-1] if folder.name == FOLDER else folder.parts[-1:]
    return "/".join(word for word in words if _WORD.fullmatch(word)) or "run"
