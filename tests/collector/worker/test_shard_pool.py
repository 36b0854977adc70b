import logging
import shutil
import signal
import subprocess
from collections import Counter as Tally
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rlx
from rlx.collector.rollout.episodes import StepLayout
from rlx.collector.worker.pool import RemainingBudget, ShardPool, ShardTask
from rlx.collector.worker.shard_worker import Budget, Collection, ShardWorker, ShardWorkerConfig
from rlx.engine.actor import ActorDiedError
from rlx.engine.local_actors import InlineActors
from rlx.errors import CollectError
from rlx.manifest import Manifest, ShardRecord
from rlx.progress import Silent
from rlx.schema import Schema
from rlx.store.codec import NONE
from rlx.store.dataset_writer import DatasetWriter, shard_of
from rlx.store.verification import UNLISTED, verify
from rlx.store.writer import ShardFormat
from tests.collector.environments import Counter, Dying, Registered
from tests.verbs.datasets import tree, wait_until
from tests.verbs.processes import printed
from tests.verbs.test_collect import run_child, shards_listed

SCHEMA = Schema.of(observation=("int32", (2,)), action=("int64", ()))


def collected(path: Path, environment: Any = Counter, **given: Any) -> rlx.Dataset:
    rlx.collect(environment, output=path, **{"envs": 2, "workers": 2, "shard_steps": 60, **given})
    return rlx.open(path)


def check_whole(dataset: rlx.Dataset) -> None:
    """Every trajectory is an episode from its reset on, without a hole, that ends or is cut."""
    table = dataset.trajectories
    steps = dataset[np.arange(len(dataset))]
    now, then = steps["observation"][:, 0].numpy(), steps["next", "observation"][:, 0].numpy()
    np.testing.assert_array_equal(then, now + 1)
    starts = np.cumsum(table.length) - table.length
    assert (now[starts] % 100 == 0).all()
    assert (table.terminated | table.truncated).all()
    assert len(np.unique(table.episode)) == len(table)


@pytest.mark.parametrize("is_sync", [True, False])
@pytest.mark.parametrize("steps", [2, 5, 301, 2000])
def test_exactly_so_many_steps(tmp_path: Path, steps: int, is_sync: bool) -> None:
    dataset = collected(tmp_path / "set", steps=steps, sync=is_sync)
    assert len(dataset) == steps
    check_whole(dataset)
    assert dataset.manifest.missing == []
    assert verify(tmp_path / "set").ok
    assert not list(tmp_path.glob("set/shards/*.partial"))


@pytest.mark.parametrize("is_sync", [True, False])
def test_exactly_so_many_episodes(tmp_path: Path, is_sync: bool) -> None:
    dataset = collected(tmp_path / "set", episodes=31, sync=is_sync)
    assert len(dataset.trajectories) == 31
    assert set(dataset.trajectories.length.tolist()) == {3, 5}, "none is cut"
    check_whole(dataset)


