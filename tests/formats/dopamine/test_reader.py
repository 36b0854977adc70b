"""Dopamine's files: the contract of every source, real samples, and any ring at all against an oracle."""

import hashlib
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rlx.errors import CorruptShardError
from rlx.formats.common.source import Source
from rlx.formats.dopamine.reader import Dopamine, DopamineLayout, find_runs
from rlx.schema import Field, Role
from rlx.testing.source import SourceContract, Trajectory, merge, read, same
from tests.dopamine_files import PADDING, Episode, Ring, frame, remove_suffix, row_values, write_gz

SHARED = Path(__file__).parents[3] / "../shared/data/dqn"
needs_samples = pytest.mark.skipif(not SHARED.is_dir(), reason="the sample files are not beside the repository")


def make_run(root: Path, lengths: Sequence[int], capacity: int) -> Ring:
    """Terminal episodes of these lengths as run 1 of Pong."""
    ring = Ring(root / "Pong/1/replay_logs", capacity)
    ring.run(Episode(length) for length in lengths)
    return ring


class TestContract(SourceContract):
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        make_run(tmp_path, [30, 41, 17, 60, 25, 33], capacity=64)
        return tmp_path

    @pytest.fixture
    def source(self, root: Path) -> Dopamine:
        return DopamineLayout("Pong", 1).source(root)

    def needed_files(self, source: Source, shard: int) -> Sequence[str]:
        # The plan, made before, has read the others.
        source.notes  # noqa: B018
        return [name for name in source.files(shard) if any(part in name for part in ("observ", "action", "reward"))]


@dataclass(frozen=True)
class Expected:
    """Rows of the run that make up a trajectory, and how it is flagged."""

    rows: list[int]
    from_reset: bool
    terminated: bool

    @property
    def steps(self) -> int:
        return len(self.rows) - (not self.terminated)


def survivors(ring: Ring, episodes: Sequence[Episode], kept: Sequence[int]) -> list[Expected]:
    """What the files of some suffixes still hold of every episode: the oracle."""
    present = {row for suffix in kept for row in ring.logged[suffix]}
    runs: list[list[int]] = []
    for row in sorted(row for row in present if ring.journal[row] != PADDING):
        if row - 1 in present and ring.journal[row][1] > 0:
            runs[-1].append(row)
        else:
            runs.append([row])
    found = []
    for rows in runs:
        (number, first), (_, last) = ring.journal[rows[0]], ring.journal[rows[-1]]
        ended = episodes[number].end if last == episodes[number].length - 1 else "running"
        from_reset = first == 0 and (rows[0] == 0 or rows[0] - 1 in present)
        found.append(Expected(rows, from_reset, terminated=ended == "terminal"))
    return [one for one in found if one.steps]


def check(ring: Ring, episodes: Sequence[Episode], source: Dopamine) -> None:
    """Asserts that a source gives what the oracle says, and accounts for every slot of every file."""
    dropped: Counter[str] = Counter()
    found = [one for shard in source.shards() for one in merge(source.blocks(shard, dropped), source.schema)]
    expected = survivors(ring, episodes, source.shards())
    assert [one.steps for one in found] == [one.steps for one in expected]
    for trajectory, one in zip(found, expected, strict=True):
        observations = [frame(row, ring.shape) for row in one.rows]
        if one.terminated:
            observations.append(np.zeros(ring.shape, np.uint8))
        rows = one.rows[: one.steps]
        values = [(0, 0) if is_quiet(ring, episodes, row) else row_values(row) for row in rows]
        assert np.array_equal(trajectory["observation"], observations)
        assert trajectory["action"].tolist() == [action for action, _ in values]
        assert np.array_equal(trajectory["reward"], np.array([reward for _, reward in values], np.float32))
        flags = (trajectory["terminated"][-1], trajectory["truncated"][-1])
        assert flags == (one.terminated, not one.terminated)
        assert trajectory.cut == (not one.terminated)
        assert (trajectory.from_reset, trajectory.final_recorded) == (one.from_reset, not one.terminated)
    numbers = [one.episode for one in found]
    assert numbers == sorted(set(numbers))
    assert sum(one.steps for one in found) + dropped.total() == ring.capacity * len(source.shards())


