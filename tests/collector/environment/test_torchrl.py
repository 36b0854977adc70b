"""An environment made with TorchRL is taken wherever an environment is."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule

from rlx.collector import Collector, MultiCollector, SerialEnv
from rlx.collector.environment.gym_env import open_environment
from rlx.errors import CollectError
from rlx.seeding import env_seeds
from rlx.store.dataset import Dataset

data = pytest.importorskip("torchrl.data", reason="TorchRL is not installed")
collectors = pytest.importorskip("torchrl.collectors", reason="TorchRL is not installed")

from rlx.collector.environment.torchrl import OneHot, space_of  # noqa: E402
from tests.collector import torchrl_environments as made  # noqa: E402


def lean() -> TensorDictModule:
    """A policy for CartPole."""
    return TensorDictModule(lambda seen: (seen[..., 2] > 0).long(), in_keys=["observation"], out_keys=["action"])


def lean_one_hot() -> TensorDictModule:
    """The same for one-hot actions."""
    return TensorDictModule(
        lambda seen: torch.stack([seen[..., 2] <= 0, seen[..., 2] > 0], -1).long(),
        in_keys=["observation"],
        out_keys=["action"],
    )


def collected(source: Any, policy: Any, frames: int, **options: Any) -> TensorDictBase:
    with Collector(source, policy, frames_per_batch=frames, total_frames=frames, **options) as collector:
        (batch,) = collector
    assert batch is not None
    return batch


def torchrls(env: Any, policy: Any, frames: int, **options: Any) -> TensorDictBase:
    """What TorchRL's collector makes of the same seed."""
    env.set_seed(env_seeds(0, 0, 1, 0)[0])
    options = {"total_frames": frames, "auto_register_policy_transforms": False, **options}
    batch: TensorDictBase = next(iter(collectors.Collector(env, policy, frames_per_batch=frames, **options)))
    return batch


@pytest.mark.parametrize(
    ("make", "policy"),
    [
        (made.cartpole, lean),
        (made.one_hot_cartpole, lean_one_hot),
        (made.counted, lean),
        (made.counted_pair, lean),
    ],
)
def test_batches_are_those_of_torchrl(make: Any, policy: Any) -> None:
    found, expected = collected(make(), policy(), 120), torchrls(make(), policy(), 120)
    assert expected["next", "done"].sum() > 1
    assert found.shape == expected.shape
    for key in set(expected.keys(True, True)) - _of_the_policys_state(expected):
        torch.testing.assert_close(found[key], expected[key], rtol=0, atol=0, msg=str(key))


def _of_the_policys_state(batch: TensorDictBase) -> set[Any]:
    """What rlx's collectors write themselves, each as its own tests have it."""
    return {key for key in batch.keys(True, True) if "h" in key or "is_init" in key or key == ("collector", "traj_ids")}


@pytest.mark.parametrize("make", [made.counted, made.counted_pair])
def test_episodes_that_are_cut(make: Any) -> None:
    batch = collected(make, lean(), 40, max_frames_per_traj=7)
    ended = batch["next", "done"].reshape(-1, 20 if make is made.counted_pair else 40)
    assert ended[0].nonzero()[:, 0].tolist() == list(range(6, ended.shape[1], 7))
    count = batch["step_count"].reshape(ended.shape)[0]
    assert count.tolist() == [step % 7 for step in range(ended.shape[1])]


def test_a_function_makes_several() -> None:
    batch = collected(SerialEnv(2, made.cartpole), lean(), 80)
    assert batch.shape == (2, 40)
    assert (batch[0]["observation"][0] != batch[1]["observation"][0]).any()
    with MultiCollector([made.cartpole], lean(), frames_per_batch=40, total_frames=40) as collector:
        (other,) = collector
    assert other is not None
    torch.testing.assert_close(other[0].exclude("collector"), batch[0].exclude("collector"), rtol=0, atol=0)
    assert open_environment(made.cartpole, 3).num_envs == 3
    with pytest.raises(CollectError, match=r"expected a gymnasium\.Env"):
        open_environment(SerialEnv(2, made.counted_pair))


@pytest.mark.parametrize(("make", "lanes"), [(made.lab, ()), (made.lab_pair, (2,))])
def test_every_kind_of_observation_and_action(make: Any, lanes: tuple[int, ...]) -> None:
    batch = collected(make, None, 12).reshape(*lanes, -1)
    steps = batch[0] if lanes else batch
    shown = [step % 3 for step in range(len(steps))]
    assert steps["pixels"][:, 0, 0].tolist() == shown
    assert steps["next", "pixels"][:, 0, 0].tolist() == [number + 1 for number in shown]
    assert steps["state", "door"].tolist() == shown
    assert steps["state", "switches"].dtype == torch.bool
    assert steps["next", "terminated"][:, 0].tolist() == [number == 2 for number in shown]
    assert steps["action", "push"].shape == (len(steps), 2)
    assert (steps["action", "press"] < torch.tensor([2, 3])).all()
    torch.testing.assert_close(
        steps["next", "reward"][:, 0].double(), steps["action", "push"].sum(-1).double(), check_dtype=False
    )


