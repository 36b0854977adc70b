"""RL Unplugged's ``atari_episodes_ordered``: five DQN runs on each of 46 Atari games, one episode a record.

A record of T rows gives T - 1 steps, as the last row's observation is the final one. If the last discount is 0, the
episode terminated, and that row's action and reward are filler; otherwise it was cut, and their outcome is unknown.
"""

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import imagecodecs
import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import CorruptShardError, SourceError, SourceNotFoundError
from rlx.formats.common.fields import expecting, not_taken_note
from rlx.formats.common.record_files import record_reads, records
from rlx.formats.common.rows.episodes import episode_blocks, last_flag
from rlx.formats.common.skipping import DAMAGES, skippable, whole
from rlx.formats.common.source import MalformedError
from rlx.formats.common.tf_example import Feature, parse_example
from rlx.formats.rl_unplugged import (
    FEATURES,
    FILE,
    GAMES,
    GAMES_MISSING,
    LAYOUT,
    RUNS,
    is_ordered,
    num_shards,
    shard_file,
)
from rlx.schema import FLAGS, Schema
from rlx.wording import did_you_mean

FRAME_SHAPE = (84, 84)
# An uncompressed frame has 7 kB; larger ones are other pictures, or hostile.
MAX_PNG_BYTES = 1 << 14
_HEIGHT, _WIDTH = FRAME_SHAPE
_ROW_BYTES = 1 + _WIDTH  # the filter's number comes first
_INFLATED_BYTES = _HEIGHT * _ROW_BYTES
_PLACE_BYTES = (_HEIGHT + 1) * _ROW_BYTES  # with the empty row
_STACKED_FRAMES = 32  # keeps the working set in the processor's cache
_BLOCK_FRAMES = 9  # a stored block of deflate has at most 65,535 bytes
_LAST_FILTER = 4

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHUNK = struct.Struct(">I4s")
_CRC = struct.Struct(">I")
_ZLIB_HEAD = b"\x78\x01"
_STORED = struct.Struct("<BHH")  # whether the block is the last, its length, and that inverted


def decode_frames(pngs: Sequence[bytes | memoryview], *, first: int = 0) -> NDArray[np.uint8]:
    """Return the frames [n, 84, 84] of n PNGs.

    Args:
        first: number of the first frame, for messages.

    Raises:
        MalformedError: a PNG is damaged, or has another size.
    """
    frames = np.empty((len(pngs), *FRAME_SHAPE), np.uint8)
    stack: _TallPng | None = None
    for start in range(0, len(pngs), _STACKED_FRAMES):
        batch = pngs[start : start + _STACKED_FRAMES]
        if stack is None or stack.count != len(batch):
            stack = _TallPng(len(batch))
        for number, png in enumerate(batch):
            try:
                _inflate(_image_data(png), stack.places[number])
            except MalformedError as exc:
                raise MalformedError(f"frame {first + start + number}: {exc}") from exc
        stack.check_filters(first + start)
        frames[start : start + len(batch)] = stack.decoded()
    return frames