def is_quiet(ring: Ring, episodes: Sequence[Episode], row: int) -> bool:
    number, step = ring.journal[row]
    return step in episodes[number].quiet


def is_ambiguous(ring: Ring) -> bool:
    """Whether nothing tells which lap the last file holds: no file before it, or only its padding left."""
    cursor = len(ring.journal) % ring.capacity
    if len(ring.logged) == 1:
        return len(ring.journal) >= ring.capacity
    before, last = ring.logged[-2:]
    is_lost = last[0] > before[-1] + 1
    return is_lost and all(
        ring.journal[row] == PADDING for row in (*before, *last) if cursor <= row % ring.capacity < ring.capacity - 1
    )


LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=25)


@given(LENGTHS, st.integers(6, 60), st.integers(1, 5), st.integers(1, 3), st.booleans())
def test_gives_back_what_was_added_but_for_what_the_ring_lost(
    lengths: list[int], capacity: int, stack: int, horizon: int, is_running: bool
) -> None:
    assume(stack + horizon <= capacity)
    episodes = [Episode(length) for length in lengths]
    if is_running:
        episodes[-1] = Episode(lengths[-1], "running")
    with tempfile.TemporaryDirectory() as folder:
        ring = Ring(Path(folder), capacity, stack=stack, horizon=horizon)
        ring.run(episodes)
        assume(not is_ambiguous(ring))
        check(ring, episodes, Dopamine(Path(folder), ".", "Pong/1"))


@given(LENGTHS, st.integers(8, 40), st.data())
def test_any_suffix_may_be_missing(lengths: list[int], capacity: int, data: st.DataObject) -> None:
    episodes = [Episode(length) for length in lengths]
    with tempfile.TemporaryDirectory() as folder:
        ring = Ring(Path(folder), capacity)
        ring.run(episodes)
        last = len(ring.logged) - 1
        kept = data.draw(st.sets(st.integers(0, last), min_size=1), label="kept")
        # A last file that only repeats the one before stands in for it, but says nothing of the lap it holds.
        is_copy = len(ring.journal) % capacity == capacity - 1
        assume(not is_ambiguous(ring) and not (is_copy and last in kept and last - 1 not in kept))
        for suffix in set(range(last + 1)) - kept:
            remove_suffix(Path(folder), suffix)
        source = Dopamine(Path(folder), ".", "Pong/1")
        assert list(source.shards()) == sorted(kept)
        assert source.notes.get("missing_source_files", []) == sorted(set(range(max(kept))) - kept)
        check(ring, episodes, source)


@st.composite
def new_episodes(draw: st.DrawFn) -> list[Episode]:
    """Episodes of the newer Dopamine, which may time out, with steps that look like padding but for the
    observation."""
    episodes = []
    for length in draw(LENGTHS):
        quiet = draw(st.frozensets(st.integers(0, length - 1), max_size=length))
        episodes.append(Episode(length, draw(st.sampled_from(["terminal", "timeout"])), quiet))
    return episodes