def test_what_no_spec_declares_is_info() -> None:
    environment: Any = open_environment(made.lab_pair)
    environment.reset([0, 1])
    info = environment._env.step(environment._env.single_action_space.sample() | _actions())[-1]
    assert info["noise"].tolist() == [0.5, 0.5]


def _actions() -> dict[str, Any]:
    return {"push": np.zeros((2, 2), np.float32), "press": np.zeros((2, 2), np.int64)}


def test_some_of_several_are_reset() -> None:
    environment: Any = open_environment(made.counted_pair)
    with pytest.raises(CollectError, match="reset it before the first step"):
        environment._env.step(np.zeros(2, np.int64))
    environment._env.reset(seed=0)
    for _ in range(3):
        environment._env.step(np.zeros(2, np.int64))
    found, _ = environment._env.reset(options={"reset_mask": np.array([False, True])})
    assert found["step_count"].reshape(-1).tolist() == [3, 0]


def test_text_is_an_observation() -> None:
    environment: Any = open_environment(made.Speaking)
    assert isinstance(environment.observation_space["text"], gymnasium.spaces.Text)
    assert environment.reset([0])["text"] == ("step 0",)


def test_environments_without_one_reward_and_action() -> None:
    with pytest.raises(CollectError, match=r"torchrl's Pair gives reward \[2\]: expected one for each of 1"):
        open_environment(made.Pair)
    with pytest.raises(CollectError, match="takes pitch, roll: expected 'action' alone"):
        open_environment(made.Flying)
    with pytest.raises(CollectError, match="torchrl's Blind has no observations"):
        open_environment(made.Blind)


def test_random_actions_are_one_hot() -> None:
    batch = collected(made.one_hot_cartpole, None, 60)
    assert batch["action"].dtype == torch.int64
    assert (batch["action"].sum(-1) == 1).all()
    assert batch["action"].float().mean(0).min() > 0.1


def test_a_dataset_of_it(tmp_path: Path, cli: Any) -> None:
    arguments = ("-o", tmp_path / "d", "--steps", 40, "--envs", 2)
    result = cli("collect", "tests.collector.torchrl_environments:counted", *arguments)
    assert result.code == 0, result.err
    dataset = Dataset(tmp_path / "d")
    assert {"observation", "step_count", "episode_reward", "action"} <= set(dataset.schema.fields)
    lengths = dataset.trajectories.length
    assert lengths.max() <= 12
    batch = dataset[: int(lengths[0])]
    assert batch["step_count"][:, 0].tolist() == list(range(int(lengths[0])))


@pytest.mark.parametrize(
    ("spec", "space"),
    [
        (data.Categorical(4), gymnasium.spaces.Discrete(4)),
        (data.Categorical(4, (3,)), gymnasium.spaces.MultiDiscrete([4, 4, 4])),
        (data.Categorical(2, (1,), dtype=torch.bool), gymnasium.spaces.Box(0, 1, (1,), bool)),  # type: ignore[arg-type]
        (data.MultiCategorical([2, 5]), gymnasium.spaces.MultiDiscrete([2, 5])),
        (data.OneHot(3, dtype=torch.int64), OneHot([3])),
        (data.MultiOneHot([3, 2]), OneHot([3, 2], np.bool_)),
        (data.Binary(3), gymnasium.spaces.Box(0, 1, (3,), np.int8)),
        (data.Bounded(-2, 3, (2,)), gymnasium.spaces.Box(-2, 3, (2,))),
        (data.Bounded(0, 255, (2, 2), dtype=torch.uint8), gymnasium.spaces.Box(0, 255, (2, 2), np.uint8)),
        (data.Unbounded((2,)), gymnasium.spaces.Box(-np.inf, np.inf, (2,))),
        (data.Unbounded((), dtype=torch.int16), gymnasium.spaces.Box(-(2**15), 2**15 - 1, (), np.int16)),
        (data.Composite(a=data.Categorical(2)), gymnasium.spaces.Dict(a=gymnasium.spaces.Discrete(2))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_spaces_of_specs(spec: Any, space: Any) -> None:
    found: Any = space_of(spec, "it")
    assert found == space
    assert type(found) is type(space)
    for _ in range(20):
        value, sample = spec.rand(), found.sample()
        if isinstance(sample, dict):
            value, sample, found_one, spec_one = value["a"], sample["a"], found["a"], spec["a"]
        else:
            found_one, spec_one = found, spec
        assert found_one.contains(value.numpy())
        assert spec_one.is_in(torch.as_tensor(sample, dtype=spec_one.dtype))


def test_a_spec_without_a_space() -> None:
    with pytest.raises(CollectError, match=r"it has a UnboundedContinuous spec of torch\.bfloat16"):
        space_of(data.Unbounded((2,), dtype=torch.bfloat16), "it")
    with pytest.raises(CollectError, match="it has a NonTensor spec"):
        space_of(data.NonTensor((), example_data=object()), "it")
