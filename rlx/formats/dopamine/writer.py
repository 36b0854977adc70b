"""Logs of Dopamine's replay buffer, ``replay_logs/$store$_observation_ckpt.0.gz`` and so on, as in the DQN Replay
Dataset.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from isal import igzip
from numpy.typing import DTypeLike, NDArray

from rlx.errors import ExportError
from rlx.files import lock
from rlx.files.disk import check_case
from rlx.formats.common.exporter import (
    Experience,
    Piece,
    action_fields,
    check_names,
    check_single,
    common_losses,
    extra_fields,
    float32,
    left_out,
    observation_fields,
    only_action,
    pieces,
    renamed,
    rounded_rewards,
    without_finals,
)
from rlx.formats.common.npy import header
from rlx.formats.common.provenance import FILE_NAME, save_provenance
from rlx.formats.dopamine import (
    ACTION,
    ADD_COUNT,
    FOLDER,
    INVALID_RANGE,
    OBSERVATION,
    REWARD,
    SMALL_DTYPES,
    TERMINAL,
    array_name,
    file_name,
)
from rlx.progress import Progress
from rlx.schema import Schema

_CAPACITY = 1_000_000
# DQN learns from one step ahead, and sees a stack of four observations.
HORIZON, STACK = 1, 4
_COMPRESSION_LEVEL = 1
_PIECE_BYTES = 2**18


@dataclass(frozen=True, slots=True)
class DopamineExporter:
    """Exporter to the directory of a run, ``Pong/1``, with ``replay_logs`` in it.

    Further fields of numbers become what Dopamine calls extra storage types.

    Args:
        capacity: rows of the ring, and so of every file; by default a million as in the DQN Replay Dataset, or the
            number of rows plus one if that is smaller.
    """

    capacity: int | None = None

    title = "Dopamine's layout"

    def taken(self, schema: Schema) -> Collection[str]:
        """Return the fields whose array would have the name of another's."""
        names = dict.fromkeys((*SMALL_DTYPES, OBSERVATION), "")
        return [name for name in extra_fields(schema) if names.setdefault(array_name(name), name) != name]

    def losses(self, experience: Experience) -> Sequence[str]:
        """Return lost final observations, truncations, numbers of episodes, exact rewards, names, and fields."""
        schema, table = experience.schema, experience.trajectories
        check_names(self.title, schema)
        check_single(self.title, "observation", observation_fields(schema), schema)
        only_action(schema, f"{self.title} holds one discrete action", discrete=True)
        losses = common_losses(experience, final=True, episodes=True, both=True)
        if cut := int((~table.terminated).sum()):
            losses.append(
                f"truncations: {cut:,} of {len(table):,} trajectories did not terminate, and end as if they had"
            )
        extras = _extras(schema)
        losses += renamed((*observation_fields(schema), *action_fields(schema)))
        (action,) = action_fields(schema)
        if schema[action].dtype != "int64":
            losses.append(f"{action} of {schema[action].dtype}: rlx reads it as int64")
        losses += rounded_rewards(schema) + without_finals(schema, list(extras))
        return losses + left_out([name for name in extra_fields(schema) if schema[name].is_text])

    def owns(self, path: Path) -> bool:
        """Return whether a directory holds ``replay_logs`` and nothing else that rlx did not write."""
        return (path / FOLDER / file_name(ADD_COUNT, 0)).is_file() and {entry.name for entry in path.iterdir()} <= {
            FOLDER,
            FILE_NAME,
        }

    def write(self, experience: Experience, path: Path, destination: Path, progress: Progress) -> None:  # noqa: ARG002
        """Write the directory."""
        schema, table = experience.schema, experience.trajectories
        (observation,), (action,) = observation_fields(schema), action_fields(schema)
        check_case(schema, path.with_name(lock.FILE_NAME))
        folder = path / FOLDER
        folder.mkdir(parents=True)
        save_provenance(path, experience, self.losses(experience))
        rows = int(table.length.sum()) + (STACK - 1) * len(table)
        seen = schema[observation]
        columns = {
            OBSERVATION: (seen.dtype, seen.shape),
            **{array: (dtype, ()) for array, dtype in SMALL_DTYPES.items()},
            **{array: (schema[name].dtype, schema[name].shape) for name, array in _extras(schema).items()},
        }
        with RingLog(folder, self.capacity or min(_CAPACITY, rows + 1), columns) as log:
            for piece in pieces(experience.blocks(), schema):
                if piece.start == 0:
                    log.append({name: np.zeros((STACK - 1, *shape), dtype) for name, (dtype, shape) in columns.items()})
                log.append(
                    {
                        OBSERVATION: piece.rows(observation),
                        ACTION: _small(piece.rows(action), action),
                        REWARD: float32(piece.rows("reward"), self.title, "rewards"),
                        TERMINAL: _ends(piece),
                        **{array: piece.rows(name) for name, array in _extras(schema).items()},
                    }
                )
                progress.advance("steps", piece.steps)


