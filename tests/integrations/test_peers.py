"""Buffers for other projects' learners, with the projects themselves where they are installed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rlx
from rlx.errors import SchemaMismatchError
from rlx.schema import Schema
from rlx.testing.dataset_exporter import random_block
from tests.factories import collected, numbered_dataset, write_dataset

gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not installed")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return collected("CartPole-v1", tmp_path / "data", steps=300)


@pytest.mark.parametrize("shape", [(4, 84, 84), (1, 40, 40), (17,)], ids=str)
@pytest.mark.parametrize("n_envs", [1, 3])
def test_stable_baselines3_gets_the_batches_of_its_own_buffer(shape: tuple[int, ...], n_envs: int) -> None:
    buffers = pytest.importorskip("stable_baselines3.common.buffers")
    from gymnasium import spaces  # noqa: PLC0415

    from rlx.integrations.stable_baselines3 import CompressedReplayBuffer  # noqa: PLC0415

    space: Any = spaces.Box(0, 255, shape, np.uint8)
    made = [
        kind(60, space, spaces.Discrete(3), "cpu", n_envs) for kind in (buffers.ReplayBuffer, CompressedReplayBuffer)
    ]
    rng = np.random.default_rng(0)
    now = rng.integers(0, 255, (n_envs, *shape), np.uint8)
    for step in range(50):  # more than there is room for
        frame = rng.integers(0, 255, (n_envs, *shape[1:]), np.uint8) * (step % 4 > 0)
        after = np.concatenate((now[:, 1:], frame[:, None]), 1) if len(shape) == 3 else now + 1
        done = rng.random(n_envs) < 0.2
        args = (rng.integers(3, size=n_envs), rng.random(n_envs), done, [{"TimeLimit.truncated": True}] * n_envs)
        for buffer in made:
            buffer.add(now, after, *args)
        begun = rng.integers(0, 255, (n_envs, *shape), np.uint8)
        now = np.where(done.reshape(-1, *(1 for _ in shape)), begun, after)
        batches = []
        for buffer in made:
            np.random.seed(step)  # noqa: NPY002
            batches.append(buffer.sample(16))
        for one, other in zip(*batches, strict=True):
            assert (one is None and other is None) or torch.equal(one, other)
    made[1].reset()
    assert made[1].size() == 0


@pytest.mark.parametrize("game", [False, True], ids=["numbers", "pictures"])
def test_stable_baselines3_learns_the_same_from_either_buffer(game: bool) -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    from rlx.integrations.stable_baselines3 import CompressedReplayBuffer  # noqa: PLC0415

    found = []
    for kind in (None, CompressedReplayBuffer):
        env: Any = "CartPole-v1"
        if game:
            gymnasium.register_envs(pytest.importorskip("ale_py"))
            env = sb3.common.env_util.make_atari_env("PongNoFrameskip-v4", n_envs=2, seed=1)
            env = sb3.common.vec_env.VecFrameStack(env, 4)
        model = sb3.DQN(
            "CnnPolicy" if game else "MlpPolicy",
            env,
            replay_buffer_class=kind,
            learning_starts=50,
            buffer_size=150,  # is full before the end
            seed=1,
            device="cpu",
        )
        model.learn(200)
        found.append(torch.cat([weights.flatten() for weights in model.policy.parameters()]))
    assert torch.equal(*found)


def test_d3rlpy_trains(dataset: Path) -> None:
    d3rlpy = pytest.importorskip("d3rlpy")
    from rlx.integrations.d3rlpy import replay_buffer  # noqa: PLC0415

    buffer = replay_buffer(dataset)
    assert len(buffer.episodes) == len(rlx.open(dataset).trajectories.length)
    first = rlx.open(dataset).trajectory(0)
    assert np.array_equal(buffer.episodes[0].observations, first["observation"].numpy())
    learner = d3rlpy.algos.DiscreteCQLConfig(batch_size=32).create()
    logs = d3rlpy.logging.NoopAdapterFactory()
    learner.fit(buffer, n_steps=3, n_steps_per_epoch=3, show_progress=False, logger_adapter=logs)


def test_d3rlpy_takes_no_actions_of_several_arrays(tmp_path: Path) -> None:
    pytest.importorskip("d3rlpy")
    from rlx.integrations.d3rlpy import replay_buffer  # noqa: PLC0415

    schema = Schema.of(observation=("float32", (2,)), action=("int64", ()))
    schema = Schema({f"{name}/a" if name == "action" else name: field for name, field in schema.fields.items()})
    write_dataset(tmp_path / "data", [[random_block(schema)]], schema=schema)
    with pytest.raises(SchemaMismatchError, match="expected action, one array"):
        replay_buffer(tmp_path / "data")


def test_tianshou_trains(dataset: Path) -> None:
    pytest.importorskip("tianshou", minversion="2.0")
    from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy  # noqa: PLC0415
    from tianshou.algorithm.optim import AdamOptimizerFactory  # noqa: PLC0415
    from tianshou.utils.net.common import Net  # noqa: PLC0415
    from tianshou.utils.torch_utils import policy_within_training_step  # noqa: PLC0415

    from rlx.integrations.tianshou import replay_buffer  # noqa: PLC0415

    network = Net(state_shape=(4,), action_shape=2, hidden_sizes=[16])
    policy = DiscreteQLearningPolicy(model=network, action_space=gymnasium.spaces.Discrete(2))
    learner = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-2), n_step_return_horizon=3)
    before = torch.cat([weights.flatten() for weights in network.parameters()])
    with policy_within_training_step(policy):
        learner.update(replay_buffer(dataset), sample_size=32)
    assert not torch.equal(before, torch.cat([weights.flatten() for weights in network.parameters()]))


def test_tianshou_samples(dataset: Path) -> None:
    pytest.importorskip("tianshou")
    from rlx.integrations.tianshou import replay_buffer  # noqa: PLC0415

    buffer, steps = replay_buffer(dataset), rlx.open(dataset)[:]
    batch, rows = buffer.sample(32)
    assert np.array_equal(batch.obs, steps["observation"].numpy()[rows])
    assert np.array_equal(batch.obs_next, steps["next", "observation"].numpy()[rows])
    assert np.array_equal(batch.terminated, steps["next", "terminated"].numpy()[rows, 0])


def test_tianshou_stops_at_the_ends_of_trajectories(tmp_path: Path) -> None:
    pytest.importorskip("tianshou")
    from rlx.integrations.tianshou import replay_buffer  # noqa: PLC0415

    source = numbered_dataset(tmp_path / "data", (3, 1, 4))  # which end without a flag
    buffer = replay_buffer(source)
    assert buffer.next(np.arange(8)).tolist() == [1, 2, 2, 3, 5, 6, 7, 7]
    assert buffer.truncated.tolist() == buffer.done.tolist() == [False, False, True, True, False, False, False, True]
    assert not buffer.terminated.any()