class Watching(Silent):
    """Notes how many environments of this process are open whenever steps were made."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def advance(self, unit: str, amount: int) -> None:  # noqa: ARG002
        self.seen.append(Registered.opened["now"])


@pytest.mark.parametrize(("workers", "expected"), [(1, 2), (2, 0)])
def test_only_workers_open_environments(tmp_path: Path, workers: int, expected: int) -> None:
    Registered.opened.clear()
    progress = Watching()
    rlx.collect(Registered, output=tmp_path / "set", steps=50, envs=2, workers=workers, progress=progress)
    assert set(progress.seen) == {expected}
    assert (Registered.opened["ever"], Registered.opened["now"]) == (expected, 0)


def test_an_environment_that_is_given_stays_open_for_those_that_replace_a_worker(tmp_path: Path) -> None:
    given, progress = Registered(), Watching()
    Registered.opened["now"] = 1
    rlx.collect(given, output=tmp_path / "set", steps=50, envs=1, workers=2, progress=progress)
    assert set(progress.seen) == {1}
    assert Registered.opened["now"] == 0


def test_the_seed_decides_equal_shares(tmp_path: Path) -> None:
    for name in "ab":
        collected(tmp_path / name, "CartPole-v1", steps=500, workers=3)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    workers = Tally(shard.origin["worker"] for shard in Manifest.load(tmp_path / "a").shards)
    assert set(workers) == {0, 1, 2}


def test_workers_collect_what_one_with_all_environments_would(tmp_path: Path) -> None:
    two = collected(tmp_path / "two", "CartPole-v1", steps=400)
    one = collected(tmp_path / "one", "CartPole-v1", steps=400, workers=1, envs=4)

    def episodes(dataset: rlx.Dataset) -> list[bytes]:
        table = dataset.trajectories
        starts = np.cumsum(table.length) - table.length
        whole = [
            (start, start + n) for start, n, cut in zip(starts, table.length, table.truncated, strict=True) if not cut
        ]
        return sorted(dataset[int(start) : int(stop)]["observation"].numpy().tobytes() for start, stop in whole)

    common = set(episodes(one)) & set(episodes(two))
    assert len(common) >= min(len(episodes(one)), len(episodes(two))) - 4 > 3


def test_resumed_with_other_workers(tmp_path: Path) -> None:
    path = tmp_path / "set"
    collected(path, steps=200, workers=3)
    before = {file: data for file, data in tree(path).items() if "shards" in str(file)}
    for workers, steps in ((1, 300), (2, 501)):
        dataset = collected(path, steps=steps, workers=workers, resume=True)
        assert len(dataset) == steps
    check_whole(dataset)
    after = tree(path)
    assert all(after[file] == data for file, data in before.items())
    assert {shard.origin["session"] for shard in dataset.manifest.shards} == {0, 1, 2}


def test_episodes_before_a_failure_are_kept(tmp_path: Path) -> None:
    with pytest.raises(CollectError, match="the motor is hot") as error:
        collected(tmp_path / "set", lambda: Counter(fails_after=200), steps=10_000, shard_steps=10_000)
    assert "in the other process" in "".join(error.value.__notes__)
    dataset = rlx.open(tmp_path / "set")
    assert len(dataset) >= 300
    check_whole(dataset)
    assert len(collected(tmp_path / "set", steps=1000, resume=True)) == 1000


@pytest.mark.parametrize("is_sync", [True, False])
def test_a_worker_that_dies_is_replaced(tmp_path: Path, is_sync: bool, caplog: pytest.LogCaptureFixture) -> None:
    flag = tmp_path / "died"
    with caplog.at_level(logging.WARNING):
        dataset = collected(tmp_path / "set", lambda: Dying(flag, 300), steps=2000, sync=is_sync, shard_steps=100)
    assert flag.exists()
    assert "died (an actor's process was ended by SIGKILL" in caplog.text
    assert len(dataset) == 2000
    check_whole(dataset)
    assert {shard.origin["session"] for shard in dataset.manifest.shards} == {0, 1}
    assert not list(tmp_path.glob("set/shards/*.partial"))


def test_workers_that_die_again_and_again_end_the_run(tmp_path: Path) -> None:
    with pytest.raises(CollectError, match=r"died 3 times without progress, the last time so: .* SIGKILL"):
        collected(tmp_path / "set", lambda: Dying(None, 2), steps=20_000)


@pytest.mark.usefixtures("two_workers_of_ray")
def test_workers_on_ray_write_the_same_bytes(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    collected(here, "CartPole-v1", steps=500)
    collected(there, "CartPole-v1", steps=500, engine="ray")
    assert tree(here) == tree(there)


@pytest.mark.usefixtures("two_workers_of_ray")
def test_a_worker_on_ray_that_dies_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    flag = tmp_path / "died"
    with caplog.at_level(logging.WARNING):
        dataset = collected(tmp_path / "set", lambda: Dying(flag, 300), steps=2000, shard_steps=100, engine="ray")
    assert "died (an actor on the Ray cluster was lost" in caplog.text
    dataset = rlx.open(tmp_path / "set")
    assert len(dataset) == 2000
    check_whole(dataset)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_killed_and_resumed(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "set"
    options = ["CartPole-v1", "-o", str(path), "--steps", "9000000", "--shard-steps", "2000", "--workers", "2"]
    child = run_child([*options, "--async"])
    wait_until(lambda: shards_listed(path) >= 3)
    workers = children_of(child.pid)
    assert len(workers) == 2
    child.send_signal(number)
    _, errors = printed(child)
    assert child.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    assert number == signal.SIGKILL or "run the same command with --resume" in errors
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    listed = Manifest.load(path)
    assert len(listed.missing) == 2
    # What nobody lists may lie about, until somebody goes on.
    assert {problem.problem for problem in verify(path).problems} <= {UNLISTED}
    dataset = collected(path, "CartPole-v1", steps=listed.steps + 500, resume=True)
    assert len(dataset) == listed.steps + 500
    assert verify(path).ok


def children_of(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]


class Ledger:
    """A run whose workers are here, and die where a draw says so; it keeps the shards' records."""

    def __init__(
        self, folder: Path, envs: int, shard_steps: int, dies: Callable[[], bool], *, is_late: bool, journals: bool
    ) -> None:
        self.folder, self.envs, self.shard_steps, self.dies = folder, envs, shard_steps, dies
        self.is_late = is_late
        self.journals = folder / "journals" if journals else None
        self.records: dict[str, ShardRecord] = {}
        self.starts = 0
        self.steps = self.episodes = 0
        folder.mkdir(exist_ok=True)
        (folder / ".lock").touch()

    def start(self, worker: int) -> Any:  # noqa: ARG002  (all are alike)
        collection = Collection(Counter, num_envs=self.envs, shard_steps=self.shard_steps)
        return Mortal(ShardWorker(collection), self.dies, is_late=self.is_late)

    def config(self, worker: int, episodes: int) -> ShardWorkerConfig:
        self.starts += 1
        shards = ShardFormat(SCHEMA, "memmap", NONE)
        return ShardWorkerConfig(self.starts, worker, (worker + episodes, 1), self.folder, 1, shards, self.journals)

    def recover(self, worker: int, name: str) -> ShardRecord | None:
        assert name.startswith(f"{worker}-")
        if self.journals is None or not (journal := self.journals / name).exists():
            return None
        writer = DatasetWriter(self.folder, Manifest("counted", "memmap", NONE.to_json(), SCHEMA))
        return shard_of(journal, writer, writer.format())

    def decide(self, layouts: Sequence[StepLayout]) -> ShardFormat:
        assert layouts
        return ShardFormat(SCHEMA, "memmap", NONE)

    def shard(self, worker: int, number: int) -> str:
        return f"{worker}-{number}"

    def commit(self, worker: int, record: ShardRecord) -> None:
        assert record.name not in self.records
        assert record.name.startswith(f"{worker}-")
        self.records[record.name] = record
        if self.journals is not None:
            (self.journals / record.name).unlink()

    def remark(self, remarks: Mapping[str, int]) -> None:
        assert set(remarks) <= {"observation: outside its space"}  # of a Counter with many episodes

    def advance(self, steps: int, episodes: int) -> None:
        self.steps += steps
        self.episodes += episodes