def _extras(schema: Schema) -> dict[str, str]:
    """Return the array of every extra field that can be written: numbers."""
    return {name: array_name(name) for name in extra_fields(schema) if not schema[name].is_text}


def _ends(piece: Piece) -> NDArray[np.uint8]:
    ends = np.zeros(piece.steps, np.uint8)
    ends[-1] = piece.is_last
    return ends


def _small(actions: NDArray[np.generic], name: str) -> NDArray[np.generic]:
    if not np.array_equal(actions.astype(np.int32), actions):
        raise ExportError(f"Dopamine's layout holds actions of 32 bits, found larger ones in {name}")
    return actions


class RingLog:
    """Writer of rows, in order, into the files of one suffix after the other.

    A file holds the content of the ring, each row in slot ``row % capacity``. It is written when all slots but the last
    are new: the last has a row of the lap before, and its new row is the oldest in the next file. When the context ends
    without an error, the remaining rows are logged over rows of the lap before; as in Dopamine, ``add_count`` is then
    only the position of the cursor.

    Args:
        capacity: rows of the ring, at least 2.
        columns: dtype and shape of a row of every column, by its name in the files.
    """

    def __init__(self, folder: Path, capacity: int, columns: Mapping[str, tuple[DTypeLike, tuple[int, ...]]]) -> None:
        self._folder = folder
        self._capacity = capacity
        self._columns = columns
        self._rows = 0
        self._suffix = 0
        self._files: dict[str, IO[bytes]] = {}
        self._open_files = ExitStack()
        self._last_slot = {name: bytes(self._row_bytes(name)) for name in columns}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._open_files:
            cursor = self._rows % self._capacity
            if kind is None and cursor != self._capacity - 1:
                for name, file in self._opened().items():
                    for piece in self._older(name, cursor):
                        file.write(piece)
                self._log(cursor)

    def append(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Add the next rows [n, ...] of every column."""
        count, done, last = len(next(iter(rows.values()))), 0, self._capacity - 1
        while done < count:
            slot = self._rows % self._capacity
            stop = min(count, done + max(1, last - slot))
            for name, column in rows.items():
                values = column[done:stop].astype(self._columns[name][0], copy=False).tobytes()
                if slot == last:
                    self._last_slot[name] = values
                else:
                    self._opened()[name].write(values)
            self._rows += stop - done
            done = stop
            if self._rows % self._capacity == last:
                self._log(self._rows)

    def _log(self, add_count: int) -> None:
        for name, file in self._opened().items():
            file.write(self._last_slot[name])
        self._open_files.close()
        self._files = {}
        around = (self._rows - HORIZON + np.arange(STACK + HORIZON)) % self._capacity
        for name, array in ((ADD_COUNT, np.array(add_count)), (INVALID_RANGE, around)):
            with self._path(name).open("xb") as raw, _gzipped(raw) as file:
                np.save(file, array)
        self._suffix += 1

    def _opened(self) -> Mapping[str, IO[bytes]]:
        if not self._files:
            for name in self._columns:
                raw = self._open_files.enter_context(self._path(name).open("xb"))
                self._files[name] = self._open_files.enter_context(_gzipped(raw))
                self._files[name].write(self._header(name))
        return self._files

    def _older(self, name: str, cursor: int) -> Iterator[bytes]:
        """Yield the slots from the cursor to the last but one, of the lap before; zeros in the first lap."""
        left = (self._capacity - 1 - cursor) * self._row_bytes(name)
        if not self._suffix:
            while left:
                yield bytes(min(left, _PIECE_BYTES))
                left -= min(left, _PIECE_BYTES)
            return
        with igzip.open(self._path(name, self._suffix - 1)) as before:  # type: ignore[no-untyped-call]
            before.seek(len(self._header(name)) + cursor * self._row_bytes(name))
            while left:
                piece = before.read(min(left, _PIECE_BYTES))
                left -= len(piece)
                yield piece

    def _header(self, name: str) -> bytes:
        dtype, shape = self._columns[name]
        return header(str(np.dtype(dtype)), (self._capacity, *shape))

    def _row_bytes(self, name: str) -> int:
        dtype, shape = self._columns[name]
        return np.dtype(dtype).itemsize * int(np.prod(shape))

    def _path(self, name: str, suffix: int | None = None) -> Path:
        return self._folder / file_name(name, self._suffix if suffix is None else suffix)


def _gzipped(raw: IO[bytes]) -> IO[bytes]:
    # No name and no time in the header, so that the same rows give the same bytes.
    return igzip.IGzipFile("", "wb", _COMPRESSION_LEVEL, raw, 0)  # type: ignore[no-untyped-call,return-value]


DATASETS = DopamineExporter()
