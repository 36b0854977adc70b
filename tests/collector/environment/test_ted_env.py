"""Environments stepped by hand give what TorchRL's give, step for step."""

import pickle
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule

from rlx.collector import Collector, GymEnv, ParallelEnv, SerialEnv
from rlx.errors import CollectError
from tests.collector.environments import Counter, Rich

envs = pytest.importorskip("torchrl.envs", reason="TorchRL is not installed")
CARTPOLE = partial(envs.GymEnv, "CartPole-v1", categorical_action_encoding=True)


def lean(observation: torch.Tensor) -> torch.Tensor:
    """A policy for CartPole: pushes to the side to which the pole leans, so that episodes are of some 50 steps."""
    return (observation[..., 2] > 0).long()


def swing(observation: torch.Tensor) -> torch.Tensor:
    """A policy for Pendulum."""
    return -observation[..., 2:]


def module(function: Any) -> TensorDictModule:
    return TensorDictModule(function, in_keys=["observation"], out_keys=["action"])


def stacked(steps: Sequence[Any], dim: int = 0) -> TensorDictBase:
    made: Any = torch.stack(list(steps), dim)
    made.names = [*(None for _ in range(dim)), "time"]
    return made  # type: ignore[no-any-return]


def assert_same(found: TensorDictBase, expected: TensorDictBase) -> None:
    assert found.shape == expected.shape
    assert found.names == expected.names
    assert set(found.keys(True, True)) == set(expected.keys(True, True))
    for key, value in expected.items(True, True):
        torch.testing.assert_close(found[key], value, rtol=0, atol=0)


@pytest.mark.parametrize("stops_at_end", [True, False])
@pytest.mark.parametrize(
    ("ours", "theirs", "policy"),
    [
        (lambda: GymEnv("CartPole-v1"), CARTPOLE, lean),
        (
            lambda: GymEnv("Pendulum-v1", max_episode_steps=30),
            lambda: envs.GymEnv("Pendulum-v1", max_episode_steps=30),
            swing,
        ),
        (lambda: SerialEnv(2, "CartPole-v1"), lambda: envs.SerialEnv(2, CARTPOLE), lean),
    ],
    ids=["CartPole", "Pendulum", "2 x CartPole"],
)
def test_rollouts_are_those_of_torchrl(ours: Any, theirs: Any, policy: Any, stops_at_end: bool) -> None:
    mine, other = ours(), theirs()
    assert mine.set_seed(5) == other.set_seed(5)
    for _ in range(2):
        found, expected = (env.rollout(150, module(policy), break_when_any_done=stops_at_end) for env in (mine, other))
        assert expected["next", "done"].any()
        assert_same(found, expected)
    assert mine.set_seed(6, static_seed=True) == other.set_seed(6, static_seed=True)
    assert_same(mine.reset(), other.reset())
    mine.close()
    other.close()


def test_a_loop_by_hand_is_torchrls() -> None:
    mine, other = SerialEnv(2, "CartPole-v1"), envs.SerialEnv(2, CARTPOLE)
    made = []
    for env in (mine, other):
        env.set_seed(1)
        root, steps = env.reset(), list[TensorDictBase]()
        for _ in range(100):
            stepped, root = env.step_and_maybe_reset(module(lean)(root))
            steps.append(stepped)
        made.append(stacked(steps, 1))
    assert made[1]["next", "done"].sum() > 1
    assert_same(*made)


def test_a_rollout_continues_where_another_stopped() -> None:
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    whole = env.rollout(40, module(lean), break_when_any_done=False)
    env.set_seed(0)
    first = env.rollout(15, module(lean), break_when_any_done=False)
    rest = env.rollout(
        25, module(lean), break_when_any_done=False, auto_reset=False, tensordict=env.step_mdp(first[-1])
    )
    assert_same(stacked([*first, *rest]), whole)


def test_spaces_and_random_actions() -> None:
    env = SerialEnv(3, Rich)
    assert env.action_space == Rich().action_space
    assert env.observation_space == Rich().observation_space
    assert env.batch_size == (3,)
    steps = env.rollout(10, break_when_any_done=False)
    assert steps.shape == (3, 10)
    assert steps["observation", "picture"].shape == (3, 10, 40, 40)
    assert steps["next", "observation", "pair", "1"].dtype == torch.int8
    assert steps["action"].shape == (3, 10, 2)
    assert steps["next", "terminated"][0, :, 0].nonzero()[:, 0].tolist() == [3, 7]


