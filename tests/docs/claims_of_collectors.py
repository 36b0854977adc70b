"""Claims of migrating.md about collectors, environments and the datasets of TorchRL's names."""

from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from tensordict import TensorDict

from rlx import buffer as ours
from rlx import collector as collectors
from rlx.collector import Collector, GymEnv, MultiCollector, ParallelEnv, SerialEnv
from rlx.datasets import AtariDQNExperienceReplay
from rlx.engine.local_actors import InlineActors
from rlx.errors import CollectError, DatasetNotFoundError
from tests.collector.environments import Counter, one
from tests.docs.claims import ELSEWHERE, claim, filled, theirs


def batches(source: Any = Counter, policy: Any = one, **options: Any) -> list[Any]:
    with Collector(source, policy, **options) as collector:
        return list(collector)


def multi(sources: int = 2, **options: Any) -> MultiCollector:
    return MultiCollector([Counter] * sources, one, actors=InlineActors(), **options)


# ---- collectors


@claim("total_frames", "frames_per_batch")
def _() -> None:
    assert [batch.numel() for batch in batches(frames_per_batch=7, total_frames=20)] == [7, 7, 6]
    assert [batch.shape for batch in batches(SerialEnv(2, Counter), frames_per_batch=7, total_frames=14)] == [
        (2, 3),
        (2, 3),
        (2, 1),
    ]
    buffer = ours.ReplayBuffer(storage=ours.LazyTensorStorage(20))
    with pytest.raises(CollectError, match="total_frames=14: expected a multiple of 6"):
        batches(SerialEnv(2, Counter), frames_per_batch=7, total_frames=14, replay_buffer=buffer)


@claim("trajs_per_batch", "trajs_per_write")
def _() -> None:
    found = batches(trajs_per_batch=2, total_frames=17)  # episodes of 3, 5, 3, 5 and 1 step
    assert [batch.shape for batch in found] == [(2, 5), (2, 5), (1, 1)]
    assert found[-1]["next", "truncated"].all()
    assert sum(int(batch["collector", "mask"].sum()) for batch in found) == 17
    flat = batches(trajs_per_batch=2, traj_format="cat", total_frames=17)
    assert [batch.shape for batch in flat] == [(8,), (8,), (1,)]


ELSEWHERE["a worker dies, or hangs for longer than step_timeout"] = (
    "tests/collector/worker/test_lost_workers.py::test_one_that_hangs_is_replaced"
)
ELSEWHERE["interruptor"] = "tests/collector/test_multi_collector.py::test_stragglers_are_stopped"
ELSEWHERE["worker_idx"] = "tests/collector/test_multi_collector.py::test_a_worker_that_is_killed_is_replaced"


@claim("reset_at_each_iter")
def _() -> None:
    first, second = batches(frames_per_batch=2, total_frames=4, reset_at_each_iter=True)
    assert first["next", "truncated"].flatten().tolist() == [False, True]
    assert second["observation"][0, 0] == 100, "the next episode"


@claim("a policy's state, and is_init")
def _() -> None:
    def counting(steps: Any) -> Any:
        steps["action"] = torch.ones(steps.shape, dtype=torch.int64)
        seen = steps.get("seen", None)
        seen = torch.zeros(*steps.shape, 1) if seen is None else seen
        return steps.set(("next", "seen"), seen + 1)

    (batch,) = batches(policy=counting, frames_per_batch=8, total_frames=8)
    assert batch["seen"].flatten().tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    assert batch["is_init"].flatten().tolist() == [True, False, False, True, False, False, False, False]


@claim("state_dict")
def _() -> None:
    for environments in (False, True):
        collector, again = (Collector("CartPole-v1", frames_per_batch=5, total_frames=15, seed=3) for _ in range(2))
        with collector, again:
            collector.next()
            again.load_state_dict(collector.state_dict(environments=environments))
            one_more, other = collector.next(), again.next()
            assert bool((one_more["observation"] == other["observation"]).all()) == environments
            assert len(list(collector)) == len(list(again)) == 1