class _TallPng:
    """A PNG of frames one below the other, whose rows are stored and not deflated.

    Attributes:
        places: memory of each frame's rows [84 * 85], each with its filter first.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        blocks = [min(_BLOCK_FRAMES, count - first) for first in range(0, count, _BLOCK_FRAMES)]
        data_bytes = len(_ZLIB_HEAD) + len(blocks) * _STORED.size + count * _PLACE_BYTES + _CRC.size
        head = _head(count * (_HEIGHT + 1)) + _CHUNK.pack(data_bytes, b"IDAT") + _ZLIB_HEAD
        tail = bytes(_CRC.size) + bytes(_CRC.size) + _chunk(b"IEND")
        self._png = bytearray(len(head) + len(blocks) * _STORED.size + count * _PLACE_BYTES) + tail
        self._png[: len(head)] = head
        self._kind_at = len(head) - len(_ZLIB_HEAD) - 4
        room, at = memoryview(self._png), len(head)
        self._blocks: list[memoryview] = []
        self.places: list[memoryview] = []
        filters: list[int] = []
        for number, frames in enumerate(blocks):
            num_bytes = frames * _PLACE_BYTES
            is_last = number == len(blocks) - 1
            _STORED.pack_into(self._png, at, is_last, num_bytes, num_bytes ^ 0xFFFF)
            at += _STORED.size
            self._blocks.append(room[at : at + num_bytes])
            for place in range(at, at + num_bytes, _PLACE_BYTES):
                self.places.append(room[place : place + _INFLATED_BYTES])
                filters.append(place)
            at += num_bytes
        self._sum_at = at
        self._filters = np.array(filters)[:, None] + np.arange(_HEIGHT) * _ROW_BYTES

    def check_filters(self, first: int) -> None:
        """Raise MalformedError if a row has an unknown filter."""
        filters = np.frombuffer(self._png, np.uint8)[self._filters]
        if filters.max() > _LAST_FILTER:
            number = int(np.argmax(filters.max(axis=1) > _LAST_FILTER))
            found = filters[number].max()
            raise MalformedError(f"frame {first + number}: filter: expected at most {_LAST_FILTER}, found {found}")

    def decoded(self) -> NDArray[np.uint8]:
        """Return the frames [n, 84, 84]."""
        total = 1
        for block in self._blocks:
            total = isal_zlib.adler32(block, total)
        _CRC.pack_into(self._png, self._sum_at, total)
        end = self._sum_at + _CRC.size
        _CRC.pack_into(self._png, end, isal_zlib.crc32(memoryview(self._png)[self._kind_at : end]))
        frames: NDArray[np.uint8] = imagecodecs.spng_decode(self._png).reshape(-1, _HEIGHT + 1, _WIDTH)[:, :_HEIGHT]
        return frames


def _image_data(png: bytes | memoryview) -> bytes:
    """Return the deflated rows in a PNG, after checking its header and the checksums of its chunks."""
    if png[: len(_HEAD)] != _HEAD:
        raise MalformedError(f"expected a PNG of 84x84 8-bit grey, found {bytes(png[: len(_HEAD)]).hex()}")
    end = len(png)
    if end > MAX_PNG_BYTES:
        raise MalformedError(f"expected at most {MAX_PNG_BYTES:,} bytes, found {end:,}")
    at, kind, data = len(_HEAD), b"", []
    while kind != b"IEND":
        if end - at < _CHUNK.size + _CRC.size:
            raise MalformedError("the PNG is cut off")
        length, kind = _CHUNK.unpack_from(png, at)
        stop = at + _CHUNK.size + length
        if stop + _CRC.size > end:
            raise MalformedError(f"chunk {kind!r} of {length:,} bytes is cut off")
        found = isal_zlib.crc32(png[at + 4 : stop])
        (expected,) = _CRC.unpack_from(png, stop)
        if expected != found:
            raise MalformedError(f"crc32 of chunk {kind!r}: expected {expected:#010x}, found {found:#010x}")
        if kind == b"IDAT":
            data.append(png[at + _CHUNK.size : stop])
        at = stop + _CRC.size
    if at != end:
        raise MalformedError(f"trailing data after IEND: {end - at:,} bytes")
    return b"".join(data)


def _inflate(deflated: bytes, rows: memoryview) -> None:
    try:
        inflated = imagecodecs.deflate_decode(deflated, out=rows)
    except (imagecodecs.DeflateError, ValueError) as exc:
        raise MalformedError(f"expected {_INFLATED_BYTES:,} deflated bytes, found: {exc}") from exc
    if len(inflated) != _INFLATED_BYTES:
        raise MalformedError(f"expected {_INFLATED_BYTES:,} deflated bytes, found {len(inflated):,}")


def _chunk(kind_and_content: bytes) -> bytes:
    crc = isal_zlib.crc32(kind_and_content)
    return _CRC.pack(len(kind_and_content) - 4) + kind_and_content + _CRC.pack(crc)


def _head(height: int) -> bytes:
    # Bit depth 8, grey, deflate, the five filters, not interlaced.
    return _SIGNATURE + _chunk(b"IHDR" + struct.pack(">IIBBBBB", _WIDTH, height, 8, 0, 0, 0, 0))


_HEAD = _head(_HEIGHT)


NOTES: Mapping[str, Any] = MappingProxyType(
    {
        "rewards": "clipped to [-1, 1]",
        "truncation": "an episode cut by a checkpoint's edge or a time limit is flagged truncated; "
        "the source does not tell which",
        "final_observation": "recorded",
        "licence": "unspecified",
        "citation": "Agarwal et al. 2020, An Optimistic Perspective on Offline Reinforcement Learning; "
        "Gulcehre et al. 2020, RL Unplugged",
    }
)
# Key of the note on unordered copies; a dataset of both copies could lack episodes, or have some twice.
ORDER = "order"
_UNORDERED_NOTE = {ORDER: "unknown: from atari_episodes; atari_episodes_ordered has the order of play"}
_SCHEMA = Schema.of(observation=("uint8", FRAME_SHAPE), action=("int64", ()))
_EPISODES_PER_CHECKPOINT = 10**10


@dataclass(frozen=True, slots=True)
class RLUnplugged:
    """One run of RL Unplugged as a Source.

    Args:
        game: one of ``GAMES``.
        run: 1 to 5.
        present: the available shards; by default all of the run.
        ordered: whether the episodes are in the order of play.
    """

    root: Path
    game: str
    run: int
    present: tuple[int, ...] | None = None
    ordered: bool = True

    def __post_init__(self) -> None:
        _check_game(self.game)
        if self.run not in RUNS:
            raise SourceNotFoundError(f"{self.game} has no run {self.run}, expected 1 to 5")
        for shard in self.present or ():
            self._check_shard(shard)

    @property
    def id(self) -> str:
        """Name of the run: ``Pong/5``."""
        return f"{self.game}/{self.run}"

    @property
    def schema(self) -> Schema:
        """A grey frame, an action of the game's minimal set, a clipped reward, and two flags."""
        return _SCHEMA

    @property
    def notes(self) -> Mapping[str, Any]:
        """Clipped rewards, the meaning of truncated, the papers to cite, and additional features."""
        notes = NOTES if self.ordered else {**NOTES, **_UNORDERED_NOTE}
        if not self.present:
            return notes
        added = sorted(_features(self.root / shard_file(self.game, self.run, self.present[0])) - FEATURES)
        return {**notes, **not_taken_note(dict.fromkeys(added, "not a feature of RL Unplugged"))}

    def shards(self) -> Sequence[int]:
        """Return the numbers of the available shards, ascending."""
        return tuple(range(num_shards(self.game))) if self.present is None else self.present

    def files(self, shard: int) -> Sequence[str]:
        """Return the one file of a shard, below the root."""
        self._check_shard(shard)
        return (shard_file(self.game, self.run, shard),)

    def blocks(self, shard: int, dropped: Counter[str]) -> Iterator[Block]:
        """Yield the episodes of one shard, each in as many blocks as its length needs.

        Of every episode, one row is dropped: ``terminal_filler``, ``cut`` or ``single_row_episode``.
        """
        for name, place, read in self._records(shard):
            yield from whole(name, _steps(place, read, dropped), dropped)

    def skim(self, shard: int) -> Iterator["_Skimmed"]:
        """Yield the episodes of one shard, with observations that are decoded one by one; see ``SkimmedSource``."""
        for _, place, read in self._records(shard):
            if (episode := _read(place, read)).steps:
                yield _Skimmed(episode.steps, {"observation": _Pictures(episode.pngs, place)})

    def _records(self, shard: int) -> Iterator[tuple[str, str, Callable[[], bytes]]]:
        """Yield name and place of every record, and what returns it."""
        (file,) = self.files(shard)
        number = -1
        with expecting(LAYOUT):
            try:
                for number, read in enumerate(record_reads(self.root / file)):
                    yield f"{file}: record {number}", f"{self.root / file} is corrupt: record {number}", read
            except DAMAGES:
                with skippable(f"{file}: the records from {number + 1} on"):
                    raise

    def _check_shard(self, shard: int) -> None:
        if not 0 <= shard < num_shards(self.game):
            last = num_shards(self.game) - 1
            raise SourceNotFoundError(f"{self.id} has no shard {shard}, expected 0 to {last}")