@given(new_episodes(), st.integers(12, 60))
def test_finds_episodes_that_timed_out(episodes: list[Episode], capacity: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ring = Ring(Path(folder), capacity, has_episode_ends=True)
        ring.run(episodes)
        # Quiet rows of two laps are the same, and then nothing tells that the lap before the last file was
        # lost. rows = [held[-1] for held in ring.logged] assume(not is_ambiguous(ring) and (len(rows) == 1 or
        # rows[-1] - rows[-2] < capacity)) check(ring, episodes, Dopamine(Path(folder), ".", "Pong/1"))


@pytest.mark.parametrize(("third", "padding_left"), [(43, 2), (42, 1), (41, 0)])
def test_a_lap_that_padding_jumped_over_is_a_gap(tmp_path: Path, third: int, padding_left: int) -> None:
    """Padding is written past row 93, at which the ring of 47 rows would have been logged."""
    episodes = [Episode(length) for length in (20, 20, third, 60, 30)]
    ring = Ring(tmp_path, 47)
    ring.run(episodes)
    assert [ring.journal[rows[0]] for rows in ring.logged[1:2]] == [PADDING if padding_left else (3, 0)]
    source = Dopamine(tmp_path, ".", "Pong/1")
    assert source.notes["steps_lost_before_shards"] == [1]
    assert [one.from_reset for one in read(source, 1)] == [padding_left > 0]
    check(ring, episodes, source)


def digests(trajectory: Trajectory) -> dict[str, object]:
    recorded = trajectory["observation"][: trajectory.steps + trajectory.final_recorded]
    return {
        "steps": trajectory.steps,
        "clipped_return": float(trajectory["reward"].sum()),
        "obs_sha256": hashlib.sha256(recorded.tobytes()).hexdigest(),
        "action_sha256": hashlib.sha256(trajectory["action"].astype("<i4").tobytes()).hexdigest(),
        "reward_sha256": hashlib.sha256(trajectory["reward"].tobytes()).hexdigest(),
    }


@needs_samples
class TestSamples:
    """Files written by Dopamine's and batch_rl's own code."""

    @pytest.mark.parametrize("run", ["Pong/1", "Breakout/2"])
    def test_every_episode_is_as_it_was_added(self, run: str) -> None:
        source = Dopamine(SHARED, f"{run}/replay_logs", run)
        found = [digests(one) for shard in source.shards() for one in read(source, shard)]
        assert found == json.loads((SHARED / "expected.json").read_text())[run]

    def test_only_the_lost_lap_is_missing(self) -> None:
        """Rows 4,391 to 8,782 were never written: the end of episode 4, the episodes 5 to 8 and one more."""
        source = Dopamine(SHARED, "Pong/3/replay_logs", "Pong/3")
        expected = json.loads((SHARED / "expected.json").read_text())["Pong/3"]
        found = [one for shard in source.shards() for one in read(source, shard)]
        assert [digests(one) for one in found[:4]] == expected[:4]
        assert [digests(one) for one in found[5:]] == expected[10:]
        cut = found[4]
        assert (cut.steps, expected[4]["steps"]) == (779, 789)
        assert cut.from_reset
        assert cut.final_recorded
        assert cut["truncated"].tolist() == [False] * (cut.steps - 1) + [True]
        assert cut.cut
        assert source.notes["steps_lost_before_shards"] == [1]


class TestFindRuns:
    @pytest.fixture
    def top(self, tmp_path: Path) -> Path:
        for run in ("Pong/1", "Pong/2", "Breakout/1"):
            Ring(tmp_path / "dqn" / run / "replay_logs", 16).run([Episode(5)])
        (tmp_path / "dqn/Qbert/1/replay_logs").mkdir(parents=True)
        return tmp_path

    @pytest.mark.parametrize(
        ("directory", "ids"),
        [
            (".", ["Breakout/1", "Pong/1", "Pong/2"]),
            ("dqn", ["Breakout/1", "Pong/1", "Pong/2"]),
            ("dqn/Pong", ["Pong/1", "Pong/2"]),
            ("dqn/Pong/2", ["Pong/2"]),
            ("dqn/Pong/2/replay_logs", ["Pong/2"]),
            ("dqn/Qbert", []),
        ],
    )
    def test_at_any_level(self, top: Path, directory: str, ids: list[str]) -> None:
        runs = find_runs(top / directory)
        assert [run.id for run in runs] == ids
        for run in runs:
            assert all((run.root / name).is_file() for name in run.files(0))


class TestPlanning:
    def test_needs_the_index_files_only(self, tmp_path: Path) -> None:
        make_run(tmp_path / "remote", [30, 41, 17, 60, 25, 33], capacity=64)
        layout = DopamineLayout("Pong", 1)
        index = [name for name in layout.index_files() if (tmp_path / "remote" / name).is_file()]
        for name in index:
            (tmp_path / "local" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(tmp_path / "remote" / name, tmp_path / "local" / name)
        planned, whole = (layout.source(tmp_path / base) for base in ("local", "remote"))
        assert planned.shards() == whole.shards() == [0, 1, 2]
        assert [planned.files(shard) for shard in planned.shards()] == [whole.files(s) for s in whole.shards()]
        assert planned.schema["observation"].shape == (84, 84)

    def test_a_shard_needs_only_its_files(self, tmp_path: Path) -> None:
        make_run(tmp_path / "remote", [30, 41, 17, 60, 25, 33], capacity=64)
        whole = DopamineLayout("Pong", 1).source(tmp_path / "remote")
        for shard in whole.shards():
            part = tmp_path / str(shard)
            for name in {*whole.files(shard), *DopamineLayout("Pong", 1).index_files()}:
                if (whole.root / name).is_file():
                    (part / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(whole.root / name, part / name)
            assert same(read(DopamineLayout("Pong", 1).source(part), shard), read(whole, shard))

    def test_a_long_episode_leaves_shards_empty(self, tmp_path: Path) -> None:
        make_run(tmp_path, [100, 5], capacity=20)
        source = DopamineLayout("Pong", 1).source(tmp_path)
        assert [len(read(source, shard)) for shard in source.shards()] == [1, 0, 0, 0, 0, 1]
        assert not any("observation" in name for name in source.files(2))


@dataclass
class RingWithMore(Ring):
    """A ring with Dopamine's ``extra_storage_types``: a number and a vector of every row, 0 in padding."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.logprob = np.full(self.capacity, 7, np.float64)
        self.params = np.full((self.capacity, 2), 7, np.float32)

    def _write(self, what: tuple[int, int], action: int, reward: float, terminal: int) -> None:
        row = len(self.journal)
        slot = row % self.capacity
        self.logprob[slot] = 0 if what == PADDING else row + 0.5
        self.params[slot] = 0 if what == PADDING else (row, -row)
        super()._write(what, action, reward, terminal)

    def _log(self, add_count: int) -> None:
        suffix = len(self.logged)
        super()._log(add_count)
        self.save("$store$_logprob", suffix, self.logprob)
        self.save("$store$_params", suffix, self.params)
        self.save("$store$_few", suffix, np.zeros(3))
        write_gz(self.folder / f"sum_tree_ckpt.{suffix}.gz", b"a pickle that must not be opened")


def test_extra_storage_types_are_fields(tmp_path: Path) -> None:
    ring = RingWithMore(tmp_path / "Pong/1/replay_logs", 64)
    ring.run(Episode(length) for length in [30, 41, 17, 60, 20, 33])
    (source,) = find_runs(tmp_path)
    assert source.schema["logprob"] == Field("float64", (), Role.STEP)
    assert source.schema["params"] == Field("float32", (2,), Role.STEP)
    found = [one for shard in source.shards() for one in read(source, shard)]
    rows = [row for row, what in enumerate(ring.journal) if what != PADDING]
    assert np.concatenate([one["logprob"] for one in found]).tolist() == [row + 0.5 for row in rows]
    assert np.concatenate([one["params"] for one in found]).tolist() == [[row, -row] for row in rows]
    assert source.notes["not_taken"] == {"$store$_few": "not one row per step", "sum_tree": "not part of any step"}
    assert any("$store$_params_ckpt.0.gz" in name for name in source.files(0))


def test_an_extra_storage_type_that_is_damaged_is_named(tmp_path: Path) -> None:
    ring = RingWithMore(tmp_path / "Pong/1/replay_logs", 64)
    ring.run([Episode(100)])
    path = ring.folder / "$store$_logprob_ckpt.1.gz"
    path.write_bytes(path.read_bytes()[:-1])
    (source,) = find_runs(tmp_path)
    with pytest.raises(CorruptShardError, match=r"\$store\$_logprob_ckpt\.1\.gz is corrupt"):
        read(source, 0)
