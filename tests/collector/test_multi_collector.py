"""Collecting in other processes: the same steps as in this one, whatever happens to them."""

import gc
import inspect
import logging
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from rlx.buffer import LazyTensorStorage, ReplayBuffer, SliceSampler
from rlx.collector import (
    Collector,
    DistributedCollector,
    MultiAsyncCollector,
    MultiCollector,
    MultiSyncCollector,
    ParallelEnv,
    SerialEnv,
)
from rlx.engine.local_actors import InlineActors, LocalActors
from rlx.errors import CollectError
from tests.collector.environments import Closing, Counter, Rich, Tagged, make_failing, one, two_counters
from tests.collector.memory import recurrent
from tests.collector.policies import Constant, Lean
from tests.collector.walks import Walk
from tests.verbs.datasets import wait_until

TAG, PID, EPISODE, TIME = range(4)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No test leaves processes or shared memory behind."""
    before = set(psutil.Process().children(recursive=True))
    yield
    found = [*Path("/dev/shm").glob("rlx-*")]  # perhaps of tests in another process, which remove theirs soon
    wait_until(lambda: not any(path.exists() for path in found))
    assert [child for child in psutil.Process().children(recursive=True) if child not in before] == []


def batches(sources: Any, policy: Any = one, **options: Any) -> list[Any]:
    """All batches of workers in other processes, or with ``actors`` wherever those are."""
    with MultiCollector(sources, policy, **options) as collector:
        return list(collector)


def batches_here(sources: Any, policy: Any = one, **options: Any) -> list[Any]:
    """The same of workers in this process: what they give does not depend on where they are."""
    return batches(sources, policy, actors=InlineActors(), **options)


class ByValue(LocalActors):
    """Processes that might be anywhere."""

    shares_memory = False


def assert_same_but_for_ids(found: Any, expected: Any) -> None:
    keys = [key for key in expected.keys(True, True) if key != ("collector", "traj_ids")]
    assert set(found.keys(True, True)) == {*keys, ("collector", "traj_ids")}
    assert all(torch.equal(found[key], expected[key]) for key in keys)


@pytest.mark.parametrize("actors", [LocalActors, ByValue])
def test_the_same_as_in_one_process(actors: type[LocalActors]) -> None:
    """Two workers of two environments are four environments in turn."""
    with Collector(SerialEnv(4, "CartPole-v1"), frames_per_batch=120, total_frames=303, seed=3) as collector:
        expected: list[Any] = list(collector)
    options = {"frames_per_batch": 120, "total_frames": 303, "seed": 3}
    sources = [SerialEnv(2, "CartPole-v1")] * 2
    flat = batches(sources, None, actors=actors(), cat_results=0, **options)
    stacked = batches_here(sources, None, **options)
    in_time = batches_here(sources, None, cat_results=-1, **options)
    assert [list(batch.shape) for batch in flat] == [[4, 30], [4, 30], [4, 15], [2, 1], [1, 1]]
    assert [list(batch.shape) for batch in stacked] == [[2, 2, 30], [2, 2, 30], [2, 2, 15], [1, 2, 1], [1, 1]]
    assert [list(batch.shape) for batch in in_time] == [[2, 60], [2, 60], [2, 30], [2, 1], [1, 1]]
    for batch, alone in zip(flat[:3], expected[:3], strict=True):
        assert_same_but_for_ids(batch, alone)
    assert_same_but_for_ids(flat[3], expected[3][:2])
    for batch, same in zip(flat, stacked, strict=True):
        assert (same.reshape(batch.shape) == batch).all()
        assert same.names[-1] == "time"
    for batch, same in zip(flat[:3], in_time[:3], strict=True):
        halves = same.reshape(2, 2, -1).permute(1, 0, 2).reshape(4, -1)
        assert (halves == batch).all()
    ids: Any
    alone_ids: Any
    ids, alone_ids = (torch.cat([batch["collector", "traj_ids"] for batch in of[:3]], 1) for of in (flat, expected))
    pairs = set(zip(ids.flatten().tolist(), alone_ids.flatten().tolist(), strict=True))
    assert len(pairs) == len(ids.unique()) == len(alone_ids.unique()), "one id for another"
    assert (ids.diff(dim=1) >= 0).all()


def test_single_environments() -> None:
    stacked, rest = batches([Counter] * 3, frames_per_batch=13, total_frames=13)
    assert (list(stacked.shape), list(rest.shape)) == ([3, 4], [1, 1])
    assert stacked["observation"][:, :, 0].tolist() == [[0, 1, 2, 100]] * 3
    assert stacked["next", "observation"][:, :, 0].tolist() == [[1, 2, 3, 101]] * 3
    assert stacked["collector", "traj_ids"].tolist() == [[0, 0, 0, 3], [1, 1, 1, 4], [2, 2, 2, 5]]
    flat, _ = batches_here([Counter] * 3, frames_per_batch=13, total_frames=13, cat_results=0)
    assert (flat == stacked.reshape(-1)).all()
    assert flat.names == ["time"]


def test_a_part_for_every_worker() -> None:
    (batch,) = batches_here(
        [partial(Tagged, 0), partial(Tagged, 1)], frames_per_batch=[4, 6], total_frames=10, cat_results=0
    )
    assert batch["observation"][:, TAG].tolist() == [0] * 4 + [1] * 6
    assert batch["observation"][:, TIME].tolist() == [0, 1, 2, 0, 0, 1, 2, 0, 1, 2]


def test_every_episode_lasts_a_step() -> None:
    """More last observations than there is room for in the shared memory."""
    (batch,) = batches([lambda: Counter((1,))] * 2, frames_per_batch=60, total_frames=60)
    assert (batch["next", "observation"] == batch["observation"] + 1).all()
    assert (batch["observation"][0, :, 0] == 100 * torch.arange(30)).all()
    assert batch["next", "done"].all()


def test_spaces_with_parts() -> None:
    (batch,) = batches([Rich] * 2, None, frames_per_batch=20, total_frames=20)
    assert batch["observation", "picture"].shape == (2, 10, 40, 40)
    vector = batch["observation", "vector"]
    np.testing.assert_array_equal(batch["next", "observation", "vector"], (vector + 0.25) % 1.25)


def test_first_come_first_served() -> None:
    sources = [partial(Tagged, 0), partial(Tagged, 1, sleeps=0.02)]
    found = batches(sources, frames_per_batch=10, total_frames=95, sync=False)
    assert sorted(batch.shape[0] for batch in found) == [5] + [10] * 9
    tags = [batch["observation"][:, TAG].unique().tolist() for batch in found]
    assert all(len(of_batch) == 1 for of_batch in tags), "a batch is one worker's"
    assert tags.count([0]) > tags.count([1]) > 0
    assert_consecutive(found)
    two = batches([two_counters] * 2, frames_per_batch=10, total_frames=41, sync=False)
    assert sorted(list(batch.shape) for batch in two) == [[1, 1], [2, 5], [2, 5], [2, 5], [2, 5]]


def assert_consecutive(found: list[Any]) -> None:
    """The batches of every worker go on where its last one stopped; ids belong to one episode each."""
    everything: Any = torch.cat(found)
    owners: dict[int, tuple[int, ...]] = {}
    for row, number in zip(everything["observation"], everything["collector", "traj_ids"].tolist(), strict=True):
        assert owners.setdefault(number, tuple(row[:3].tolist())) == tuple(row[:3].tolist())
    for pid in everything["observation"][:, PID].unique():
        mine = everything[everything["observation"][:, PID] == pid]
        assert (mine["next", "observation"][:, TIME] == mine["observation"][:, TIME] + 1).all()
        assert (mine["next", "observation"][:, EPISODE] == mine["observation"][:, EPISODE]).all()
        goes_on = ~mine["next", "done"][:-1, 0]
        assert (mine["next", "observation"][:-1][goes_on] == mine["observation"][1:][goes_on]).all()
        assert (mine["collector", "traj_ids"].diff() >= 0).all()


@pytest.mark.parametrize("whole", [False, True])
def test_a_reset_of_one_worker_leaves_the_steps_of_the_others(whole: bool) -> None:
    sizes: dict[str, Any] = {"trajs_per_batch": 2, "traj_format": "cat"} if whole else {"frames_per_batch": 8}
    sources = [partial(Tagged, tag, lengths=(7,)) for tag in range(2)]
    with MultiCollector(sources, one, sync=False, total_frames=320, **sizes) as collector:
        found: list[Any] = [collector.next() for _ in range(4)]
        for _ in range(2):  # the second one while the orders of before the first may still be open
            collector.reset([True, False])
        after: list[Any] = list(collector)
    everything: Any = torch.cat([*found, *after])
    other = everything[everything["observation"][:, TAG] == 1]
    assert_consecutive([other])
    episodes = other["observation"][:, EPISODE].unique().tolist()
    assert episodes == list(range(len(episodes)))
    assert len(everything) == 320
    later: Any = torch.cat(after)
    mine = later[later["observation"][:, TAG] == 0]
    assert_consecutive([mine])
    assert mine["observation"][0, TIME] == 0
    before = everything["collector", "traj_ids"][: len(everything) - len(later)]
    assert not set(mine["collector", "traj_ids"].tolist()) & set(before.tolist())


def test_batches_are_not_overwritten() -> None:
    with MultiCollector([Counter] * 2, one, sync=False, frames_per_batch=8, total_frames=160) as collector:
        kept = [(batch, batch.clone()) for batch in collector if batch is not None]
    assert all((batch == copy).all() for batch, copy in kept)


@pytest.mark.parametrize("sync", [True, False])
def test_whole_episodes(sync: bool) -> None:
    sources = [partial(Tagged, tag) for tag in range(2)]
    collect = batches_here if sync else batches
    found = collect(sources, trajs_per_batch=3, total_frames=80, sync=sync)
    counts = [steps for batch in found for steps in batch["collector", "mask"].sum(1).tolist()]
    assert sum(counts) == 80
    assert set(counts[:-2]) == {3, 5}
    assert all(len(batch) == 3 for batch in found[:-1])
    for batch in found:
        for row, mask in zip(batch, batch["collector", "mask"], strict=True):
            steps = row[mask]
            assert steps["observation"][:, TIME].tolist() == list(range(len(steps)))
            assert len(steps["observation"][:, :3].unique(dim=0)) == 1
            assert steps["next", "done"][:, 0].tolist() == [False] * (len(steps) - 1) + [True]
    ids = [number for batch in found for number in batch["collector", "traj_ids"][:, 0].tolist()]
    assert ids == list(range(len(ids)))


@pytest.mark.parametrize(("actors", "workers"), [(LocalActors, 2), (ByValue, 1)])
def test_new_weights_are_in_use_from_the_next_batch(actors: type[LocalActors], workers: int) -> None:
    policy = Lean()
    found = []
    with MultiCollector(
        [Counter] * workers, policy, frames_per_batch=4, total_frames=12, track_policy_version=True, actors=actors()
    ) as collector:
        for number, batch in enumerate(collector, 1):
            assert batch is not None
            found.append((batch["policy_version"].unique().tolist(), batch["action"].unique().tolist()))
            with torch.no_grad():
                policy.action.fill_(2)
                policy.action.fill_(number)
            collector.update_policy_weights_()
        assert collector.policy_version == 3
    assert found == [([0], [0]), ([1], [1]), ([2], [2])]


def test_the_version_is_that_of_the_weights_that_chose() -> None:
    """Without waiting for each other, workers use what there is when they begin a batch."""
    policy = Constant()
    with MultiCollector(
        [partial(Tagged, tag, sleeps=0.001) for tag in range(2)],
        policy,
        sync=False,
        frames_per_batch=4,
        total_frames=400,
        track_policy_version=True,
    ) as collector:
        seen = []
        for number, batch in enumerate(collector, 1):
            assert batch is not None
            (version,) = batch["policy_version"].unique().tolist()
            assert (batch["action"] == version % 3).all()
            seen.append((number - 1, version))
            collector.update_policy_weights_({"action": torch.tensor(number % 3)})
    assert all(version <= now for now, version in seen)
    assert seen[-1][1] >= seen[-1][0] - 6, "at most two batches ahead, of each of two workers"


def test_random_at_first() -> None:
    first, second = batches_here([Counter] * 2, frames_per_batch=100, total_frames=200, init_random_frames=100)
    assert set(first["action"].flatten().tolist()) == {0, 1, 2}
    assert set(second["action"].flatten().tolist()) == {1}


def test_new_episodes_in_every_batch() -> None:
    options = {"frames_per_batch": 8, "total_frames": 16, "reset_at_each_iter": True}
    first, second = batches_here([lambda: Counter((50,))] * 2, **options)
    assert first["next", "truncated"][..., 0].tolist() == [[False, False, False, True]] * 2
    assert second["observation"][:, 0, 0].tolist() == [100, 100]
    assert second["collector", "traj_ids"].tolist() == [[2] * 4, [3] * 4]


def test_long_trajectories_are_truncated_and_batches_too() -> None:
    (batch,) = batches_here(
        [Counter] * 2, frames_per_batch=6, total_frames=6, max_frames_per_traj=2, set_truncated=True
    )
    assert batch["next", "truncated"][..., 0].tolist() == [[False, True, True]] * 2


def test_the_same_seed_gives_the_same_batches() -> None:
    first, again, other = (
        batches_here(["CartPole-v1"] * 2, None, frames_per_batch=40, total_frames=80, seed=seed)[1]
        for seed in (1, 1, 2)
    )
    assert (first == again).all()
    assert not (first == other).all()
    assert not torch.equal(first["observation"][0], first["observation"][1])


def test_stragglers_are_stopped() -> None:
    sources: Any = [partial(Tagged, 0), partial(Tagged, 1), partial(Tagged, 2, sleeps=0.1)]
    found = batches(sources, frames_per_batch=30, total_frames=45, preemptive_threshold=0.7)
    assert sum(int(batch["collector", "mask"].sum()) for batch in found) == 45
    first = found[0]
    assert list(first.shape) == [3, 10]
    mask = first["collector", "mask"]
    assert mask[:2].all()
    steps = int(mask[2].sum())
    assert steps < 10
    assert mask[2].tolist() == [True] * steps + [False] * (10 - steps)
    assert (first["collector", "traj_ids"][~mask] == -1).all()
    assert not first["next", "observation"][~mask].any()
    assert_consecutive([batch[batch["collector", "mask"]] for batch in found])


def test_holes_do_not_reach_a_buffer() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=8)
    sources = [partial(Tagged, 0), partial(Tagged, 1, sleeps=0.05)]
    options = {"preemptive_threshold": 0.5, "replay_buffer": buffer}
    assert set(batches(sources, frames_per_batch=20, total_frames=60, **options)) == {None}
    assert len(buffer) == 60
    assert_consecutive([buffer[:]])


def test_slices_of_workers_who_write_as_they_come() -> None:
    """Whatever order their batches come in, a slice is consecutive steps of one episode of one environment."""
    sampler = SliceSampler(num_slices=4, trajectory_key=("collector", "traj_ids"), seed=0)
    buffer = ReplayBuffer(storage=LazyTensorStorage(300), sampler=sampler, batch_size=32)
    sources = [partial(Tagged, tag, (9, 13), sleeps=0.0005 * tag) for tag in range(3)]
    with MultiCollector(sources, one, sync=False, frames_per_batch=7, total_frames=1000) as collector:
        for number, batch in enumerate(collector):
            assert batch is not None
            buffer.extend(batch)
            if number < 20:
                continue
            slices = buffer.sample()["observation"].reshape(4, 8, 4)
            assert (slices[:, :, :3] == slices[:, :1, :3]).all()
            assert (slices[:, :, TIME].diff(dim=1) == 1).all()


def test_a_worker_that_is_killed_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    sources = [partial(Tagged, tag, (50,)) for tag in range(2)]
    with MultiCollector(sources, one, frames_per_batch=20, total_frames=80) as collector:
        found: list[Any] = []
        for batch in collector:
            assert batch is not None
            found.append(batch)
            if len(found) == 2:
                os.kill(int(batch["observation"][1, 0, PID]), signal.SIGKILL)
    assert [list(batch.shape) for batch in found] == [[2, 10]] * 4
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(
        "worker 1 died (an actor's process was ended by SIGKILL) and is replaced, and its unfinished"
    )
    whole: Any = torch.cat(found, 1)
    assert whole["observation"][0, :, TIME].tolist() == list(range(40)), "the other one went on"
    assert whole["observation"][1, :, TIME].tolist() == list(range(20)) * 2
    assert whole["collector", "traj_ids"][1].tolist() == [1] * 20 + [3] * 20, "the lost trajectory does not go on"
    assert_consecutive([whole.reshape(-1)])


def test_a_killed_worker_and_whole_episodes(caplog: pytest.LogCaptureFixture) -> None:
    """Steps of the episode that is dropped are collected once more."""
    sources = [partial(Tagged, 0, (12,), sleeps=0.002), partial(Tagged, 1, (12,), dies=40)]
    found = batches(sources, trajs_per_batch=2, total_frames=200, sync=False)
    assert "worker 1 died" in caplog.text
    counts = [steps for batch in found for steps in batch["collector", "mask"].sum(1).tolist()]
    assert sum(counts) == 200
    assert set(counts[:-2]) == {12}


@pytest.mark.parametrize("sync", [True, False])
def test_a_worker_that_keeps_dying_ends_the_run(sync: bool) -> None:
    sources = [partial(Tagged, 0), partial(Tagged, 1, dies=7)]
    with pytest.raises(CollectError, match=r"worker 1 died 3 times without progress, the last .* SIGKILL"):
        batches(sources, frames_per_batch=40, sync=sync)


def test_one_that_dies_when_it_is_made() -> None:
    with pytest.raises(CollectError, match=r"worker 0 died 3 times without progress, the last .* exit code 7"):
        MultiCollector([lambda: os._exit(7)], frames_per_batch=10)


@pytest.mark.parametrize("sync", [True, False])
def test_an_environment_that_fails(sync: bool) -> None:
    collector = MultiCollector([Counter, make_failing], one, frames_per_batch=60, sync=sync)
    with pytest.raises(CollectError, match="failed in step: RuntimeError: the motor is hot") as error:
        for _ in collector:
            pass
    text = "".join(traceback.format_exception(error.value))
    assert 'environments.py", line' in text, "where it was raised, in the other process"
    with pytest.raises(CollectError, match="shut down"):
        next(iter(collector))


def test_a_policy_that_fails() -> None:
    def policy(observation: Any) -> Any:
        raise ZeroDivisionError(f"of {observation.shape}")

    with pytest.raises(CollectError, match=r"policy failed: ZeroDivisionError: of \(1, 2\)"):
        batches([Counter] * 2, policy, frames_per_batch=60)


def test_the_state_goes_on_with_new_episodes() -> None:
    options = {"frames_per_batch": 40, "total_frames": 120, "sync": False}
    with MultiCollector(["CartPole-v1"], Constant(), **options) as collector:  # type: ignore[arg-type]
        before: Any = next(iter(collector))
        state = collector.state_dict()
    policy = Constant(1)
    with MultiCollector(["CartPole-v1"], policy, **options) as collector:  # type: ignore[arg-type]
        next(iter(collector))
        collector.load_state_dict(state)
        after: list[Any] = list(collector)
    assert sum(map(len, after)) == 80
    assert min(int(batch["collector", "traj_ids"].min()) for batch in after) > before["collector", "traj_ids"].max()
    assert not any(torch.equal(batch["observation"][0], before["observation"][0]) for batch in after)
    assert policy.action == 0
    assert not any(batch["action"].any() for batch in after), "weights of the state are in use"


def test_stopping_early_closes_the_environments(tmp_path: Path) -> None:
    """In the middle of a batch."""
    sources = [partial(Closing, tmp_path / str(worker), sleeps=0.05) for worker in range(2)]
    with MultiCollector(sources, one, frames_per_batch=10, sync=False) as collector:
        next(iter(collector))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_a_forgotten_collector_leaves_nothing() -> None:
    collector = MultiCollector([partial(Tagged, 0)], one, frames_per_batch=10)
    batch = next(iter(collector))
    assert batch is not None
    worker = psutil.Process(int(batch["observation"][0, 0, PID]))
    assert _lives(worker)
    del collector
    gc.collect()
    assert not _lives(worker)


def test_environments_with_processes_of_their_own() -> None:
    env = ParallelEnv(2, partial(Tagged, 0))
    (batch,) = batches([env] * 2, frames_per_batch=20, total_frames=20)
    assert list(batch.shape) == [2, 2, 5]
    assert len(batch["observation"][..., PID].unique()) == 4


GUARDLESS = """
import gymnasium
from rlx.collector import Collector, ParallelEnv