class Mortal:
    """An actor of this process that may die before it answers; a late one has done the task then."""

    def __init__(self, worker: ShardWorker, dies: Callable[[], bool], *, is_late: bool) -> None:
        self._inline = InlineActors().start(lambda made: made, worker)
        self._dies = dies
        self._is_late = is_late
        self._is_dead = False

    def call(self, task: ShardTask) -> Future[Any]:
        if not self._is_dead and self._dies():
            self._is_dead = True
            if self._is_late:
                self._inline.call(task)
            self._inline.close()
        if self._is_dead:
            future: Future[Any] = Future()
            future.set_exception(ActorDiedError("it died"))
            return future
        return self._inline.call(task)

    def close(self, *, at_once: bool = False) -> None:
        self._inline.close(at_once=at_once)


BOOL = st.booleans()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_shares_and_deaths_give_exactly_as_much(tmp_path: Path, data: st.DataObject) -> None:
    workers, envs = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    counts_steps, is_sync = data.draw(st.booleans()), data.draw(st.booleans())
    amount = data.draw(st.integers(1, 1000 if counts_steps else 100))
    # Not so often that one worker could die three times in a row.
    deaths = data.draw(st.sets(st.integers(0, 30), max_size=2))
    calls = count()
    shard_steps, is_late, journals = data.draw(st.sampled_from([10, 50, 10_000])), *data.draw(st.tuples(BOOL, BOOL))
    shutil.rmtree(tmp_path / "journals", ignore_errors=True)
    ledger = Ledger(tmp_path, envs, shard_steps, lambda: next(calls) in deaths, is_late=is_late, journals=journals)

    def budget(size: int) -> RemainingBudget:
        return RemainingBudget(size) if counts_steps else RemainingBudget(episodes=size)

    shares = [amount // workers + (number < amount % workers) for number in range(workers)]
    budgets = [budget(share) for share in shares] if is_sync else [budget(amount)] * workers
    ShardPool(ledger, budgets, envs).collect()
    records = ledger.records.values()
    made = sum(record.steps if counts_steps else record.trajectories for record in records)
    assert made == amount == (ledger.steps if counts_steps else ledger.episodes), "what was lost is not counted"
    if is_sync:
        by_worker = Tally[int]()
        for record in records:
            by_worker[int(record.name[0])] += record.steps if counts_steps else record.trajectories
        assert [by_worker[number] for number in range(workers)] == shares


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budget": Budget()}, "expected a number of steps or of episodes, and not both"),
        ({"budget": Budget(5, 5)}, "expected a number of steps or of episodes, and not both"),
        ({"num_envs": 10**6}, "envs 1000000: expected 1 to 65,536"),
        ({"workers": 0}, "workers 0: expected 1 to 4,096"),
        ({"seed": -1}, "seed -1: expected at least 0"),
        ({"step_timeout": 0.0}, "step_timeout 0.0: expected more than 0"),
        ({"reward": "int8"}, "rewards of dtype 'int8': expected float32 or float64"),
    ],
)
def test_collections_that_cannot_be(given: dict[str, Any], message: str) -> None:
    with pytest.raises(CollectError, match=message):
        Collection(**{"environment": "CartPole-v1", "budget": Budget(10), **given})
