"""Collecting on a Ray cluster, two workers of this machine: the same steps as of processes of this machine."""

import os
import signal
from functools import partial
from typing import Any

import pytest
import ray
import torch

from rlx.buffer import LazyTensorStorage, ReplayBuffer, SliceSampler
from rlx.collector import DistributedCollector, MultiCollector, RayCollector, RPCCollector, SerialEnv
from rlx.engine.ray_engine import RayActors
from rlx.errors import CollectError
from tests.collector.environments import Counter, Tagged, make_failing, one
from tests.collector.memory import recurrent
from tests.collector.policies import Constant
from tests.collector.test_multi_collector import EPISODE, PID, TAG, TIME, assert_consecutive
from tests.collector.walks import Talkative

pytestmark = pytest.mark.usefixtures("two_workers_of_ray")
HALF: dict[str, Any] = {"remote_configs": {"num_cpus": 0.5}}


def batches(sources: Any, policy: Any = one, **options: Any) -> list[Any]:
    with DistributedCollector(sources, policy, **options) as collector:
        return list(collector)


def test_names() -> None:
    assert RayCollector is RPCCollector is DistributedCollector


@pytest.mark.parametrize("source", ["CartPole-v1", SerialEnv(2, "CartPole-v1")], ids=["single", "vector"])
def test_the_same_as_on_this_machine(source: Any) -> None:
    options: dict[str, Any] = {"frames_per_batch": 40, "total_frames": 97, "sync": True, "seed": 3}
    found = batches([source] * 2, None, **options)
    with MultiCollector([source] * 2, **options) as collector:
        expected: list[Any] = list(collector)
    assert [batch.shape for batch in found] == [batch.shape for batch in expected]
    assert all((batch == other).all() for batch, other in zip(found, expected, strict=True))


def test_first_come_first_served() -> None:
    found = batches(
        [partial(Tagged, 0), partial(Tagged, 1, sleeps=0.02)], frames_per_batch=10, total_frames=95, backend="rpc"
    )
    assert sorted(batch.shape[0] for batch in found) == [5] + [10] * 9
    assert all(len(batch["observation"][:, TAG].unique()) == 1 for batch in found), "a batch is one worker's"
    assert_consecutive(found)
    everything: Any = torch.cat(found)
    assert len({os.getpid(), *everything["observation"][:, PID].tolist()}) == 3


def test_new_weights_are_in_use_from_the_next_batch() -> None:
    policy, found = Constant(), []
    options: dict[str, Any] = {"frames_per_batch": 4, "total_frames": 12, "track_policy_version": True}
    with DistributedCollector(Counter, policy, num_collectors=1, sync=True, **options) as collector:
        for number, batch in enumerate(collector, 1):
            assert batch is not None
            found.append((batch["policy_version"].unique().tolist(), batch["action"].unique().tolist()))
            collector.update_policy_weights_({"action": torch.tensor(number % 3)})
    assert found == [([0], [0]), ([1], [1]), ([2], [2])]


def test_workers_send_what_a_policy_writes_and_environments_say() -> None:
    policy: Any = recurrent()
    found: list[Any] = []
    options: dict[str, Any] = {"frames_per_batch": 40, "total_frames": 80, "sync": True, "track_policy_version": True}
    sources = [partial(Talkative, lane) for lane in range(2)]
    with DistributedCollector(sources, policy, drop=["logits"], info_keys="all", **options, **HALF) as collector:
        for batch in collector:
            found.append(batch)
            collector.update_policy_weights_()
    assert [batch["policy_version"].unique().tolist() for batch in found] == [[0], [1]]
    whole: Any = torch.cat(found, -1)  # [2, 40]
    assert "logits" not in whole
    assert (whole["action_log_prob"] < 0).all()
    is_init = whole["is_init"][..., 0]
    assert torch.equal(whole["next", "h"][:, :-1][~is_init[:, 1:]], whole["h"][:, 1:][~is_init[:, 1:]])
    assert not whole["h"][is_init].any()
    inputs = whole["observation"].flatten(0, 1), whole["h"].flatten(0, 1)
    with torch.no_grad():
        expected = policy[0].module(*inputs).reshape(whole["next", "h"].shape)
    torch.testing.assert_close(whole["next", "h"], expected)
    info = whole["next", "info"]
    assert set(info.keys()) == {"t", "vector", "who", "odd", "last"}
    assert info["who"] == [["lane 0"] * 40, ["lane 1"] * 40]
    assert torch.equal(info["vector"][..., 0], info["t"] / 2)


