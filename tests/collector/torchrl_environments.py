"""Environments of TorchRL for the tests: functions, which other processes can import."""

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, NonTensor, Unbounded
from torchrl.envs import (
    Compose,
    EnvBase,
    GymEnv,
    InitTracker,
    RewardSum,
    SerialEnv,
    StepCounter,
    TensorDictPrimer,
    TransformedEnv,
)


def cartpole() -> Any:
    return GymEnv("CartPole-v1", categorical_action_encoding=True)


def one_hot_cartpole() -> Any:
    return GymEnv("CartPole-v1")


def counted() -> Any:
    """With a step count, a running return, and what rlx's collectors do themselves."""
    primer = TensorDictPrimer(h=Unbounded((3,)), default_value=0.0)
    return TransformedEnv(cartpole(), Compose(StepCounter(12), RewardSum(), InitTracker(), primer))


def counted_pair() -> Any:
    primer = TensorDictPrimer(h=Unbounded((3,)), default_value=0.0, expand_specs=True)
    return TransformedEnv(SerialEnv(2, cartpole), Compose(StepCounter(12), RewardSum(), InitTracker(), primer))


class Lab(EnvBase):  # type: ignore[misc]  # TorchRL's types are not known
    """Observations of every kind; episodes of three steps; ``noise`` is in no spec."""

    def __init__(self, batch_size: tuple[int, ...] = ()) -> None:
        super().__init__(batch_size=torch.Size(batch_size))
        shape = self.batch_size
        self.observation_spec = Composite(
            pixels=Bounded(0, 255, (*shape, 4, 4), dtype=torch.uint8),
            state=Composite(door=Categorical(3, shape), switches=Binary(2, (*shape, 2), dtype=torch.bool), shape=shape),
            shape=shape,
        )
        self.action_spec = Composite(
            action=Composite(
                push=Bounded(-1, 1, (*shape, 2)), press=MultiCategorical([2, 3], (*shape, 2)), shape=shape
            ),
            shape=shape,
        )
        self.reward_spec = Unbounded((*shape, 1), dtype=torch.float64)
        self._t = torch.zeros(shape, dtype=torch.int64)

    def _set_seed(self, seed: int | None) -> None:
        del seed

    def _seen(self) -> TensorDictBase:
        pixels = self._t.to(torch.uint8).reshape(*self.batch_size, 1, 1).expand(*self.batch_size, 4, 4)
        state = TensorDict(
            {"door": self._t % 3, "switches": torch.ones(*self.batch_size, 2, dtype=torch.bool)}, self.batch_size
        )
        return TensorDict({"pixels": pixels.clone(), "state": state}, self.batch_size)

    def _reset(self, tensordict: TensorDictBase | None, **_: Any) -> TensorDictBase:
        which = None if tensordict is None else tensordict.get("_reset", None)
        self._t = self._t * 0 if which is None else torch.where(which.reshape(self._t.shape), 0, self._t)
        return self._seen()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._t = self._t + 1
        done = (self._t == 3).unsqueeze(-1)
        reward = tensordict["action", "push"].sum(-1, keepdim=True).to(torch.float64)
        more = {"reward": reward, "done": done, "terminated": done.clone(), "noise": self._t / 2}
        return self._seen().update(more)


def lab() -> Any:
    return Lab()


def lab_pair() -> Any:
    return Lab((2,))


class Speaking(Lab):
    """Says where it is."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec["text"] = NonTensor((), example_data="here")

    def _seen(self) -> TensorDictBase:
        seen = super()._seen()
        seen["text"] = f"step {int(self._t)}"
        return seen


class Pair(Lab):
    """Two agents, each with a reward."""

    def __init__(self) -> None:
        super().__init__()
        self.reward_spec = Unbounded((2,))


class Flying(Lab):
    """Takes two actions, none of which is called action."""

    def __init__(self) -> None:
        super().__init__()
        self.action_spec = Composite(roll=Bounded(-1, 1, (1,)), pitch=Bounded(-1, 1, (1,)))


class Blind(Lab):
    """Sees nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite()
