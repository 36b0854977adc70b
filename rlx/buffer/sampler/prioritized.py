"""Prioritized sampling (Schaul et al., 2016)."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal, SupportsFloat

import numpy as np
import torch
from numpy.typing import NDArray

from rlx.buffer.protocol import Rows, Storage
from rlx.buffer.sampler.priority_tree import Floats, PriorityTree
from rlx.buffer.sampler.steps import SeededSampler, stored_steps
from rlx.errors import SamplingError
from rlx.numbers import check_real

logger = logging.getLogger(__name__)
# Bounds of what is stored, so that nothing drawable becomes 0 and nothing infinite, whatever alpha is.
_SMALLEST, _LARGEST = 1.2e-38, 3.4e38
_FIRST = 1.0  # priority of new steps before a larger one was given
_AT_ONCE = 1 << 20  # stored steps looked at together
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

    ``priority + eps`` and ``p`` are stored as float32, 8.4 bytes per row together with their sums, which are computed
    anew with every change: probabilities are exact to 6e-8, after any number of updates. When ``alpha`` is changed, the
    next ``sample`` computes every ``p`` again.

    Args:
        max_capacity: maximum number of rows of the storage.
        alpha: exponent of priorities, a number or a tensor of one; 0 samples uniformly.
        beta: exponent of the importance-sampling weights, a number or a tensor of one; 1 corrects all of the bias.
        eps: added to every priority, so that steps of priority 0 are drawn too.
        reduction: how several priorities of one step are reduced to one.
        max_priority_within_buffer: new steps get the largest stored priority instead of the largest ever given; 1 if
            no other step is stored.
        seed: random seed; by default from ``generator``, or random.
        generator: source of the seed.

    Attributes:
        alpha: exponent of priorities; set it, or change its tensor, to anneal it.
        beta: exponent of the importance-sampling weights; set it, or change its tensor, to anneal it.

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

    alpha: SupportsFloat
    beta: SupportsFloat

    def __init__(
        self,
        max_capacity: int,
        alpha: SupportsFloat,
        beta: SupportsFloat,
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
        self.reduction = reduction
        self.max_priority_within_buffer = max_priority_within_buffer
        self._tree = PriorityTree(max_capacity, keeps_most=max_priority_within_buffer)
        self._exponent = self._first_alpha = float(alpha)  # of the weights in the tree; before it was annealed
        self._most_given = self._stored(_FIRST)
        self._least_known: tuple[np.float32, float] | None = None  # priority and exponent of the least weight
        self._least_weight = np.float32(0)

    def sample(self, storage: Storage, batch_size: int) -> tuple[Rows, Mapping[Any, NDArray[Any]]]:
        """Return [n] rows, and their weights.

        Raises:
            SamplingError: the storage is empty, or larger than ``max_capacity``.
        """
        stored_steps(storage, batch_size)
        self.catch_up(storage)
        self._weigh_anew()
        rows, weights = self._tree.draw(self._draws.next().random(batch_size))
        return rows, {PRIORITY_WEIGHT: self._corrections(weights)}

    def extended(self, storage: Storage, rows: Rows) -> None:
        """Give written rows the priority of new steps; forget that of dropped ones."""
        self._check_capacity(storage)
        rows = rows.reshape(-1)
        if storage.has_gaps:
            self._tree.write(rows, np.float32(0), np.float32(0))
            rows = storage.stored(rows)
        priority = self._most_given
        if self.max_priority_within_buffer:
            self._tree.write(rows, np.float32(0), np.float32(0))  # what is overwritten takes its priority with it
            priority = self._tree.most or self._stored(_FIRST)
        self._tree.write(rows, priority, self._weighed(priority))

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
        if not rows.size:
            return
        if not (given.min() >= 0 and given.max() < np.inf):
            raise ValueError(f"expected finite priorities of at least 0, found {given.min()} to {given.max()}")
        stored = self._stored(given)
        most = self._tree.write(rows, stored, self._weighed(stored), only_known=True)
        self._most_given = max(self._most_given, most)

    def emptied(self) -> None:
        """Forget all priorities."""
        self._tree.clear()
        self._most_given = self._stored(_FIRST)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the next samples depend on."""
        rows = self._tree.known_rows()
        return super().state_dict() | {
            "alpha": float(self.alpha),
            "first_alpha": self._first_alpha,
            "beta": float(self.beta),
            "eps": self.eps,
            "rows": torch.from_numpy(rows),
            "priorities": torch.from_numpy(self._tree.priority[rows]),
            "most_given": float(self._most_given),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of ``state_dict``, with its ``alpha``, ``beta`` and ``eps``.

        Raises:
            SamplingError: the state is of a larger capacity.
        """
        rows = state["rows"].numpy()
        if rows.size and rows.max() >= self._tree.capacity:
            raise SamplingError(
                f"expected priorities of rows up to {self._tree.capacity - 1}, found some up to {rows.max()}",
                hint=f"use a max_capacity of at least {rows.max() + 1}",
            )
        super().load_state_dict(state)
        given, found = (self._first_alpha, self.eps), (state.get("first_alpha", state["alpha"]), state["eps"])
        if given != found:
            logger.warning("alpha and eps %s of the loaded state replace %s", found, given)
        self._first_alpha, self.eps = found
        self.alpha, self.beta = _set(self.alpha, state["alpha"]), _set(self.beta, state["beta"])
        self._exponent = float(self.alpha)
        self._tree.clear()
        priorities, most = _priorities(state)
        self._tree.write(rows, priorities, self._weighed(priorities))
        self._most_given = most

    def _stored(self, priority: Any) -> Any:
        """Return priorities as the tree keeps them, above 0."""
        return np.minimum(np.maximum(priority + self.eps, _SMALLEST), _LARGEST).astype(np.float32)

    def _weighed(self, stored: Any) -> Any:
        """Return the weights of priorities that the tree keeps."""
        with np.errstate(over="ignore", under="ignore"):
            weights = np.asarray(stored, np.float64) ** self._exponent
        return np.minimum(np.maximum(weights, _SMALLEST), _LARGEST).astype(np.float32)

    def _weigh_anew(self) -> None:
        """Compute all weights again if ``alpha`` was changed."""
        if self.alpha != self._exponent:
            self._exponent = check_real("alpha", self.alpha, 0)
            self._tree.reweigh(self._weighed)

    def _corrections(self, weights: Floats) -> Floats:
        """Return [n] the importance-sampling weights of rows with these weights."""
        known = self._tree.least, self._exponent
        if known != self._least_known:
            self._least_known, self._least_weight = known, self._weighed(self._tree.least)
        ratios = self._least_weight / weights.astype(np.float64)
        corrections: Floats = (ratios ** float(self.beta)).astype(np.float32)
        return corrections

    def catch_up(self, storage: Storage) -> None:
        """Give rows that were written before the storage had this sampler the priority of new ones."""
        self._check_capacity(storage)
        steps = len(storage)
        for start in range(0, steps, _AT_ONCE):
            if self._tree.known >= steps:
                return
            rows = storage.row_at(np.arange(start, min(start + _AT_ONCE, steps)))
            if (new := rows[self._tree.priority[rows] == 0]).size:
                self.extended(storage, new)

    def _check_capacity(self, storage: Storage) -> None:
        if storage.max_size > self._tree.capacity:
            raise SamplingError(
                f"expected a storage of at most {self._tree.capacity} steps, found one of {storage.max_size}",
                hint=f"use a max_capacity of {storage.max_size}",
            )

    def _reduced(self, priority: NDArray[np.float64], count: int) -> NDArray[np.float64]:
        if priority.size == 1:
            return np.broadcast_to(priority.reshape(1), count)
        if priority.shape[:1] != (count,):
            raise ValueError(f"expected {count} priorities, found {priority.shape}")
        return priority if priority.ndim == 1 else REDUCE[self.reduction](priority.reshape(count, -1), axis=1)


def _set(present: SupportsFloat, value: float) -> SupportsFloat:
    """Return a number, in the tensor that holds the present one, if any."""
    return present.fill_(value) if isinstance(present, torch.Tensor) else value


def _priorities(state: Mapping[str, Any]) -> tuple[Floats, np.float32]:
    """Return [n] the priorities of a state's rows as the tree keeps them, and the largest given."""
    if "priorities" in state:
        return state["priorities"].numpy(), np.float32(state["most_given"])
    # An older state has (priority + eps) ** alpha alone.
    weights = np.append(state["weights"].numpy(), state["largest"])
    with np.errstate(over="ignore", divide="ignore"):
        priorities = weights ** (1 / state["alpha"]) if state["alpha"] else np.ones_like(weights)
    stored = np.clip(priorities, _SMALLEST, _LARGEST).astype(np.float32)
    return stored[:-1], stored[-1]
