"""Protocol of dataset exporters, the pieces of trajectories that they write, and losses."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import ExportError
from rlx.formats.common.source import Described
from rlx.progress import Progress
from rlx.schema import Field, Role, Schema, is_action
from rlx.store.trajectories import Trajectories

_MAX_SMALL_BYTES = 2**20


class Experience(Described, Protocol):
    """The data to export; it can be read any number of times."""

    @property
    def names(self) -> Mapping[str, str]:
        """The name here of every field whose own name the format cannot use for it; see ``names.names_in_file``."""

    @property
    def empty(self) -> Mapping[str, Field]:
        """The fields of shape [0], by name, that the file only notes; ``schema`` lacks them. See ``empty_fields``."""

    @property
    def fingerprint(self) -> str | None:
        """Checksum of the source files and of the settings of the export; None if unknown."""

    @property
    def trajectories(self) -> Trajectories:
        """The table of all trajectories, in the order of the blocks."""

    def blocks(self) -> Iterator[Block]:
        """Yield all steps in time order, trajectory by trajectory, in blocks of at most 32 MiB."""


class DatasetExporter(Protocol):
    """Exporter of whole datasets in one format.

    Memory depends on the size of a block, not on that of a trajectory, a shard or the dataset. The same experience
    gives the same bytes.

    An exporter whose format has at least one value in every row of a column sets ``notes_empty = True``: fields of
    shape [0] then stand in the provenance alone.
    """

    @property
    def title(self) -> str:
        """The format in words, for messages: ``D4RL's HDF5``."""

    def taken(self, schema: Schema) -> Collection[str]:
        """Return the fields whose names the format cannot use for them: they mean something else in it, or two fields
        would get one place.
        """

    def losses(self, experience: Experience) -> Sequence[str]:
        """Return the data that the format cannot store, each in a few words; known before writing.

        Raises:
            ExportError: the format cannot hold a field; names it, and what the format expects of it.
        """

    def owns(self, path: Path) -> bool:
        """Return whether the path holds this format, so that an export may replace it."""

    def write(self, experience: Experience, path: Path, destination: Path, progress: Progress) -> None:
        """Write a file or a directory.

        Args:
            experience: for which ``taken`` is empty and ``losses`` raised no error.
            path: does not exist yet.
            destination: the path to which the caller renames it when it is complete.
            progress: advanced in ``steps``.

        Raises:
            ExportError: the format cannot hold a value.
            OSError: the write failed, such as on a full disk.
            MissingExtraError: the format needs a package that is not installed.
        """


def common_losses(
    experience: Experience,
    *,
    final: bool = False,
    unrecorded: bool = True,
    episodes: bool = False,
    starts: bool = True,
    both: bool = False,
) -> list[str]:
    """Return the losses of this experience in a format, of those that several formats share.

    Args:
        final: whether the format cannot hold final observations.
        unrecorded: whether it cannot mark a final observation as unrecorded.
        episodes: whether it cannot hold the numbers of episodes.
        starts: whether it cannot mark a trajectory that starts in the middle of an episode.
        both: whether it cannot mark a trajectory that was truncated as it terminated.
    """
    table, losses = experience.trajectories, []
    if final and (recorded := int(table.final_recorded.sum())):
        losses.append(f"the final observation of {_of(recorded, len(table))}")
    if unrecorded and not final and (missing := int((~table.final_recorded).sum())):
        losses.append(f"that the final observation of {_of(missing, len(table))} was not recorded: it is zeros")
    if episodes and table.episode.tolist() != list(range(len(table))):
        losses.append("the source's episode numbers")
    if starts and (late := int((~table.from_reset).sum())):
        losses.append(f"that {_of(late, len(table))} start in the middle of an episode")
    if both and (truncated := int((table.terminated & table.truncated).sum())):
        losses.append(f"that {_of(truncated, len(table))} were truncated as they terminated")
    return losses


def unflagged_ends(experience: Experience) -> list[str]:
    """Return the loss of a format that treats all trajectories that did not terminate as truncated."""
    table = experience.trajectories
    count = int((~table.terminated & ~table.truncated).sum())
    return [f"that {_of(count, len(table))} end without being truncated"] if count else []


def has_finals(experience: Experience) -> bool:
    """Return whether the final observation of any trajectory was recorded."""
    return bool(experience.trajectories.final_recorded.any())


def extra_fields(schema: Schema) -> list[str]:
    """Return names of the fields other than observations, actions, reward and flags."""
    known = {"reward", "terminated", "truncated", *observation_fields(schema), *action_fields(schema)}
    return [name for name in schema if name not in known]