@claim("max_frames_per_traj")
def _() -> None:
    (batch,) = batches(frames_per_batch=6, total_frames=6, max_frames_per_traj=2)
    assert batch["next", "truncated"].flatten().tolist() == [False, True] * 3
    assert "step_count" not in batch.keys()  # noqa: SIM118


ELSEWHERE["processes"] = (
    "tests/collector/test_multi_collector.py::test_a_script_without_a_guard_has_environments_with_processes_of_their_own"
)


@claim("actions of a Discrete space", "GymEnv", "SerialEnv", "ParallelEnv")
def _() -> None:
    (batch,) = batches("CartPole-v1", None, frames_per_batch=6, total_frames=6)
    assert batch["action"].shape == (6,)
    for env in (GymEnv("CartPole-v1"), SerialEnv(2, "CartPole-v1")):
        action = env.rand_action(env.reset())["action"]
        assert action.shape == env.batch_size
        assert not action.is_floating_point()
        env.close()
    assert issubclass(ParallelEnv, SerialEnv.__mro__[1])
    for source in (Counter(), gymnasium.vector.SyncVectorEnv([Counter])):
        assert batches(source, one, frames_per_batch=4, total_frames=4)
    if theirs:
        env = theirs.envs.GymEnv("CartPole-v1")
        assert env.rand_action(env.reset())["action"].shape == (2,)
        assert batches(env, None, frames_per_batch=4, total_frames=4)[0]["action"].shape == (4, 2)


@claim("start", "pause(timeout)")
def _() -> None:
    buffer = filled(0, storage=ours.LazyTensorStorage(1000))
    with Collector(Counter, one, frames_per_batch=10, total_frames=50, replay_buffer=buffer) as collector:
        collector.start()
        with collector.pause():
            written = buffer.write_count
            assert written % 10 == 0
            assert buffer.write_count == written
        while collector.is_running():
            pass
    assert buffer.write_count == 50

    failing = filled(0, storage=ours.LazyTensorStorage(1000))
    with Collector(lambda: Counter(fails_after=3), one, frames_per_batch=2, replay_buffer=failing) as collector:
        collector.start()
        while collector.is_running():
            pass
        with pytest.raises(CollectError, match="the motor is hot"):
            collector.update_policy_weights_()


@claim("policy_factory of MultiCollector")
def _() -> None:
    made: list[torch.nn.Module] = []

    def factory() -> torch.nn.Module:
        made.append(torch.nn.Linear(4, 2))
        return torch.nn.Sequential(made[-1], _Greedy())

    options: dict[str, Any] = {"frames_per_batch": 4, "total_frames": 4, "actors": InlineActors()}
    with MultiCollector(["CartPole-v1"] * 2, policy_factory=factory, **options) as collector:
        batch = collector.next()
    best = made[0](batch["observation"]).argmax(-1)
    assert torch.equal(batch["action"], best)


class _Greedy(torch.nn.Module):
    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        return scores.argmax(-1)


@claim("steps", "return_same_td")
def _() -> None:
    first, second = batches(frames_per_batch=4, total_frames=8)
    assert first["observation"].is_contiguous()
    assert first["observation"].data_ptr() != second["observation"].data_ptr()


# ---- environments


@claim("stepping a copy whose episode has ended")
def _() -> None:
    env = SerialEnv(2, "CartPole-v1")
    steps = env.reset()
    while not (after := env.step(env.rand_action(steps))["next"])["done"].any():
        steps = after
    with pytest.raises(CollectError, match="reset"):
        env.step(env.rand_action(after))
    env.close()


@claim("an environment given to a collector")
def _() -> None:
    own = GymEnv("CartPole-v1")
    own.set_seed(0)
    before = own.reset()
    batches(own, None, frames_per_batch=20, total_frames=60)
    other = GymEnv("CartPole-v1")
    other.set_seed(0)
    other.reset()
    action = before.set("action", torch.tensor(1))
    assert torch.equal(own.step(action)["next", "observation"], other.step(action)["next", "observation"])
    given = Counter()
    batches(given, frames_per_batch=8, total_frames=8)
    assert given._episode == 2, "stepped itself"
    vector = gymnasium.vector.SyncVectorEnv([Counter] * 2)
    batches(vector, frames_per_batch=4, total_frames=8)
    assert vector.envs[0].unwrapped._t > 0  # type: ignore[attr-defined]