class Mine(gymnasium.Wrapper):
    pass

def make():
    return Mine(gymnasium.make("Pendulum-v1"))

print("started", flush=True)
for batch in Collector(ParallelEnv(2, make), frames_per_batch=20, total_frames=40):
    print(*batch.shape, flush=True)
"""


def test_a_script_without_a_guard_has_environments_with_processes_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(GUARDLESS)
    script = subprocess.run([sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, check=False)
    assert script.stdout.splitlines() == ["started", "2 10", "2 10"], script.stderr
    assert script.stderr == ""


class Unsendable(Counter):
    """Has a lock, as an emulator might."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


SCRIPT = """
import functools, sys
import numpy as np
from rlx.collector import MultiCollector
from tests.collector.environments import Tagged

sources = [functools.partial(Tagged, n) for n in range(2)]
collector = MultiCollector(sources, sync=sys.argv[1] == "sync", frames_per_batch=20)
for number, batch in enumerate(collector):
    if number == 3:
        print(*set(batch["observation"][..., 1].flatten().tolist()), flush=True)
"""


@pytest.mark.parametrize(
    ("mode", "number"), [("sync", signal.SIGINT), ("async", signal.SIGINT), ("sync", signal.SIGKILL)]
)
def test_a_script_that_is_interrupted_leaves_nothing(tmp_path: Path, mode: str, number: signal.Signals) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), mode]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    script = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )
    with script:
        assert script.stdout is not None
        assert script.stderr is not None
        workers = [psutil.Process(int(pid)) for pid in script.stdout.readline().split()]
        os.killpg(script.pid, number)
        errors = script.stderr.read()
        script.wait(60)
    if number == signal.SIGINT:
        assert "KeyboardInterrupt" in errors
        assert "resource_tracker" not in errors
        assert errors.count("Traceback") == 1, "workers say nothing"
    assert workers
    wait_until(lambda: not any(map(_lives, workers)))


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_mistakes() -> None:
    two: Any = [Counter] * 2
    nothing: list[Any] = []
    for sources in ("CartPole-v1", nothing, Counter):
        with pytest.raises(CollectError, match="expected a list"):
            MultiCollector(sources, frames_per_batch=10)  # type: ignore[arg-type]
    with pytest.raises(CollectError, match="expected frames_per_batch or trajs_per_batch"):
        MultiCollector(two)
    with pytest.raises(CollectError, match="expected 'stack', 0 or -1"):
        MultiCollector(two, frames_per_batch=10, cat_results=1)  # type: ignore[arg-type]
    with pytest.raises(CollectError, match="frames_per_batch has 1 entries"):
        MultiCollector(two, frames_per_batch=[10])
    with pytest.raises(CollectError, match="threshold 2"):
        MultiCollector(two, frames_per_batch=10, preemptive_threshold=2)
    with pytest.raises(CollectError, match="sync=True"):
        MultiCollector(two, frames_per_batch=10, preemptive_threshold=0.5, sync=False)
    buffer = ReplayBuffer(storage=LazyTensorStorage(10, ndim=2))
    with pytest.raises(CollectError, match="ndim=1"):
        MultiCollector(two, frames_per_batch=10, preemptive_threshold=0.5, replay_buffer=buffer)
    with pytest.raises(CollectError, match=r"worker 1: environment .* cannot be sent"):
        MultiCollector([Counter, Unsendable()], frames_per_batch=10)


