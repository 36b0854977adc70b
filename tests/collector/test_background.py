"""TorchRL's further methods of collectors: next, set_seed, reset, start, pause; and how envs and policies are made."""

import logging
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule

from rlx.buffer import LazyTensorStorage, ReplayBuffer, SliceSampler
from rlx.collector import Collector, DistributedCollector, GymEnv, MultiCollector, SerialEnv
from rlx.engine.local_actors import InlineActors
from rlx.errors import CollectError
from tests.collector.environments import Counter, Tagged, make_failing, one


def memory(steps: int = 4000) -> ReplayBuffer:
    return ReplayBuffer(storage=LazyTensorStorage(steps), batch_size=32)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def assert_same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found.exclude("collector"), expected.exclude("collector"), rtol=0, atol=0)


def test_next_gives_what_iterating_does() -> None:
    with Collector("CartPole-v1", frames_per_batch=20, total_frames=50) as collector:
        first = collector.next()
        rest = list(collector)
        assert collector.next() is None
    with Collector("CartPole-v1", frames_per_batch=20, total_frames=50) as collector:
        expected = list(collector)
    for found, batch in zip([first, *rest], expected, strict=True):
        assert_same(found, batch)


def test_set_seed_begins_what_a_collector_of_this_seed_gives() -> None:
    options: dict[str, Any] = {"frames_per_batch": 20, "total_frames": 60}
    with Collector(SerialEnv(2, "CartPole-v1"), **options) as collector:
        before = collector.next()
        assert collector.set_seed(7) != 7
        found = list(collector)
    with Collector(SerialEnv(2, "CartPole-v1"), seed=7, **options) as collector:
        expected = list(collector)
    assert len(found) == 2
    for batch, other in zip(found, expected, strict=False):
        assert_same(batch, other)
    assert before is not None
    ids = [batch["collector", "traj_ids"] for batch in (before, *found) if batch is not None]
    assert ids[1].min() > ids[0].max()
    with pytest.raises(CollectError, match="static_seed=True"):
        collector.set_seed(0, static_seed=True)


def test_set_seed_of_workers_that_make_a_batch_ahead() -> None:
    with MultiCollector([partial(Tagged, 0)], one, sync=False, frames_per_batch=6, total_frames=60) as collector:
        collector.next()
        collector.set_seed(3)
        batches = list(collector)
    starts = [batch["observation"][0, 3] for batch in batches if batch is not None]
    assert starts[0] == 0
    assert sum(len(batch) for batch in batches if batch is not None) == 54


def test_reset_begins_new_trajectories() -> None:
    with Collector(SerialEnv(2, lambda: Counter((5,))), one, frames_per_batch=6, total_frames=18) as collector:
        first = collector.next()
        collector.reset()
        second, third = collector
    assert first is not None
    assert second is not None
    assert third is not None
    assert second["observation"][:, :, 0].tolist() == [[100, 101, 102]] * 2
    assert first["collector", "traj_ids"].unique().tolist() == [0, 1]
    assert second["collector", "traj_ids"].unique().tolist() == [2, 3]
    assert third["collector", "traj_ids"].unique().tolist() == [2, 3, 4, 5]


def test_reset_of_some_workers() -> None:
    with MultiCollector(
        [lambda: Counter((9,))] * 2, one, frames_per_batch=6, total_frames=12, actors=InlineActors()
    ) as collector:
        collector.next()
        collector.reset([False, True])
        (batch,) = collector
        assert batch is not None
        assert batch["observation"][:, :, 0].tolist() == [[3, 4, 5], [100, 101, 102]]
        with pytest.raises(CollectError, match="has 1 flags, expected one for each of 2 workers"):
            collector.reset([True])


def test_reset_drops_whole_episodes_that_wait() -> None:
    with Collector(lambda: Counter((3,)), one, trajs_per_batch=2, frames_per_batch=16, total_frames=24) as collector:
        first = collector.next()
        collector.reset()
        rest = [batch for batch in collector if batch is not None]
    assert first is not None
    starts = [int(batch["observation"][row, 0, 0]) for batch in (first, *rest) for row in range(len(batch))]
    assert starts[:2] == [0, 100]
    assert starts[2] == 600  # after the one that ran
    assert sum(int(batch["collector", "mask"].sum()) for batch in (first, *rest)) == 24


