"""Schedulers that change a parameter of a sampler, such as ``beta``, a little with every training step."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from rlx.buffer.protocol import Sampler
from rlx.errors import SchemaMismatchError
from rlx.numbers import check_whole


@runtime_checkable
class HasSampler(Protocol):
    """A replay buffer, for its sampler."""

    @property
    def sampler(self) -> Sampler:
        """The sampler."""


class ParameterScheduler(ABC):
    """Base of schedulers that change a parameter of a sampler at every ``step``; a subclass defines how.

    Args:
        obj: a sampler, or a buffer, for its sampler.
        param_name: the attribute to change, for example "beta".
        min_value: lower bound of the parameter; unbounded by default.
        max_value: upper bound of the parameter; unbounded by default.

    Attributes:
        initial_val: the parameter when the scheduler was created.

    Raises:
        ValueError: the sampler has no such parameter.

    Example:
        >>> sampler = rlx.buffer.PrioritizedSampler(100, alpha=0.6, beta=0.4)
        >>> scheduler = rlx.buffer.StepScheduler(sampler, "beta", gamma=0.1, mode="additive", max_value=1.0)
        >>> isinstance(scheduler, rlx.buffer.ParameterScheduler)
        True
    """

    def __init__(
        self,
        obj: HasSampler | Sampler,
        param_name: str,
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        self.sampler: Sampler = obj.sampler if isinstance(obj, HasSampler) else obj
        if not hasattr(self.sampler, param_name):
            raise ValueError(f"{type(self.sampler).__name__} has no attribute {param_name!r}")
        self.param_name = param_name
        self.initial_val = float(getattr(self.sampler, param_name))
        self._min = -math.inf if min_value is None else min_value
        self._max = math.inf if max_value is None else max_value
        self._steps = 0

    @abstractmethod
    def value(self, steps: int, current: float) -> float:
        """Return the parameter after ``step`` steps, before it is bounded.

        Args:
            steps: how often ``step`` was called, this call included.
            current: the parameter now.
        """

    def step(self) -> None:
        """Change the parameter."""
        self._steps += 1
        new = self.value(self._steps, getattr(self.sampler, self.param_name))
        setattr(self.sampler, self.param_name, min(max(new, self._min), self._max))

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps, and the initial value; the parameter itself is in the sampler's state."""
        return {"steps": self._steps, "initial_val": self.initial_val}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of ``state_dict``."""
        self._steps, self.initial_val = state["steps"], state["initial_val"]


class LambdaScheduler(ParameterScheduler):
    """Scheduler that sets a parameter to its initial value times a function of the number of steps.

    Args:
        obj: a sampler, or a buffer, for its sampler.
        param_name: the attribute to change.
        lambda_fn: returns the factor after n steps.
        min_value: lower bound of the parameter.
        max_value: upper bound of the parameter.

    Example:
        >>> sampler = rlx.buffer.PrioritizedSampler(100, alpha=0.6, beta=0.4)
        >>> scheduler = rlx.buffer.LambdaScheduler(sampler, "beta", lambda step: 1 + step / 2)
        >>> scheduler.step()
        >>> round(sampler.beta, 3)
        0.6
    """

    def __init__(
        self,
        obj: HasSampler | Sampler,
        param_name: str,
        lambda_fn: Callable[[int], float],
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        super().__init__(obj, param_name, min_value, max_value)
        self.lambda_fn = lambda_fn

    def value(self, steps: int, current: float) -> float:  # noqa: ARG002
        """Return the initial value times the factor."""
        return self.initial_val * self.lambda_fn(steps)


class LinearScheduler(ParameterScheduler):
    """Scheduler that moves a parameter from its initial to a final value in equal steps.

    Args:
        obj: a sampler, or a buffer, for its sampler.
        param_name: the attribute to change.
        final_value: the value after ``num_steps`` steps, and from then on.
        num_steps: number of steps to the final value.

    Example:
        >>> from rlx.buffer import PrioritizedSampler
        >>> sampler = PrioritizedSampler(100, alpha=0.6, beta=0.5)
        >>> scheduler = LinearScheduler(sampler, "beta", final_value=1.0, num_steps=4)
        >>> for _ in range(3):
        ...     scheduler.step()
        >>> sampler.beta
        0.875
    """

    def __init__(self, obj: HasSampler | Sampler, param_name: str, final_value: float, num_steps: int) -> None:
        super().__init__(obj, param_name)
        check_whole("num_steps", num_steps)
        self.final_val = final_value
        self.num_steps = num_steps

    def value(self, steps: int, current: float) -> float:  # noqa: ARG002
        """Return the value on the line."""
        if steps >= self.num_steps:
            return self.final_val
        return self.initial_val + (self.final_val - self.initial_val) / self.num_steps * steps


class StepScheduler(ParameterScheduler):
    """Scheduler that multiplies a parameter by a number, or adds the number to it, every n steps.

    Args:
        obj: a sampler, or a buffer, for its sampler.
        param_name: the attribute to change.
        gamma: the number.
        n_steps: number of steps between two changes.
        mode: ``multiplicative`` or ``additive``.
        min_value: lower bound of the parameter.
        max_value: upper bound of the parameter.

    Example:
        >>> sampler = rlx.buffer.PrioritizedSampler(100, alpha=0.6, beta=0.5)
        >>> scheduler = rlx.buffer.StepScheduler(sampler, "beta", gamma=0.25, n_steps=2, mode="additive", max_value=1.0)
        >>> for _ in range(4):
        ...     scheduler.step()
        >>> sampler.beta
        1.0
    """

    def __init__(
        self,
        obj: HasSampler | Sampler,
        param_name: str,
        gamma: float = 0.9,
        n_steps: int = 1,
        mode: Literal["multiplicative", "additive"] = "multiplicative",
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        super().__init__(obj, param_name, min_value, max_value)
        if mode not in ("multiplicative", "additive"):
            raise ValueError(f"mode {mode!r}: expected 'multiplicative' or 'additive'")
        self.gamma, self.n_steps, self.mode = gamma, n_steps, mode

    def value(self, steps: int, current: float) -> float:
        """Return the parameter, changed if the number of steps is a multiple of ``n_steps``."""
        if steps % self.n_steps:
            return current
        return current * self.gamma if self.mode == "multiplicative" else current + self.gamma


class SchedulerList:
    """List of schedulers that step together.

    Args:
        schedulers: the schedulers.

    Example:
        >>> sampler = rlx.buffer.PrioritizedSampler(100, alpha=0.6, beta=0.4)
        >>> schedulers = rlx.buffer.SchedulerList([
        ...     rlx.buffer.StepScheduler(sampler, "alpha", gamma=0.5),
        ...     rlx.buffer.StepScheduler(sampler, "beta", gamma=2.0, max_value=1.0),
        ... ])
        >>> schedulers.step()
        >>> sampler.alpha, sampler.beta
        (0.3, 0.8)
    """

    def __init__(self, schedulers: Sequence[ParameterScheduler] | ParameterScheduler) -> None:
        self.schedulers = [schedulers] if isinstance(schedulers, ParameterScheduler) else list(schedulers)

    def append(self, scheduler: ParameterScheduler) -> None:
        """Add a scheduler."""
        self.schedulers.append(scheduler)

    def step(self) -> None:
        """Let every scheduler step."""
        for scheduler in self.schedulers:
            scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the schedulers."""
        return {"schedulers": [scheduler.state_dict() for scheduler in self.schedulers]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the states of the same number of schedulers.

        Raises:
            SchemaMismatchError: the state is of another number of schedulers.
        """
        if len(state["schedulers"]) != len(self.schedulers):
            raise SchemaMismatchError(
                f"checkpoint of {len(state['schedulers'])} schedulers: expected {len(self.schedulers)}"
            )
        for scheduler, its in zip(self.schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(its)