def test_workers_that_do_not_go_together() -> None:
    with pytest.raises(CollectError, match=r"workers of \[1, 2\] environments"):
        batches_here([Counter, two_counters], frames_per_batch=20)
    with pytest.raises(CollectError, match=r"that make \[2, 3\] steps"):
        batches_here([Counter] * 2, frames_per_batch=[2, 3])
    with pytest.raises(CollectError, match="worker 1's environment has spaces"):
        batches_here([Counter, Rich], frames_per_batch=20)
    with pytest.raises(CollectError, match="batches of 1: expected at least 2 of 2"):
        batches_here([two_counters] * 2, frames_per_batch=2)
    with pytest.raises(CollectError, match="'CartPool-v1' is unknown"):
        MultiCollector(["CartPool-v1"], frames_per_batch=2)


@pytest.mark.parametrize("mode", ["sync", "async", "preemptive"])
def test_workers_keep_what_a_policy_writes_and_carry_its_state(mode: str) -> None:
    policy = recurrent()
    options: dict[str, Any] = {"frames_per_batch": 40, "total_frames": 160, "sync": mode != "async"}
    if mode == "preemptive":
        options["preemptive_threshold"] = 0.5
    if mode == "sync":  # whose workers do the same in this process
        options["actors"] = InlineActors()
    with MultiCollector([Walk, partial(Walk, 1)], policy, **options) as collector:
        batches: list[Any] = []
        for batch in collector:
            assert batch is not None
            batches.append(batch.clone())
            collector.update_policy_weights_()
    for batch in batches:
        assert {"h", "logits", "action_log_prob", "is_init"} <= set(batch.keys())
        assert ("policy_version" in batch.keys()) == (mode == "async")  # noqa: SIM118
        rows = batch if batch.batch_dims == 2 else batch[None]
        ids = rows["collector", "traj_ids"]
        follows = (ids[:, 1:] == ids[:, :-1]) & (ids[:, 1:] >= 0)
        assert torch.equal(rows["next", "h"][:, :-1][follows], rows["h"][:, 1:][follows])
        assert not rows["h"][rows["is_init"][..., 0]].any()
        assert rows["action_log_prob"][ids >= 0].all()


def test_workers_leave_out_what_they_are_told_to() -> None:
    (batch,) = batches_here([Walk], recurrent(), frames_per_batch=20, total_frames=20, drop=["h", "logits"])
    assert set(batch.keys()) >= {"action", "action_log_prob"}
    assert {"h", "logits"}.isdisjoint(batch.keys())


@pytest.mark.parametrize("kind", [MultiSyncCollector, MultiAsyncCollector])
def test_help_shows_all_arguments(kind: type[MultiCollector]) -> None:
    assert inspect.signature(kind) == inspect.signature(MultiCollector)


def test_arguments_that_exclude_each_other() -> None:
    with pytest.raises(CollectError, match="policy and policy_factory: expected only one of them"):
        MultiCollector([Counter], one, policy_factory=[Lean], frames_per_batch=4, actors=InlineActors())
    with pytest.raises(CollectError, match="trajs_per_batch 0: expected at least 1"):
        MultiCollector([Counter], one, trajs_per_batch=0, actors=InlineActors())
    with pytest.raises(CollectError, match="step_timeout: a DistributedCollector does not support it"):
        DistributedCollector([Counter], one, frames_per_batch=4, step_timeout=1.0)