def observation_fields(schema: Schema) -> list[str]:
    """Return names of ``observation``, or of the parts it has."""
    return [name for name in schema.names(Role.OBSERVATION) if name.split("/")[0] == "observation"]


def action_fields(schema: Schema) -> list[str]:
    """Return names of ``action``, or of the parts it has."""
    return [name for name in schema.names(Role.STEP) if name.split("/")[0] == "action"]


def only_action(schema: Schema, holds: str, *, discrete: bool = False, floats: bool = False) -> str:
    """Return the name of the only action field.

    Args:
        holds: the actions that the format holds, for the error.
        discrete: whether an integer per step is allowed.
        floats: whether a float or a vector of floats per step is allowed.

    Raises:
        ExportError: there are several action fields, or one of another kind.
    """
    names = action_fields(schema)
    if len(names) == 1:
        field = schema[names[0]]
        kind = field.numpy_dtype.kind
        if (discrete and kind in "iu" and field.shape == ()) or (floats and kind == "f" and len(field.shape) <= 1):
            return names[0]
    found = ", ".join(f"{name} {schema[name].dtype}{list(schema[name].shape)}" for name in names)
    raise ExportError(f"{holds} per step, found {found}", hint="`to` minari holds actions of any kind")


def check_names(title: str, schema: Schema) -> None:
    """Raise ExportError unless the schema has ``observation`` and ``action``, or parts of them."""
    for kind, known, found in (
        ("observation", observation_fields(schema), schema.names(Role.OBSERVATION)),
        ("action", action_fields(schema), [name for name in schema if is_action(name)]),
    ):
        if not known:
            raise ExportError(
                f"{title} requires a field called {kind}, found {', '.join(found) or 'none'}",
                hint=f"rlx preprocess SRC DST --transform rename:{found[0]}={kind}" if found else None,
            )


def check_single(holder: str, kind: str, names: Sequence[str], schema: Schema) -> None:
    """Raise ExportError unless ``names`` is one field, of numbers."""
    if len(names) != 1:
        found = ", ".join(names)
        raise ExportError(f"{holder} holds one {kind} per step, found {found}", hint="`to` minari holds any number")
    if schema[names[0]].is_text:
        raise ExportError(f"{holder} holds {kind}s of numbers, found text in {names[0]}", hint="`to` npz holds text")


def empty_fields(schema: Schema) -> dict[str, Field]:
    """Return the fields of shape [0] that a file need not have, because a note of them says everything.

    If all observations are empty, or all actions, none of these is among them: without any, no reader finds steps.

    Example:
        >>> schema = Schema.of(observation=("uint8", (84, 84)), action=("float32", (0,)))
        >>> list(empty_fields(schema)), list(empty_fields(Schema({**schema.fields, "none": schema["action"]})))
        ([], ['none'])
    """
    empty = {name: field for name, field in schema.fields.items() if 0 in field.shape}
    for names in (schema.names(Role.OBSERVATION), [name for name in schema if is_action(name)]):
        if all(name in empty for name in names):
            empty = {name: field for name, field in empty.items() if name not in names}
    return empty


def check_values(title: str, schema: Schema) -> None:
    """Raise ExportError if the rows of a field are empty, as with shape [0]."""
    if empty := [name for name, field in schema.fields.items() if 0 in field.shape]:
        found = ", ".join(f"{name} {list(schema[name].shape)}" for name in empty)
        raise ExportError(
            f"{title} holds observations and actions of at least one value, found {found}",
            hint="`to` npz or minari holds them",
        )


def renamed(names: Iterable[str]) -> list[str]:
    """Return the loss of these names, for a format with its own names of the observation and the action."""
    kept = ("observation", "action")
    return [f"the name {name}: it becomes {name.split('/')[0]}" for name in names if name not in kept]


def float32(rows: NDArray[Any], title: str, name: str) -> NDArray[np.float32]:
    """Return numbers as float32.

    Raises:
        ExportError: a finite number is beyond its range.
    """
    with np.errstate(over="ignore"):
        rounded = rows.astype(np.float32)
    if (beyond := np.isinf(rounded) & np.isfinite(rows)).any():
        worst = rows[beyond][0]
        raise ExportError(f"{title} holds {name} as float32, found {worst}", hint="`to` minari holds float64")
    return rounded


def left_out(names: Sequence[str]) -> list[str]:
    """Return the loss of these fields, which a format cannot hold."""
    return [f"the field{'s' if len(names) > 1 else ''} {', '.join(names)}"] if names else []


def without_finals(schema: Schema, names: Sequence[str]) -> list[str]:
    """Return the loss of the last row of observations among these fields, for a format of one row per step."""
    return [f"the last {name} of each trajectory" for name in names if schema[name].role == Role.OBSERVATION]


