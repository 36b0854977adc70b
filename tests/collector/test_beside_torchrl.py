"""The batches of TorchRL's Collector, key for key: the same environment, seed and module, in one process."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential

from rlx.collector import Collector, SerialEnv
from tests.collector.memory import Head, actor
from tests.collector.walks import Walk

torch_collectors = pytest.importorskip("torchrl.collectors")
torch_envs = pytest.importorskip("torchrl.envs")
torch_modules = pytest.importorskip("torchrl.modules")

LANES, STEPS = 2, 500


class Steady(Walk):
    """A walk whose episodes are the same however often it is reset before their first step."""

    def __init__(self, lane: int) -> None:
        super().__init__(lane)
        self._begun = self._rng.bit_generator.state
        self._is_fresh = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self._is_fresh:
            self._rng.bit_generator.state = self._begun
        self._begun, self._is_fresh = self._rng.bit_generator.state, True
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._is_fresh = False
        return super().step(action)


def recurrent(kind: str) -> tuple[Any, Any]:
    """A policy, and what its states start from in TorchRL."""
    torch.manual_seed(1)
    if kind == "actor":
        return actor(), None
    memory = getattr(torch_modules, f"{kind}Module")(3, 5, in_key="observation", out_key="embed")
    head = TensorDictModule(Head(5), in_keys=["embed"], out_keys=["logits"])
    return TensorDictSequential(memory, head, actor()[1]), memory.make_tensordict_primer()


def ours(policy: Any, frames: int) -> list[Any]:
    lanes = iter(range(LANES))
    with Collector(
        SerialEnv(LANES, lambda: Steady(next(lanes))),
        policy,
        frames_per_batch=frames,
        total_frames=LANES * STEPS,
    ) as collector:
        torch.manual_seed(0)
        return [batch.clone() for batch in collector if batch is not None]


def theirs(policy: Any, primer: Any, frames: int) -> list[Any]:
    def made(lane: int) -> Any:
        return torch_envs.GymWrapper(Steady(lane), categorical_action_encoding=True)

    env = torch_envs.TransformedEnv(
        torch_envs.SerialEnv(LANES, [partial(made, lane) for lane in range(LANES)]), torch_envs.InitTracker()
    )
    if primer is not None:
        env.append_transform(primer)
    collector = torch_collectors.Collector(env, policy, frames_per_batch=frames, total_frames=LANES * STEPS)
    torch.manual_seed(0)
    try:
        return [batch.clone() for batch in collector]
    finally:
        collector.shutdown()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["actor", "GRU", "LSTM"])
def test_every_key_of_every_batch_is_equal(kind: str) -> None:
    policy, primer = recurrent(kind)
    found, expected = ours(policy, 100), theirs(policy, primer, 100)
    assert len(found) == len(expected) == LANES * STEPS // 100
    resets = 0
    for batch, other in zip(found, expected, strict=True):
        assert batch.shape == other.shape
        keys = set(other.keys(True, True))
        assert set(batch.keys(True, True)) == keys
        for key in sorted(keys, key=str):
            assert batch[key].dtype == other[key].dtype, key
            assert batch[key].shape == other[key].shape, key
            assert torch.equal(batch[key], other[key]), key
        resets += int(batch["is_init"].sum())
    assert resets > 150
    names = {"actor": [], "GRU": ["recurrent_state"], "LSTM": ["recurrent_state_h", "recurrent_state_c"]}[kind]
    assert all(np.any(found[0][name].numpy()) for name in names), "a state is carried"


@pytest.mark.filterwarnings("ignore")
def test_noise_that_remembers_itself() -> None:
    noise = torch_modules.OrnsteinUhlenbeckProcessModule(
        spec=pytest.importorskip("torchrl.data").Bounded(-2, 2, (1,)), annealing_num_steps=0, eps_end=1.0
    )
    still = TensorDictModule(lambda seen: torch.zeros(len(seen), 1), in_keys=["observation"], out_keys=["action"])
    options: dict[str, Any] = {"frames_per_batch": 20, "total_frames": 80, "max_frames_per_traj": 7}
    with Collector(SerialEnv(2, "Pendulum-v1"), TensorDictSequential(still, noise), **options) as collector:
        batch: Any = torch.cat([batch for batch in collector if batch is not None], 1)
    assert batch["_ou_steps"].flatten(1).tolist() == [[1 + t % 7 for t in range(40)]] * 2