@dataclass(frozen=True, slots=True)
class RLUnpluggedLayout:
    """Names of RL Unplugged's files of one run; needs no index files.

    Args:
        game: one of ``GAMES``.
    """

    game: str
    run: int
    ordered: bool = True

    def __post_init__(self) -> None:
        self.source(Path())

    def index_files(self) -> Sequence[str]:
        """Return no files."""
        return ()

    def source(self, root: Path) -> RLUnplugged:
        """Return the whole run below a local directory; its files may still be missing."""
        return RLUnplugged(root, self.game, self.run, ordered=self.ordered)


def find_runs(directory: Path) -> list[RLUnplugged]:
    """Return the runs in a directory, by game and run, each with the shards that exist.

    Args:
        directory: the root (it holds ``Pong/``), a game's directory, or the directory above the root.
    """
    directory = directory.absolute()
    if directory.name in GAMES and (found := _runs_of_game(directory)):
        return found
    for root in (directory, *sorted(_directories(directory))):
        games = [game for game in sorted(_directories(root)) if game.name in GAMES]
        if found := [run for game in games for run in _runs_of_game(game)]:
            return found
    return []


def _directories(parent: Path) -> list[Path]:
    return [path for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []


def _runs_of_game(directory: Path) -> list[RLUnplugged]:
    shards: dict[int, list[int]] = {}
    for path in sorted(directory.iterdir()):
        match = FILE.fullmatch(path.name)
        if match and path.is_file():
            run, shard, of = (int(number) for number in match.groups())
            if of == num_shards(directory.name) and shard < of:
                shards.setdefault(run, []).append(shard)
    root, game = directory.parent, directory.name
    return [RLUnplugged(root, game, run, tuple(shards[run]), is_ordered(root.name)) for run in sorted(shards)]


def _check_game(game: str) -> None:
    if game in GAMES_MISSING:
        raise SourceNotFoundError(
            f"RL Unplugged lacks {game}; of the 60 games it left out {', '.join(GAMES_MISSING)}",
            hint=f"convert a local copy (rlx convert DIR DST) or collect again (rlx collect ALE/{game}-v5)",
        )
    if game not in GAMES:
        hint = did_you_mean(game, (*GAMES, *GAMES_MISSING)) or "rlx list --remote"
        raise SourceNotFoundError(f"RL Unplugged has no game {game!r}, expected one of its {len(GAMES)}", hint=hint)


@lru_cache(maxsize=64)
def _features(path: Path) -> frozenset[str]:
    """Return the names of the features of a file's first record; empty if it is damaged, which reading reports."""
    try:
        for record in records(path):
            return frozenset(parse_example(record))
    except (SourceError, MalformedError):
        pass
    return frozenset()


@dataclass(frozen=True, slots=True)
class _Episode:
    number: int
    pngs: list[memoryview]
    actions: NDArray[np.int64]
    rewards: NDArray[np.float32]
    terminated: bool

    @property
    def steps(self) -> int:
        return len(self.pngs) - 1

    @property
    def dropped(self) -> str:
        """Reason why the last row is left out."""
        if self.steps == 0:
            return "single_row_episode"
        return "terminal_filler" if self.terminated else "cut"


@dataclass(frozen=True, slots=True)
class _Pictures:
    pngs: list[memoryview]
    place: str

    def __len__(self) -> int:
        return len(self.pngs)

    def __getitem__(self, row: int, /) -> NDArray[np.uint8]:
        number = range(len(self.pngs))[row]
        with _damage(self.place):
            frame: NDArray[np.uint8] = decode_frames([self.pngs[number]], first=number)[0]
        return frame


@dataclass(frozen=True, slots=True)
class _Skimmed:
    """One episode, whose observations are not decoded yet."""

    steps: int
    data: Mapping[str, _Pictures]


@contextmanager
def _damage(place: str) -> Iterator[None]:
    with expecting(LAYOUT):
        try:
            yield
        except MalformedError as exc:
            raise CorruptShardError(f"{place}: {exc}") from exc


def _episode(features: Mapping[str, Feature]) -> _Episode:
    pngs = features.get("observations")
    if not isinstance(pngs, list) or not pngs:
        raise MalformedError("observations: expected at least one PNG, found none")
    actions = _column(features, "actions", np.int64, len(pngs))
    # Both are clipped, whatever their names say.
    rewards_name = "clipped_rewards" if "clipped_rewards" in features else "unclipped_rewards"
    rewards = _column(features, rewards_name, np.float32, len(pngs))
    discounts = _column(features, "discounts", np.float32, len(pngs))
    if not ((discounts >= 0) & (discounts <= 1)).all() or not discounts[:-1].all():
        raise MalformedError("discounts: expected numbers from 0 to 1, and 0 only at the end")
    if not np.isfinite(rewards).all():
        raise MalformedError(f"{rewards_name}: expected finite numbers")
    checkpoint = int(_column(features, "checkpoint_idx", np.int64, 1)[0])
    episode = int(_column(features, "episode_idx", np.int64, 1)[0])
    if not (0 <= checkpoint < 1000 and 0 <= episode < _EPISODES_PER_CHECKPOINT):
        raise MalformedError(f"checkpoint_idx, episode_idx: found {checkpoint}, {episode}")
    number = checkpoint * _EPISODES_PER_CHECKPOINT + episode
    return _Episode(number, pngs, actions[:-1], rewards[:-1], terminated=discounts[-1] == 0)


def _column(features: Mapping[str, Feature], name: str, dtype: type[np.generic], rows: int) -> NDArray[Any]:
    column = features.get(name)
    if not isinstance(column, np.ndarray) or column.dtype != dtype:
        found = "none" if column is None else "another type"
        raise MalformedError(f"{name}: expected a list of {np.dtype(dtype).name}, found {found}")
    if len(column) != rows:
        raise MalformedError(f"{name}: expected {rows:,} values, found {len(column):,}")
    return column


def _read(place: str, read: Callable[[], bytes]) -> _Episode:
    with _damage(place):
        return _episode(parse_example(read()))


def _steps(place: str, read: Callable[[], bytes], dropped: Counter[str]) -> Iterator[Block]:
    episode = _read(place, read)
    dropped[episode.dropped] += 1
    with _damage(place):
        yield from _blocks(episode)


def _blocks(episode: _Episode) -> Iterator[Block]:
    def read(name: str, start: int, stop: int) -> NDArray[Any]:
        if name in FLAGS:
            return last_flag(start, stop, episode.steps, is_set=episode.terminated == (name == "terminated"))
        if name == "observation":
            return decode_frames(episode.pngs[start:stop])
        return (episode.actions if name == "action" else episode.rewards)[start:stop]

    return episode_blocks(_SCHEMA, read, steps=episode.steps, number=episode.number, cut=not episode.terminated)