def test_a_worker_that_is_killed_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    sources = [partial(Tagged, tag, (50,)) for tag in range(2)]
    with DistributedCollector(sources, one, sync=True, frames_per_batch=20, total_frames=80, **HALF) as collector:
        found: list[Any] = []
        for batch in collector:
            assert batch is not None
            found.append(batch)
            if len(found) == 2:
                os.kill(int(batch["observation"][1, 0, PID]), signal.SIGKILL)
    assert "and is replaced" in caplog.text
    whole: Any = torch.cat(found, 1)
    assert whole["observation"][0, :, TIME].tolist() == list(range(40)), "the other one went on"
    assert whole["observation"][1, :, TIME].tolist() == list(range(20)) * 2
    assert whole["collector", "traj_ids"][1].tolist() == [1] * 20 + [3] * 20, "the lost trajectory does not go on"


def test_a_worker_that_keeps_dying_ends_the_run() -> None:
    with pytest.raises(CollectError, match="worker 1 died 3 times without progress"):
        batches([partial(Tagged, 0), partial(Tagged, 1, dies=7)], frames_per_batch=40, **HALF)


def test_an_environment_that_fails() -> None:
    with pytest.raises(CollectError, match="failed in step: RuntimeError: the motor is hot"):
        batches([Counter, make_failing], frames_per_batch=60)


def test_slices_of_a_buffer_that_they_fill() -> None:
    sampler = SliceSampler(num_slices=4, trajectory_key=("collector", "traj_ids"), seed=0)
    buffer = ReplayBuffer(storage=LazyTensorStorage(500), sampler=sampler, batch_size=32)
    sources = [partial(Tagged, tag, (9, 13)) for tag in range(2)]
    assert set(batches(sources, frames_per_batch=7, total_frames=300, replay_buffer=buffer)) == {None}
    assert len(buffer) == 300
    for _ in range(10):
        slices = buffer.sample()["observation"].reshape(4, 8, 4)
        assert (slices[:, :, : EPISODE + 1] == slices[:, :1, : EPISODE + 1]).all()
        assert (slices[:, :, TIME].diff(dim=1) == 1).all()


def test_the_state_goes_on_with_new_episodes() -> None:
    options: dict[str, Any] = {"frames_per_batch": 40, "total_frames": 80, "sync": True}
    with DistributedCollector(["CartPole-v1"], Constant(), **options) as collector:
        before: Any = next(iter(collector))
        state = collector.state_dict()
    with DistributedCollector(["CartPole-v1"], Constant(1), **options) as collector:
        collector.load_state_dict(state)
        (after,) = collector
    assert after is not None
    assert after["collector", "traj_ids"].min() > before["collector", "traj_ids"].max()
    assert not after["action"].any(), "weights of the state are in use"


def test_shutdown_ends_the_workers_and_leaves_a_connection_that_was_there() -> None:
    collector = DistributedCollector([partial(Tagged, 0)], one, frames_per_batch=10)
    next(iter(collector))
    collector.shutdown()
    collector.shutdown()
    with pytest.raises(CollectError, match="shut down"):
        next(iter(collector))
    assert ray.is_initialized()


def test_mistakes() -> None:
    with pytest.raises(CollectError, match="backend 'gloo': expected one of ray, rpc, distributed"):
        DistributedCollector(["CartPole-v1"], backend="gloo", frames_per_batch=10)
    with pytest.raises(CollectError, match="num_collectors=3: expected as many environments, found 2"):
        DistributedCollector(["CartPole-v1"] * 2, num_collectors=3, frames_per_batch=10)
    with pytest.raises(CollectError, match="remote_configs has 1 entries, expected one for each of 2 workers"):
        DistributedCollector(["CartPole-v1"] * 2, remote_configs=[{"num_cpus": 1}], frames_per_batch=10)
    with pytest.raises(CollectError, match="workers of this machine"):
        MultiCollector(["CartPole-v1"] * 2, preemptive_threshold=0.5, frames_per_batch=10, actors=RayActors())