def rounded_rewards(schema: Schema) -> list[str]:
    """Return the loss of a format that holds rewards as float32."""
    dtype = schema["reward"].dtype
    if dtype == "float32":
        return []
    is_exact = np.result_type(dtype, np.float32) == np.float32
    return [f"rewards of {dtype}: they {'become' if is_exact else 'are rounded to'} float32"]


def _of(some: int, all: int) -> str:
    return f"{some:,} of {all:,} trajectories"


@dataclass(frozen=True, slots=True)
class PieceInfo:
    """The part of a trajectory that a piece holds.

    Args:
        trajectory: its index in the experience.
        start: steps of the trajectory in earlier pieces.
        episode: its number in the source.
        final_recorded: whether its final observation was recorded; valid in the last piece.
        cut: whether its recording stops although the environment did not end it; valid in the last piece.
    """

    trajectory: int
    start: int
    is_last: bool
    episode: int
    from_reset: bool
    final_recorded: bool
    cut: bool


@dataclass(frozen=True, slots=True)
class Piece(PieceInfo):
    """n >= 1 consecutive steps of one trajectory.

    Args:
        data: an array for every field: [n, ...], observations [n + 1, ...].
    """

    data: Mapping[str, NDArray[np.generic]]

    @property
    def steps(self) -> int:
        """Steps in the piece."""
        return len(self.data["reward"])

    def rows(self, name: str) -> NDArray[np.generic]:
        """Return [n, ...] the rows of a field; of observations, those before each step."""
        return self.data[name][: self.steps]

    def next(self, name: str) -> NDArray[np.generic]:
        """Return [n, ...] the observation after each step."""
        return self.data[name][1:]

    def stored(self, name: str) -> NDArray[np.generic]:
        """Return [n, ...] the rows of an observation, in the last piece [n + 1, ...]: every observation once."""
        return self.data[name] if self.is_last else self.rows(name)


def pieces(blocks: Iterable[Block], schema: Schema) -> Iterator[Piece]:
    """Yield the steps of blocks in pieces, in order; each is held back until the observation after it is known."""
    observations = frozenset(schema.names(Role.OBSERVATION))
    held: Piece | None = None
    trajectory = start = 0
    for block in blocks:
        for piece in _segments(block, observations, trajectory, start):
            if not piece.steps and not piece.is_last:
                continue
            if held is not None:
                yield _completed(held, piece, observations)
            # A trajectory may end in a segment that has no step: its one observation is the held piece's.
            held = None if piece.is_last or not piece.steps else piece
            if piece.is_last and piece.steps:
                yield piece
            trajectory, start = (trajectory + 1, 0) if piece.is_last else (trajectory, start + piece.steps)


def small_pieces(blocks: Iterable[Block], schema: Schema) -> Iterator[Piece]:
    """Yield pieces of at most a MiB, or one step, for formats that need several times that to encode one."""
    size = max(1, _MAX_SMALL_BYTES // schema.row_bytes)
    observations = frozenset(schema.names(Role.OBSERVATION))
    for piece in pieces(blocks, schema):
        for start in range(0, piece.steps, size):
            yield _part(piece, start, min(start + size, piece.steps), observations)


def _part(piece: Piece, start: int, stop: int, observations: frozenset[str]) -> Piece:
    data = {name: array[start : stop + (name in observations)] for name, array in piece.data.items()}
    is_last = piece.is_last and stop == piece.steps
    return replace(piece, data=data, start=piece.start + start, is_last=is_last)


def _completed(held: Piece, follower: Piece, observations: frozenset[str]) -> Piece:
    data = {
        name: np.concatenate([array, follower.data[name][:1]]) if name in observations else array
        for name, array in held.data.items()
    }
    ends = follower.is_last and not follower.steps
    return replace(held, data=data, is_last=ends, final_recorded=follower.final_recorded, cut=follower.cut)


def _segments(block: Block, observations: frozenset[str], trajectory: int, start: int) -> Iterator[Piece]:
    step = row = 0
    for number, length in enumerate(block.lengths.tolist()):
        is_last = number < block.closed
        data = {
            name: array[row : row + length + is_last] if name in observations else array[step : step + length]
            for name, array in block.data.items()
        }
        yield Piece(
            trajectory + number,
            start if number == 0 else 0,
            is_last,
            int(block.episodes[number]),
            bool(block.from_reset[number]),
            bool(block.final_recorded[number]),
            bool(block.cut[number]),
            data,
        )
        step, row = step + length, row + length + is_last