@claim("rollout(policy=) of a plain torch module")
def _() -> None:
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    policy = torch.nn.Sequential(torch.nn.Linear(4, 2), _Greedy())
    steps = env.rollout(5, policy)
    assert torch.equal(steps["action"], policy(steps["observation"]))
    env.close()


# ---- classes


@claim("BaseCollector")
def _() -> None:
    with multi(frames_per_batch=4, total_frames=12, postproc=lambda batch: batch.set("mine", batch["action"])) as made:
        assert "mine" in made.next().keys()  # noqa: SIM118
        made.reset([True, False])
        with pytest.raises(CollectError, match="static_seed=True"):
            made.set_seed(1, static_seed=True)
        before = made.next()["collector", "traj_ids"].max()
        made.set_seed(1)
        assert made.next()["collector", "traj_ids"].min() > before


@claim("Collector", "MultiCollector", "MultiAsyncCollector", "MultiSyncCollector", "num_workers")
def _() -> None:
    with pytest.raises(TypeError, match="sync"):
        Collector(Counter, one, frames_per_batch=4, sync=True)  # type: ignore[call-arg]
    assert collectors.MultiaSyncDataCollector is collectors.MultiAsyncCollector
    assert collectors.MultiSyncDataCollector is collectors.MultiSyncCollector
    with multi(2, frames_per_batch=5, total_frames=10, sync=True) as made:
        assert [batch.shape for batch in made] == [(2, 2), (2, 2), (2, 1)]


@claim("DistributedCollector", "RayCollector", "RPCCollector")
def _() -> None:
    for kind in (collectors.DistributedCollector, collectors.RayCollector, collectors.RPCCollector):
        with pytest.raises(CollectError, match="backend 'gloo': expected one of ray, rpc, distributed, which all run"):
            kind([Counter], one, backend="gloo", frames_per_batch=4)


# ---- arguments, methods, and advice


@claim("backend", "use `MultiCollector(sync=False)`, or `Collector` of a vectorized environment")
@claim("use `MultiCollector([env], sync=False)`")
def _() -> None:
    with multi(1, sync=False, frames_per_batch=4, total_frames=8) as made:
        assert [batch.shape for batch in made] == [(4,), (4,)]


ELSEWHERE["use `DistributedCollector` on a Ray cluster; rlx submits no Slurm jobs"] = (
    "tests/collector/test_distributed.py::test_a_worker_that_is_killed_is_replaced"
)
for _text in (
    "use `DistributedCollector(sync=True)`",
    "use `DistributedCollector` with a policy that does not explore",
):
    ELSEWHERE[_text] = "tests/collector/test_distributed.py::test_a_worker_that_is_killed_is_replaced"


@claim("weight_updater", "use `collector.update_policy_weights_(policy)`: every collector sends weights by itself")
@claim("get_policy_version")
def _() -> None:
    scores = torch.nn.Linear(4, 2)
    policy = torch.nn.Sequential(scores, _Greedy())
    options: dict[str, Any] = {"frames_per_batch": 8, "actors": InlineActors(), "track_policy_version": True}
    with MultiCollector(["CartPole-v1"] * 2, policy, **options) as made:
        made.next()
        with torch.no_grad():
            scores.weight.zero_()
            scores.bias.copy_(torch.tensor([0.0, 1.0]))
        made.update_policy_weights_(policy)
        batch = made.next()
        assert (batch["action"] == 1).all()
        assert (batch["policy_version"] == made.policy_version).all()
        assert made.policy_version == 1