@pytest.mark.parametrize(
    "make",
    [
        partial(Collector, partial(Tagged, 0, (9, 13))),
        partial(MultiCollector, [partial(Tagged, 0, (9, 13)), partial(Tagged, 1, (4,))], sync=True, cat_results=0),
        partial(MultiCollector, [partial(Tagged, 0, (9, 13)), partial(Tagged, 1, (4,))], sync=False),
    ],
    ids=["one process", "sync", "async"],
)
def test_a_buffer_fills_in_the_background(make: Any) -> None:
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(400),
        sampler=SliceSampler(slice_len=4, traj_key=("collector", "traj_ids"), seed=0),
        batch_size=32,
    )
    with make(policy=one, frames_per_batch=20, total_frames=1000, replay_buffer=buffer) as collector:
        assert not collector.is_running()
        collector.start()
        until(lambda: buffer.write_count > 100)
        for _ in range(20):
            with collector.pause():
                count = buffer.write_count
                batch = buffer.sample().reshape(8, 4)
                assert buffer.write_count == count
            assert (batch["observation"][:, :, 3].diff(dim=1) == 1).all()
            assert (batch["observation"][:, :, :3] == batch["observation"][:, :1, :3]).all()
        until(lambda: not collector.is_running())
        assert buffer.write_count == 1000


def test_it_ends_where_it_is_told_to() -> None:
    buffer = memory()
    with Collector("CartPole-v1", frames_per_batch=20, replay_buffer=buffer) as collector:
        collector.start()
        collector.start()
        until(lambda: buffer.write_count > 60)
        with pytest.raises(CollectError, match="do not iterate"):
            collector.next()
        collector.async_shutdown(timeout=30)
        count = buffer.write_count
        assert count % 20 == 0
        assert not collector.is_running()
        time.sleep(0.05)
        assert buffer.write_count == count


def test_reset_and_set_seed_while_it_runs() -> None:
    buffer = memory()
    with Collector(partial(Tagged, 0, (1000,)), one, frames_per_batch=20, replay_buffer=buffer) as collector:
        collector.start()
        for _ in range(3):
            until(lambda before=buffer.write_count: buffer.write_count > before)  # type: ignore[misc]
            collector.reset()
            until(lambda before=buffer.write_count: buffer.write_count > before)  # type: ignore[misc]
            collector.set_seed(1)
        assert collector.state_dict()["frames"] > 0
    stored = buffer.storage.get(np.arange(len(buffer)))["observation"]
    assert (stored[:, 3] == 0).sum() >= 6


@pytest.mark.parametrize("workers", [0, 1])
def test_weights_change_when_they_are_updated(workers: int) -> None:
    module = Weighted()
    policy = TensorDictModule(module, in_keys=["observation"], out_keys=["action", "weight"])
    options: dict[str, Any] = {"frames_per_batch": 20, "track_policy_version": True}
    buffer = memory()
    source: Any = [Counter] * workers if workers else Counter
    kind: Any = partial(MultiCollector, cat_results=0) if workers else Collector
    with kind(source, policy, replay_buffer=buffer, **options) as collector:
        collector.start()
        for version in range(1, 4):
            with torch.no_grad():
                module.weight.fill_(version)
            until(lambda before=buffer.write_count: buffer.write_count > before + 20)  # type: ignore[misc]
            collector.update_policy_weights_()
            until(lambda before=buffer.write_count: buffer.write_count > before + 40)  # type: ignore[misc]
    stored: TensorDictBase = buffer.storage.get(np.arange(len(buffer)))
    assert stored["policy_version"].unique().tolist() == [0, 1, 2, 3]
    assert (stored["weight"] == stored["policy_version"]).all()