def test_processes_give_what_one_process_gives() -> None:
    made = []
    for env in (SerialEnv(2, "CartPole-v1"), ParallelEnv(2, "CartPole-v1")):
        env.set_seed(3)
        made.append(env.rollout(30, module(lean), break_when_any_done=False))
        env.close()
    assert_same(*made)


def test_only_the_copies_that_are_named_are_reset() -> None:
    env = SerialEnv(2, lambda: Counter((3, 5)))
    root = env.reset()
    for _ in range(2):
        root = env.step_mdp(env.step(env.rand_action(root)))
    root = env.reset(root.set("_reset", torch.tensor([[True], [False]])))
    assert root["observation"][:, 0].tolist() == [100, 2]
    assert "_reset" not in root


def test_a_policys_state_stays() -> None:
    def remembering(steps: TensorDictBase) -> TensorDictBase:
        count = steps.get("count", torch.zeros(()))
        return steps.update({"action": torch.tensor(1), "next": {"count": count + 1}})

    steps = GymEnv("CartPole-v1").rollout(4, remembering)
    assert steps["next", "count"].tolist() == [1, 2, 3, 4]


def test_what_cannot_be_stepped() -> None:
    env = GymEnv("CartPole-v1", max_episode_steps=1)
    with pytest.raises(CollectError, match="expected 'action'") as error:
        env.step(env.reset())
    assert "rand_action" in str(error.value.hint)
    env.step(env.rand_action(env.reset()))
    with pytest.raises(CollectError, match="has ended: reset it first"):
        env.step(env.rand_action())
    with pytest.raises(CollectError, match="expected at least 1"):
        env.rollout(0)
    with pytest.raises(CollectError, match="auto_reset=False"):
        env.rollout(1, auto_reset=False)
    with pytest.raises(CollectError, match="policy gave no action"):
        env.rollout(1, lambda steps: steps)
    with pytest.raises(CollectError, match="num_workers 0: expected at least 1"):
        SerialEnv(0, "CartPole-v1")
    with pytest.raises(CollectError, match="has 1 functions: expected 2"):
        SerialEnv(2, [Counter]).reset()
    with pytest.raises(CollectError, match="unknown"):
        GymEnv("CartPool-v1").reset()


def test_a_collector_makes_its_own() -> None:
    env = GymEnv("CartPole-v1", max_episode_steps=4)
    env.reset()
    assert pickle.loads(pickle.dumps(env)).options == {"max_episode_steps": 4}
    with Collector(env, frames_per_batch=10, total_frames=10) as collector:
        (batch,) = collector
    assert batch is not None
    assert batch["next", "truncated"][:, 0].nonzero()[:, 0].tolist() == [3, 7]
    env.step(env.rand_action())  # not closed with the collector
    env.close()
    env.close()


def test_a_rollout_after_an_episodes_end_begins_another() -> None:
    env = GymEnv("CartPole-v1", max_episode_steps=3)
    first = env.rollout(3)
    assert first["next", "done"][-1]
    steps = env.rollout(2, auto_reset=False, tensordict=env.step_mdp(first[-1]))
    assert len(steps) == 2
    assert not steps["next", "done"].any()
    assert not torch.equal(steps["observation"][0], first["next", "observation"][-1])
    cut = env.rollout(2, set_truncated=True)
    assert cut["next", "truncated"].flatten().tolist() == [False, True]
    assert cut["next", "done"].flatten().tolist() == [False, True]


def test_a_plain_module_chooses_actions() -> None:
    class Lean(torch.nn.Module):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return lean(observation)

    env = GymEnv("CartPole-v1")
    steps = env.rollout(5, Lean())
    assert torch.equal(steps["action"], lean(steps["observation"]))


class Paired(Counter):
    """Takes a pair, whose second part has a name."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Tuple([spaces.Discrete(3), spaces.Dict(push=spaces.Box(-1, 1, (2,)))])


def test_actions_of_several_parts() -> None:
    env = SerialEnv(2, Paired)
    steps = env.rollout(2)
    assert steps["action", "0"].shape == (2, 2)
    assert steps["action", "1", "push"].shape == (2, 2, 2)
