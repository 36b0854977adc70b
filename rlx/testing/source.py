"""What every Source keeps to: a suite that a source's own test file subclasses.

Two fixtures come from a subclass: ``root``, a directory the test may damage, and ``source``, which reads it::

    class TestMySource(SourceContract):
        @pytest.fixture
        def root(self, tmp_path: Path) -> Path: ...

        @pytest.fixture
        def source(self, root: Path) -> MySource: ...
"""

import pickle
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import CorruptShardError, SourceError, SourceNotFoundError
from rlx.formats.common.rows import episodes as row_episodes
from rlx.formats.common.source import MAX_BLOCK_STEPS, Source
from rlx.schema import Role, Schema


@dataclass
class Trajectory:
    """One trajectory put together again: L steps, L + 1 observations."""

    episode: int
    from_reset: bool
    final_recorded: bool = True
    cut: bool = False
    parts: dict[str, list[NDArray[Any]]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return np.concatenate(self.parts[name])

    @property
    def steps(self) -> int:
        return len(self["reward"])


def merge(blocks: Iterable[Block], schema: Schema) -> list[Trajectory]:
    """The whole trajectories of a shard's blocks; a trajectory left open at the end fails."""
    done: list[Trajectory] = []
    open_one: Trajectory | None = None
    for block in blocks:
        for segment, closed, parts in _segments(block, schema):
            episode, from_reset = int(block.episodes[segment]), bool(block.from_reset[segment])
            now = open_one or Trajectory(episode, from_reset)
            assert (now.episode, now.from_reset) == (episode, from_reset), "an open segment goes on as itself"
            for name, rows in parts.items():
                now.parts.setdefault(name, []).append(rows)
            if closed:
                now.final_recorded, now.cut = bool(block.final_recorded[segment]), bool(block.cut[segment])
                done.append(now)
            open_one = None if closed else now
    assert open_one is None, "the last trajectory of a shard is whole"
    return done


def _segments(block: Block, schema: Schema) -> Iterator[tuple[int, bool, dict[str, NDArray[Any]]]]:
    step = frame = 0
    for segment, length in enumerate(block.lengths.tolist()):
        closed = segment < block.closed
        rows = length + int(closed)
        yield (
            segment,
            closed,
            {
                name: array[frame : frame + rows]
                if schema[name].role == Role.OBSERVATION
                else array[step : step + length]
                for name, array in block.data.items()
            },
        )
        step, frame = step + length, frame + rows


def read(source: Source, shard: int) -> list[Trajectory]:
    """The trajectories of one shard."""
    return merge(source.blocks(shard, Counter()), source.schema)


def same(one: Sequence[Trajectory], other: Sequence[Trajectory]) -> bool:
    """Whether two readings are equal to the last bit."""
    return len(one) == len(other) and all(
        (a.episode, a.from_reset, a.final_recorded, a.cut) == (b.episode, b.from_reset, b.final_recorded, b.cut)
        and a.parts.keys() == b.parts.keys()
        and all(_same_rows(a[name], b[name]) for name in a.parts)
        for a, b in zip(one, other, strict=True)
    )


def _same_rows(one: NDArray[Any], other: NDArray[Any]) -> bool:
    is_text = one.dtype == object
    return one.dtype == other.dtype and (
        one.tolist() == other.tolist() if is_text else one.tobytes() == other.tobytes()
    )


class SourceContract:
    """The tests; see the module's docstring."""

    def needed_files(self, source: Source, shard: int) -> Sequence[str]:
        """Files without which ``blocks`` cannot do; fewer where the source has read some of them already."""
        return source.files(shard)

    def test_can_be_pickled(self, source: Source) -> None:
        copy = pickle.loads(pickle.dumps(source))
        shard = source.shards()[0]
        assert (copy.id, copy.schema, dict(copy.notes)) == (source.id, source.schema, dict(source.notes))
        assert same(read(copy, shard), read(source, shard))

    def test_id_is_a_relative_path_of_plain_words(self, source: Source) -> None:
        assert re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)*", source.id)

    def test_shards_ascend(self, source: Source) -> None:
        shards = list(source.shards())
        assert shards
        assert shards == sorted(set(shards))

    def test_files_lie_below_the_root(self, source: Source, root: Path) -> None:
        for shard in source.shards():
            assert source.files(shard)
            for name in source.files(shard):
                assert (root / name).resolve().is_relative_to(root.resolve())

    def test_blocks_fit_the_schema_and_are_not_too_long(self, source: Source) -> None:
        for shard in source.shards():
            for block in source.blocks(shard, Counter()):
                block.check(source.schema)
                assert block.steps <= MAX_BLOCK_STEPS

    def test_trajectories_are_whole_and_flagged_at_their_last_step_only(self, source: Source) -> None:
        for shard in source.shards():
            for trajectory in read(source, shard):
                assert trajectory.steps >= 1
                for name in source.schema.names(Role.OBSERVATION):
                    assert len(trajectory[name]) == trajectory.steps + 1
                    assert trajectory.final_recorded or not trajectory[name][-1].any()
                assert not trajectory["terminated"][:-1].any()
                assert not trajectory["truncated"][:-1].any()
                assert trajectory["terminated"][-1] or trajectory["truncated"][-1]
                assert trajectory["truncated"][-1] or not trajectory.cut

    def test_reading_twice_gives_the_same(self, source: Source) -> None:
        for shard in source.shards():
            counts: list[Counter[str]] = [Counter(), Counter()]
            one, other = (merge(source.blocks(shard, dropped), source.schema) for dropped in counts)
            assert same(one, other)
            assert counts[0] == counts[1]

    def test_missing_file(self, source: Source, root: Path) -> None:
        shard = source.shards()[0]
        for name in self.needed_files(source, shard):
            content = (root / name).read_bytes()
            (root / name).unlink()
            with pytest.raises(SourceNotFoundError, match=re.escape(Path(name).name)):
                read(source, shard)
            (root / name).write_bytes(content)

    def test_truncated_file(self, source: Source, root: Path) -> None:
        shard = source.shards()[0]
        for name in self.needed_files(source, shard):
            content = (root / name).read_bytes()
            for kept in (0, 1, len(content) // 2, len(content) - 1):
                (root / name).write_bytes(content[:kept])
                with pytest.raises(CorruptShardError, match=re.escape(Path(name).name)):
                    read(source, shard)
            (root / name).write_bytes(content)


class FileContract(SourceContract):
    """The suite of a source that is one file, which ``write`` makes with ``options`` and ``open`` opens."""

    file: ClassVar[str]
    write: ClassVar[Any]
    open: ClassVar[Any]
    options: ClassVar[Mapping[str, Any]] = {}

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        type(self).write(tmp_path / self.file, **self.options)
        return tmp_path

    @pytest.fixture
    def source(self, root: Path) -> Any:
        return type(self).open(root / self.file)


class SmallShards:
    """Shards of some steps and blocks of two, for sources of rows; goes before the suite."""

    steps_per_shard = 5

    @pytest.fixture(autouse=True)
    def _small_shards(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(row_episodes, "STEPS_PER_SHARD", self.steps_per_shard)
        monkeypatch.setattr(row_episodes, "block_steps", lambda _: 2)


def steps_or_error(open: Callable[[Path], Source], path: Path) -> int | str:
    """Steps that fit the schema, or a message that names the file."""
    try:
        source = open(path)
        found = [one for shard in source.shards() for one in read(source, shard)]
    except SourceError as exc:
        assert path.name in str(exc)  # noqa: PT017
        return str(exc)
    for one in found:
        for name in source.schema.names(Role.OBSERVATION):
            assert one[name].shape == (one.steps + 1, *source.schema[name].shape)
    return sum(one.steps for one in found)


def with_wrong_bytes(content: bytes, path: Path, places: Iterable[int]) -> Iterator[Path]:
    """Yield the path of a file with one wrong byte, for each of some places."""
    for place in places:
        path.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        yield path


def fuzz(open: Callable[[Path], Source], path: Path, files: Sequence[Path], cases: range) -> Counter[str]:
    """Read a source with some bytes of one of its files changed, or with the beginning of the file only.

    Returns how many cases gave steps, and how many an error, which has to name the path.
    """
    found = Counter[str]()
    for case in cases:
        dice = random.Random(case)
        file = dice.choice(files)
        whole = file.read_bytes()
        content, used = bytearray(whole), len(whole.rstrip(b"\0"))
        for _ in range(dice.choice((1, 3, 30)) if used else 0):
            content[dice.randrange(used)] = dice.randrange(256)
        file.write_bytes(content[: dice.randrange(len(content) + 1)] if case % 5 == 0 else content)
        found["steps" if isinstance(steps_or_error(open, path), int) else "error"] += 1
        file.write_bytes(whole)
    return found