@claim('use `Collector(trajs_per_batch=n, exploration_type="deterministic")`, and sum the rewards')
def _() -> None:
    (batch, *_) = batches(trajs_per_batch=2, exploration_type="deterministic", total_frames=8)
    assert batch["next", "reward"].sum(1).flatten().tolist() == [6, 15]


@claim("use `policy=None`")
def _() -> None:
    (batch,) = batches("CartPole-v1", None, frames_per_batch=50, total_frames=50)
    assert set(batch["action"].tolist()) == {0, 1}


@claim("init_fn", "env_device", "trust_policy", "reset_when_done", "iterator", "async_shutdown(close_env)")
def _() -> None:
    taken: list[Any] = []

    def of_steps(steps: TensorDict) -> Any:
        taken.append(type(steps).__name__)
        return steps.set("action", torch.ones(steps.shape, dtype=torch.int64))

    collector = Collector(lambda: Counter((2,)), of_steps, frames_per_batch=4, total_frames=4)
    (batch,) = collector
    assert set(taken) == {"TensorDict"}
    assert batch["observation"].is_cpu
    assert batch["collector", "traj_ids"].tolist() == [0, 0, 1, 1]
    collector.shutdown()


@claim("extend_buffer", "pre_collect_hook", "compact_obs", "num_sub_threads", "device", "traj_format")
def _(tmp_path: Path) -> None:
    buffer = filled(0)
    with Collector(Counter, one, frames_per_batch=4, total_frames=8, device="cpu", traj_format="cat") as collector:
        for batch in collector:
            buffer.extend(batch)
        assert not hasattr(collector, "device")
        assert not hasattr(collector, "traj_format")
    buffer.save_dataset(tmp_path / "data")
    assert (tmp_path / "data").is_dir()
    with multi(frames_per_batch=4, total_frames=4, num_threads=1) as made:
        assert len(list(made)) == 1


# ---- datasets of TorchRL's names


def atari(pong: Path, home: Path, **options: Any) -> AtariDQNExperienceReplay:
    if not (home / "Pong/5").exists():
        (home / "Pong").mkdir(parents=True)
        pong.rename(home / "Pong/5")
    return AtariDQNExperienceReplay("Pong/5", seed=0, **{"batch_size": 32, **options})


@claim('flags and ("next", "reward") of Atari', "action of Atari", "order of a batch", "id of the trajectory")
def _(pong: Path, home: Path) -> None:
    for options in ({}, {"slice_len": 8}):
        dataset = atari(pong, home, **options)
        batch = dataset.sample()
        for key in ("reward", "done", "terminated", "truncated"):
            assert batch["next", key].shape == (32, 1)
            assert key == "reward" or batch["next", key].dtype == torch.bool
        assert batch["action"].dtype == dataset[:1]["action"].dtype
        assert (dataset[batch["index"]]["observation"] == batch["observation"]).all()
        assert torch.equal(batch["collector", "traj_ids"], dataset.episodes[batch["index"]])


@claim("metadata", "end of a slice", "next observation of an episode's last step", "dataset_path")
def _(pong: Path, home: Path) -> None:
    dataset = atari(pong, home, slice_len=8)
    assert dataset.dataset.manifest.id
    assert "metadata" not in dataset.sample().keys()  # noqa: SIM118
    batch = dataset.sample()
    assert batch["collector", "slice_end"].reshape(4, 8)[:, :-1].sum() == 0
    assert (batch["next", "truncated"] >= batch["collector", "slice_end"]).all()
    table = dataset.dataset.trajectories
    for last, recorded in zip(table.start + table.length - 1, table.final_recorded, strict=True):
        assert bool(dataset[int(last)]["next", "observation"].any()) == bool(recorded)
    assert dataset.data_path == dataset.data_path_root / "Pong/5"


@claim("AtariDQNExperienceReplay", "MinariExperienceReplay")
def _(pong: Path, home: Path) -> None:
    rows = [atari(pong, home).sample()["index"].tolist() for _ in range(2)]
    assert rows[0] == rows[1]
    with pytest.raises(DatasetNotFoundError):
        AtariDQNExperienceReplay("Pong/4", batch_size=4, download=False)