class Weighted(torch.nn.Module):
    """A policy that says what its weight is."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        n = len(observation)
        return torch.ones(n, dtype=torch.int64), self.weight.expand(n)


def test_what_fails_in_the_background_is_raised_by_the_next_call(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    for call in ("next", "shutdown", "update_policy_weights_", "start", "reset"):
        collector = Collector(make_failing, one, frames_per_batch=6, replay_buffer=memory())
        collector.start()
        until(lambda collector=collector: not collector.is_running())  # type: ignore[misc]
        with pytest.raises(CollectError, match="the motor is hot"):
            getattr(collector, call)()
        collector.shutdown()

    def failing() -> None:
        with Collector(make_failing, one, frames_per_batch=6, replay_buffer=memory()) as collector:
            collector.start()
            until(lambda: not collector.is_running())
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        failing()


def test_what_cannot_run_in_the_background() -> None:
    with Collector("CartPole-v1", frames_per_batch=20) as collector:
        with pytest.raises(CollectError, match="expected a collector with a replay_buffer"):
            collector.start()
        with pytest.raises(CollectError, match="expected a collector that was started"), collector.pause():
            pass


def test_arguments_of_the_environment() -> None:
    with Collector(Counter, one, frames_per_batch=8, total_frames=8, create_env_kwargs={"lengths": (2,)}) as collector:
        (batch,) = collector
    assert batch is not None
    assert batch["next", "done"].sum() == 4
    for source in ("CartPole-v1", GymEnv("CartPole-v1")):
        kwargs = {"max_episode_steps": 3}
        with Collector(source, frames_per_batch=6, total_frames=6, create_env_kwargs=kwargs) as collector:
            (batch,) = collector
        assert batch is not None
        assert batch["next", "truncated"].sum() == 2
    with pytest.raises(CollectError, match=r"create_env_kwargs \(lengths\): expected an id or a function"):
        Collector(Counter(), frames_per_batch=8, create_env_kwargs={"lengths": (2,)})
    each = [{"lengths": (2,)}, {"lengths": (4,)}]
    with MultiCollector(
        [Counter] * 2, one, frames_per_batch=16, total_frames=16, create_env_kwargs=each, actors=InlineActors()
    ) as collector:
        (batch,) = collector
    assert batch is not None
    assert batch["next", "done"].sum((1, 2)).tolist() == [4, 2]
    with pytest.raises(CollectError, match="create_env_kwargs has 1 entries, expected one for each of 2"):
        MultiCollector([Counter] * 2, one, frames_per_batch=16, create_env_kwargs=each[:1])


def make_policy() -> TensorDictModule:
    """One that cannot be sent: it knows its process."""
    module = Weighted()
    module.process = os.getpid()  # type: ignore[assignment]
    module.lock = __import__("threading").Lock()
    with torch.no_grad():
        module.weight.fill_(torch.rand(()).item())
    return TensorDictModule(module, in_keys=["observation"], out_keys=["action", "weight"])


def test_a_factory_makes_the_policy() -> None:
    with Collector(Counter, policy_factory=make_policy, frames_per_batch=8, total_frames=8) as collector:
        (batch,) = collector
    assert batch is not None
    assert len(batch["weight"].unique()) == 1
    with MultiCollector([Counter] * 2, policy_factory=make_policy, frames_per_batch=16, total_frames=32) as collector:
        first = collector.next()
        weights = {"module.weight": torch.tensor(9.0)}
        collector.update_policy_weights_(weights)
        second = collector.next()
    assert first is not None
    assert second is not None
    assert len(first["weight"].unique()) == 1  # all workers have the weights of the one that was made here
    assert (second["weight"] == 9).all()
    with pytest.raises(CollectError, match="expected only one of them"):
        Collector(Counter, one, policy_factory=make_policy, frames_per_batch=8)


def test_a_factory_for_each_worker() -> None:
    def always(action: int) -> Any:
        return lambda observation: observation[:, 0] * 0 + action

    factories = [partial(always, 1), partial(always, 2)]
    with MultiCollector(
        [Counter] * 2, policy_factory=factories, frames_per_batch=8, total_frames=8, actors=InlineActors()
    ) as collector:
        (batch,) = collector
    assert batch is not None
    assert batch["action"].tolist() == [[1] * 4, [2] * 4]
    with pytest.raises(CollectError, match="policy_factory has 1 entries"):
        MultiCollector([Counter] * 2, policy_factory=[make_policy], frames_per_batch=8)


def test_the_distributed_collector_takes_the_same() -> None:
    with pytest.raises(CollectError, match="create_env_kwargs has 1 entries, expected one for each of 2"):
        DistributedCollector([Counter] * 2, frames_per_batch=8, create_env_kwargs=[{}])
    with pytest.raises(CollectError, match="expected only one of them"):
        DistributedCollector([Counter] * 2, one, policy_factory=make_policy, frames_per_batch=8)
