"""Small environments that show at a glance what is wrong: observation = 100 * episode + t."""

import os
import signal
import sys
import time
from collections import Counter as Tally
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from rlx.collector.environment.gym_env import GymEnv, SerialEnv

Step = tuple[Any, float, bool, bool, dict[str, Any]]


class Counter(gymnasium.Env[Any, Any]):
    """Episodes of ``lengths`` steps in turn; every other one is truncated, the others are terminated. Reward is t."""

    def __init__(self, lengths: tuple[int, ...] = (3, 5), *, fails_after: int | None = None) -> None:
        self.observation_space = spaces.Box(0, 10_000, (2,), np.int32)
        self.action_space = spaces.Discrete(3)
        self._lengths = lengths
        self._episode = -1
        self._t = 0
        self._steps_left = fails_after

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._episode += 1
        self._t = 0
        return self._observation(), {}

    def step(self, action: Any) -> Step:
        assert self.action_space.contains(action)
        if self._steps_left is not None:
            self._steps_left -= 1
            if self._steps_left < 0:
                raise RuntimeError("the motor is hot")
        self._t += 1
        ended = self._t == self._lengths[self._episode % len(self._lengths)]
        is_even = self._episode % 2 == 0
        return self._observation(), float(self._t), ended and is_even, ended and not is_even, {}

    def _observation(self) -> Any:
        return np.full(2, 100 * self._episode + self._t, np.int32)


class Registered(Counter):
    """A Counter that its process knows of as long as it is not closed."""

    opened: ClassVar[Tally[str]] = Tally()

    def __init__(self) -> None:
        super().__init__()
        self.opened["now"] += 1
        self.opened["ever"] += 1

    def close(self) -> None:
        self.opened["now"] -= 1


class Dying(Counter):
    """Ends its process, once or always, after that many steps."""

    def __init__(self, flag: Path | None, steps: int) -> None:
        super().__init__()
        self._flag, self._left = flag, steps

    def step(self, action: Any) -> Any:
        self._left -= 1
        if self._left < 0 and self._is_first():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)

    def _is_first(self) -> bool:
        if self._flag is None:
            return True
        with suppress(FileExistsError):
            self._flag.touch(exist_ok=False)  # one of two workers, even if both come here at once
            return True
        return False


class Rich(gymnasium.Env[Any, Any]):
    """A picture, a vector and a pair to see, several numbers to do; four steps an episode."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            picture=spaces.Box(0, 255, (40, 40), np.uint8),
            vector=spaces.Box(-np.inf, np.inf, (3,), np.float64),
            pair=spaces.Tuple([spaces.Discrete(4), spaces.MultiBinary(2)]),
        )
        self.action_space = spaces.MultiDiscrete([2, 3])
        self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._t = 0
        return self._observation(), {}

    def step(self, action: Any) -> Step:
        assert self.action_space.contains(action)
        self._t += 1
        return self._observation(), -2.5, self._t == 4, False, {}

    def _observation(self) -> Any:
        picture = np.full((40, 40), self._t, np.uint8)
        return {"picture": picture, "vector": np.full(3, self._t / 4), "pair": (self._t % 4, np.array([1, 0], np.int8))}


class Structured(Rich):
    """Rich, with actions that have parts."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Dict(push=spaces.Box(-1, 1, (2,), np.float32), press=spaces.Discrete(2, start=5))


def two_counters() -> SerialEnv:
    return SerialEnv(2, Counter)


def make_failing() -> Counter:
    return Counter(fails_after=20)


def one(observation: Any) -> Any:
    """A policy: the same action for all."""
    return np.ones(len(observation), np.int64)


def of_floats(observation: Any) -> Any:
    """A policy whose actions fit no Discrete space."""
    return np.zeros((len(observation), 2))


class Tagged(Counter):
    """A Counter that says who it is: observation = (tag, process, episode, t).

    Args:
        tag: its number.
        lengths: of its episodes, in turn.
        sleeps: seconds a step.
        dies: the step, counted over all episodes, in which it kills its process.
    """

    def __init__(
        self, tag: int, lengths: tuple[int, ...] = (3, 5), *, sleeps: float = 0.0, dies: int | None = None
    ) -> None:
        super().__init__(lengths)
        self.observation_space = spaces.Box(0, 1 << 40, (4,), np.int64)
        self._tag = tag
        self._sleeps = sleeps
        self._steps_to_live = dies

    def step(self, action: Any) -> Step:
        time.sleep(self._sleeps)
        if self._steps_to_live is not None:
            self._steps_to_live -= 1
            if self._steps_to_live < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)

    def _observation(self) -> Any:
        return np.array([self._tag, os.getpid(), self._episode, self._t])


class Closing(Tagged):
    """Leaves a file when it is closed."""

    def __init__(self, path: Path, *, sleeps: float) -> None:
        super().__init__(0, sleeps=sleeps)
        self._path = path

    def close(self) -> None:
        self._path.touch()


def make_env() -> GymEnv:
    """As TorchRL's documentation has it."""
    return GymEnv("Pendulum-v1")


def make_tagged() -> Tagged:
    """Which one it is says its process."""
    return Tagged(0, (9, 13))


def swing(observation: Any) -> Any:
    """A policy for Pendulum."""
    return -observation[:, 2:]


def sleep() -> None:
    time.sleep(1e6)


def kill_without_a_word() -> None:
    os._exit(5)


def leave() -> None:
    sys.exit("enough")


class Ending(Counter):
    """Does something else than the step of this number, in every process or, with a flag, in one of them."""

    def __init__(self, ends: Callable[[], None], steps: int, flag: Path | None = None) -> None:
        super().__init__((5,))
        self._ends, self._left, self._flag = ends, steps, flag

    def step(self, action: Any) -> Any:
        self._left -= 1
        if self._left < 0 and not (self._flag is not None and self._flag.exists()):
            if self._flag is not None:
                self._flag.touch()
            self._ends()
        return super().step(action)


class Unending(Ending):
    """An episode that is longer than its process lives, though many batches long."""

    def __init__(self) -> None:
        super().__init__(kill_without_a_word, 100)
        self._lengths = (1000,)
