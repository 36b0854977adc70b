"""Prioritized sampling (Schaul et al., 2016)."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from rlx.buffer.protocol import Rows, Storage
from rlx.buffer.sampler.steps import SeededSampler, stored_steps
from rlx.errors import SamplingError
from rlx.numbers import check_real, check_whole

_SHIFT = 4
_WIDTH = 1 << _SHIFT
_REDUCE = {"sum": np.add, "min": np.minimum, "max": np.maximum}
_NOTHING = {"sum": 0.0, "min": np.inf, "max": -np.inf}


class PriorityTree:
    """The sum, minimum or maximum of ``capacity`` float64 leaves, and the leaves.

    Args:
        capacity: number of leaves; initially the neutral element: 0, infinity or minus infinity.
    """

    def __init__(self, capacity: int, of: Literal["sum", "min", "max"] = "sum") -> None:
        check_whole("capacity", capacity)
        self.capacity = capacity
        self._reduce = _REDUCE[of]
        self._nothing = _NOTHING[of]
        self._levels: list[NDArray[np.float64]] = []  # the leaves first; every level [nodes, children]
        nodes = capacity
        while not self._levels or nodes > 1:
            nodes = -(-nodes // _WIDTH)
            self._levels.append(np.full((nodes, _WIDTH), self._nothing))

    @property
    def root(self) -> float:
        """The reduction of all leaves."""
        return float(self._reduce.reduce(self._levels[-1][0]))

    def get(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return [n] the leaves at these rows."""
        return self._levels[0].reshape(-1)[rows]

    def set(self, rows: NDArray[np.int64], values: NDArray[np.float64] | float) -> None:
        """Set leaves; of a repeated row, the last value counts.

        Args:
            rows: [n], each of range(capacity).
            values: [n], or one for all.
        """
        if rows.size == 0:
            return
        self._levels[0].reshape(-1)[rows] = values
        nodes = np.sort(rows)
        for children, parents in zip(self._levels, self._levels[1:], strict=False):
            nodes = _distinct(nodes >> _SHIFT)
            parents.reshape(-1)[nodes] = self._reduce.reduce(children.take(nodes, axis=0), axis=1)

    def find(self, sums: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return [n] the leaf of each prefix sum: the first at which the sum of leaves exceeds it. Sum trees only.

        Args:
            sums: [n] from 0 to less than the root. What rounding carries past the end falls on the last leaf that is
                not 0; a leaf that is 0 is never found.
        """
        nodes, left = np.zeros(sums.size, np.int64), sums
        every = np.arange(sums.size)
        for level in reversed(self._levels):
            running = np.zeros((sums.size, _WIDTH + 1))
            np.cumsum(level.take(nodes, axis=0), axis=1, out=running[:, 1:])
            left = np.minimum(left, np.nextafter(running[:, -1], -np.inf))
            child = (running[:, 1:] > left[:, None]).argmax(axis=1)
            left = left - running[every, child]
            nodes = nodes * _WIDTH + child
        return nodes

    def clear(self) -> None:
        """Set every leaf to the neutral element."""
        for level in self._levels:
            level.fill(self._nothing)


def _distinct(ascending: NDArray[np.int64]) -> NDArray[np.int64]:
    last_of_its_kind = ascending[:-1] != ascending[1:]
    return np.concatenate((ascending[:-1][last_of_its_kind], ascending[-1:]))


_SMALLEST, _LARGEST = 1e-200, 1e200
PRIORITY_WEIGHT = "priority_weight"
Reduction = Literal["max", "min", "median", "mean"]
REDUCE: dict[str, Callable[..., NDArray[np.float64]]] = {
    "max": np.max,
    "min": np.min,
    "median": np.median,
    "mean": np.mean,
}


class PrioritizedSampler(SeededSampler):
    """Sampler of stored steps in proportion to ``p = (priority + eps) ** alpha``, with replacement.

    New steps have the largest priority given so far, at least 1, so that they are likely to be drawn soon. Batches have
    importance-sampling weights as ``"priority_weight"``: ``(p / smallest stored p) ** -beta``, float32.

    Args:
        max_capacity: maximum number of rows of the storage.
        alpha: exponent of priorities; 0 samples uniformly.
        beta: exponent of the importance-sampling weights; 1 corrects all of the bias. Set it later to anneal it.
        eps: added to every priority, so that steps of priority 0 are drawn too.
        reduction: how several priorities of one step are reduced to one.
        max_priority_within_buffer: new steps get the largest stored priority instead of the largest ever given.
        seed: random seed; by default from ``generator``, or random.
        generator: source of the seed.

    Attributes:
        alpha: exponent of priorities.
        beta: exponent of the importance-sampling weights.

    Example:
        >>> data = rlx.open("cartpole")[:100]
        >>> buffer = rlx.ReplayBuffer(
        ...     storage=rlx.buffer.LazyTensorStorage(100),
        ...     sampler=rlx.buffer.PrioritizedSampler(100, alpha=0.6, beta=0.4, seed=0),
        ...     batch_size=32,
        ... )
        >>> rows = buffer.extend(data)
        >>> buffer.update_priority(rows[:50], 0.0)
        >>> batch, info = buffer.sample(return_info=True)
        >>> bool((info["index"] >= 50).all()), batch["priority_weight"].shape
        (True, torch.Size([32]))
    """

    alpha: float
    beta: float

    def __init__(
        self,
        max_capacity: int,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        *,
        reduction: Reduction = "max",
        max_priority_within_buffer: bool = False,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(seed=seed, generator=generator)
        check_real("alpha", alpha, 0)
        check_real("beta", beta, 0)
        check_real("eps", eps, above=0)
        if reduction not in REDUCE:
            raise ValueError(f"reduction {reduction!r}: expected one of {', '.join(REDUCE)}")
        self.alpha, self.beta, self.eps = alpha, beta, eps
        self._first_alpha = alpha  # before a scheduler changed it
        self.reduction = reduction
        self.max_priority_within_buffer = max_priority_within_buffer
        self._sums = PriorityTree(max_capacity, "sum")
        self._mins = PriorityTree(max_capacity, "min")
        self._maxs = PriorityTree(max_capacity, "max") if max_priority_within_buffer else None
        self._known = 0  # rows that have a priority
        self._largest = self._power(np.float64(1.0))

    def sample(self, storage: Storage, batch_size: int) -> tuple[Rows, Mapping[Any, NDArray[Any]]]:
        """Return [n] rows, and their weights.

        Raises:
            SamplingError: the storage is empty, or larger than ``max_capacity``.
        """
        stored_steps(storage, batch_size)
        self.catch_up(storage)
        rows = self._pick(self._draws.next(), batch_size)
        return rows, {PRIORITY_WEIGHT: self._weights(rows)}

    def extended(self, storage: Storage, rows: Rows) -> None:
        """Give written rows the priority of new steps."""
        self._check_capacity(storage)
        rows = rows.reshape(-1)
        new = np.unique(rows[self._mins.get(rows) == np.inf])
        self._known += len(new)
        self._set(rows, self._new_weight())

    def update_priority(self, rows: Rows, priority: NDArray[Any]) -> None:
        """Set the priorities of rows; of a repeated row, the last one counts.

        Args:
            rows: [n] rows; empty rows, as after the storage was emptied, and -1 are ignored.
            priority: [n], or [n, ...] to be reduced, or one for all; at least 0.

        Raises:
            IndexError: a row is out of range for this capacity.
            ValueError: a priority is negative or not finite, or the numbers of priorities and rows differ.
        """
        rows = np.asarray(rows, np.int64).reshape(-1)
        given = self._reduced(np.asarray(priority, np.float64), len(rows))
        if rows.size and not -1 <= rows.min() <= rows.max() < self._mins.capacity:
            raise IndexError(f"rows {rows.min()} to {rows.max()}: expected 0 to {self._mins.capacity - 1}")
        if not np.isfinite(given).all() or (given < 0).any():
            raise ValueError(f"expected finite priorities of at least 0, found {given.min()} to {given.max()}")
        holds = (rows >= 0) & (self._mins.get(rows) < np.inf)
        if holds.any():
            weights = self._power(given)[holds]
            self._largest = max(self._largest, weights.max())
            self._set(rows[holds], weights)

    def emptied(self) -> None:
        """Forget all priorities."""
        for tree in self._trees():
            tree.clear()
        self._known = 0
        self._largest = self._power(np.float64(1.0))

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the next samples depend on."""
        everything = np.arange(self._mins.capacity)
        rows = everything[self._mins.get(everything) < np.inf]
        return super().state_dict() | {
            "alpha": self.alpha,
            "first_alpha": self._first_alpha,
            "beta": self.beta,
            "eps": self.eps,
            "rows": torch.from_numpy(rows),
            "weights": torch.from_numpy(self._mins.get(rows)),
            "largest": float(self._largest),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of ``state_dict``.

        Raises:
            SamplingError: the state is of a larger capacity, or of another alpha or eps.
        """
        mine = self._first_alpha if "first_alpha" in state else self.alpha  # older states have only one of them
        found, expected = (state.get("first_alpha", state["alpha"]), state["eps"]), (mine, self.eps)
        if found != expected:
            raise SamplingError(f"expected priorities with alpha and eps {expected}, found {found}")
        rows, weights = state["rows"].numpy(), state["weights"].numpy()
        if rows.size and rows.max() >= self._mins.capacity:
            raise SamplingError(
                f"expected priorities of rows up to {self._mins.capacity - 1}, found some up to {rows.max()}",
                hint=f"use a max_capacity of at least {rows.max() + 1}",
            )
        super().load_state_dict(state)
        self.emptied()
        self.alpha, self.beta = state["alpha"], state["beta"]
        self._set(rows, weights)
        self._known = len(rows)
        self._largest = np.float64(state["largest"])

    def _trees(self) -> list[PriorityTree]:
        return [tree for tree in (self._sums, self._mins, self._maxs) if tree is not None]

    def _set(self, rows: Rows, weights: NDArray[np.float64] | float) -> None:
        for tree in self._trees():
            tree.set(rows, weights)

    def _pick(self, rng: np.random.Generator, count: int) -> Rows:
        return self._sums.find(rng.random(count) * self._sums.root)

    def _weights(self, rows: Rows) -> NDArray[np.float32]:
        weights: NDArray[np.float32] = ((self._mins.root / self._mins.get(rows)) ** self.beta).astype(np.float32)
        return weights

    def _power(self, priority: NDArray[np.float64] | np.float64) -> Any:
        # Bounded so that nothing drawable becomes 0 and no sum overflows, whatever alpha is.
        with np.errstate(over="ignore", under="ignore"):
            return np.clip((priority + self.eps) ** self.alpha, _SMALLEST, _LARGEST)

    def _new_weight(self) -> float:
        if self._maxs is not None and self._known and self._maxs.root > -np.inf:
            return self._maxs.root
        return float(self._largest)

    def catch_up(self, storage: Storage) -> None:
        """Give rows that were written before the storage had this sampler the priority of new ones."""
        self._check_capacity(storage)
        if self._known < len(storage):
            rows = storage.row_at(np.arange(len(storage)))
            self.extended(storage, rows[self._mins.get(rows) == np.inf])

    def _check_capacity(self, storage: Storage) -> None:
        if storage.max_size > self._mins.capacity:
            raise SamplingError(
                f"expected a storage of at most {self._mins.capacity} steps, found one of {storage.max_size}",
                hint=f"use a max_capacity of {storage.max_size}",
            )

    def _reduced(self, priority: NDArray[np.float64], count: int) -> NDArray[np.float64]:
        if priority.size == 1:
            return np.broadcast_to(priority.reshape(1), count)
        if priority.shape[:1] != (count,):
            raise ValueError(f"expected {count} priorities, found {priority.shape}")
        return priority if priority.ndim == 1 else REDUCE[self.reduction](priority.reshape(count, -1), axis=1)
