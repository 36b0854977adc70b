"""A worker as the function of an actor: what it is called with, and what it answers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlx.collector.rollout.steps import Steps
from rlx.collector.worker.exchange import Description, Exchange, Remainder, Room, Weights
from rlx.collector.worker.step_worker import Equipment, Order, Worker


@dataclass(frozen=True, slots=True)
class Describe:
    """The answer is a Description."""


@dataclass(frozen=True, slots=True)
class Share:
    """From now on steps and weights go through the memory in a file."""

    path: Path
    room: Room


@dataclass(frozen=True, slots=True)
class Detach:
    """From now on the policy is a copy, whose weights come with tasks."""


@dataclass(frozen=True, slots=True)
class Task:
    """An order; the answer is steps: all of them, or what of them is not in the shared memory.

    Args:
        order: which.
        slot: of the shared memory, where the steps go.
        weights: if they are new and memory is not shared.
    """

    order: Order
    slot: int
    weights: Weights | None


class RemoteWorker:
    """A worker that receives tasks one at a time."""

    def __init__(self, equipment: Equipment) -> None:
        self._worker = Worker(equipment)
        self._exchange: Exchange | None = None
        self._edition = 0
        self._version = 0

    def __call__(self, task: Describe | Share | Detach | Task) -> Description | Steps | Remainder | None:
        """Do what the task says."""
        if isinstance(task, Describe):
            env = self._worker.environment
            return Description(env.name, env.num_envs, env.is_batched, env.observation_space, env.action_space)
        if isinstance(task, Detach):
            self._worker.detach()
            return None
        if isinstance(task, Share):
            self._exchange = Exchange(task.room, task.path)
            return None
        return self._by_value(task) if self._exchange is None else self._through(self._exchange, task)

    def close(self) -> None:
        """Close the environment."""
        self._worker.close()

    def _by_value(self, task: Task) -> Steps:
        if task.weights is not None:
            self._use(task.weights)
        return self._worker.collect(task.order, self._version)

    def _through(self, exchange: Exchange, task: Task) -> Remainder:
        if exchange.edition != self._edition:
            self._edition, weights = exchange.get_weights()
            self._use(weights)
        steps = exchange.steps(task.slot, task.order.length)
        self._worker.collect(task.order, self._version, steps, lambda: exchange.is_halted(task.order.number))
        return exchange.put(task.slot, steps)

    def _use(self, weights: Weights) -> None:
        self._version = weights.version
        module: Any = getattr(self._worker.policy, "module", None)
        if len(weights.packed) and module is not None:
            from rlx.collector.policy.weights import unpack  # noqa: PLC0415  (torch takes seconds)

            unpack(module, weights.packed)
