"""Prioritized sampling (Schaul et al., 2016), and the tree over the priorities of rows that it draws from.

The compiled kernel (``CompiledTree``) writes and draws in one call each; without it, numpy gives the same bits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, SupportsFloat

import numpy as np
import torch
from numpy.typing import NDArray

from rlx.buffer.protocol import Rows, Storage
from rlx.buffer.sampler.steps import SeededSampler, stored_steps
from rlx.errors import SamplingError
from rlx.numbers import check_real, check_whole
from rlx.store.native.memory import zeros
from rlx.store.native.tree import CompiledTree, tree_kernel

Floats = NDArray[np.float32]
_SHIFT = 5
_WIDTH = 1 << _SHIFT
_GROUP = 8  # of children that are looked at together
_ONE = np.uint32(1)
_NODES_AT_ONCE = 1 << 13  # nodes whose rows are weighed at once
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


class PriorityTree:
    """Priorities and weights of ``capacity`` rows, and what sampling asks of all of them.

    A row has two float32: its priority, 0 while it is empty, and its weight, 0 while it is never drawn. Every 32 rows,
    and every 32 nodes, have a node with the sum of weights (float64) and the least priority (float32): 8.4 bytes per
    row in all, and memory is taken only where rows are written. A node is computed from its children at every write, so
    the tree is a function of its rows, after any number of writes.

    Args:
        capacity: number of rows.
        keeps_most: whether nodes have the largest priority too.

    Attributes:
        known: number of rows that are not empty.
        priority: [at least capacity] priority of each row; read only.
        weight: [at least capacity] weight of each row; read only.
    """

    def __init__(self, capacity: int, *, keeps_most: bool = False) -> None:
        check_whole("capacity", capacity)
        self.capacity = capacity
        self._keeps_most = keeps_most
        self.clear()

    def clear(self) -> None:
        """Make all rows empty."""
        counts = [-(-self.capacity // _WIDTH)]  # of nodes, by level
        while counts[-1] > 1:
            counts.append(-(-counts[-1] // _WIDTH))
        rows, *inner = (count * _WIDTH for count in counts)
        levels = [*inner, 1]
        self.known = 0
        self.priority, self.weight = zeros(rows, np.float32), zeros(rows, np.float32)
        self._sums = [zeros(width, np.float64) for width in levels]
        self._leasts = [zeros(width, np.float32) for width in levels]
        self._mosts = [zeros(width, np.float32) for width in levels] if self._keeps_most else []
        parts = self.capacity, self.priority, self.weight, self._sums, self._leasts, self._mosts
        self._compiled = None if (functions := tree_kernel()) is None else CompiledTree(functions, *parts)

    def __getstate__(self) -> tuple[Any, ...]:
        parts = list(self._known_nodes())
        return self.capacity, self._keeps_most, self.known, [(n, self._rows_of(n), self._weights_of(n)) for n in parts]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.capacity, self._keeps_most, known, parts = state
        self.clear()
        self.known = known
        for nodes, priorities, weights in parts:
            _by_node(self.priority)[nodes], _by_node(self.weight)[nodes] = priorities, weights
            self._refresh(nodes)

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return float(self._sums[-1][0])

    @property
    def least(self) -> np.float32:
        """Least priority; 0 if all rows are empty."""
        return self._leasts[-1][0]  # type: ignore[no-any-return]

    @property
    def most(self) -> np.float32:
        """Largest priority; 0 if all rows are empty. Only with ``keeps_most``."""
        return self._mosts[-1][0]  # type: ignore[no-any-return]

    def write(
        self, rows: Rows, priority: Floats | np.float32, weight: Floats | np.float32, *, only_known: bool = False
    ) -> np.float32:
        """Set rows, and return the largest priority that was set, or 0; of a repeated row, the last values count.

        Args:
            rows: [n] rows; -1 is passed over.
            priority: [n], or one for all; above 0, or 0 to make rows empty.
            weight: [n], or one for all.
            only_known: pass over empty rows, and leave rows that are never drawn so; priorities are above 0.

        Raises:
            IndexError: a row is out of range; nothing is written.
        """
        rows = np.ascontiguousarray(rows, np.int64)
        priority, weight = np.asarray(priority, np.float32), np.asarray(weight, np.float32)
        if self._compiled is None:
            known, most = self._write(rows, priority, weight, only_known)
        else:
            known, most = self._compiled.write(rows, priority, weight, only_known)
        self.known += known
        return most

    def draw(self, uniform: NDArray[np.float64]) -> tuple[Rows, Floats]:
        """Return [n] rows, drawn in proportion to their weights, and [n] their weights.

        Args:
            uniform: [n] random numbers of [0, 1), which are overwritten: times ``total``, the sums of weights that the
                drawn row and those before it exceed first. What rounding carries past the end of a node falls on its
                last rows that are drawn at all.

        Raises:
            ValueError: all weights are 0.
        """
        if not self.total:
            raise ValueError("no row has a weight")
        if self._compiled is not None:
            return self._compiled.draw(uniform)
        left, found = uniform * self._sums[-1][0], np.zeros(len(uniform), np.int64)
        for level in self._sums[-2::-1]:
            child, left = _child(_by_node(level)[found], left)
            found = found * _WIDTH + child
        found = found * _WIDTH + _child(_by_node(self.weight)[found], left)[0]
        return found, self.weight[found]

    def reweigh(self, weigh: Callable[[Floats], Floats]) -> None:
        """Compute weights anew from priorities [n], except those that are 0."""
        for nodes in self._known_nodes():
            is_drawn = self._weights_of(nodes) > 0
            _by_node(self.weight)[nodes] = np.where(is_drawn, weigh(self._rows_of(nodes)), np.float32(0))
            self._refresh(nodes)

    def known_rows(self) -> Rows:
        """Return [n] the rows that are not empty, ascending."""
        found = [
            (nodes[:, None] * _WIDTH + np.arange(_WIDTH))[self._rows_of(nodes) > 0] for nodes in self._known_nodes()
        ]
        return np.concatenate([np.empty(0, np.int64), *found])

    def undrawn_rows(self) -> Rows:
        """Return [n] the rows that are not empty and have weight 0, ascending."""
        found = [np.empty(0, np.int64)]
        for start in range(0, self.capacity, _WIDTH * _NODES_AT_ONCE):
            rows = slice(start, start + _WIDTH * _NODES_AT_ONCE)
            found.append(start + np.flatnonzero((self.weight[rows] == 0) & (self.priority[rows] > 0)))
        return np.concatenate(found)

    def _known_nodes(self) -> Iterator[Rows]:
        """Yield the lowest nodes that have a row which is not empty, some at once."""
        nodes = np.flatnonzero(self._leasts[0])
        for start in range(0, len(nodes), _NODES_AT_ONCE):
            yield nodes[start : start + _NODES_AT_ONCE]

    def _rows_of(self, nodes: Rows) -> Floats:
        return _by_node(self.priority)[nodes]

    def _weights_of(self, nodes: Rows) -> Floats:
        return _by_node(self.weight)[nodes]

    def _write(self, rows: Rows, priority: Floats, weight: Floats, only_known: bool) -> tuple[int, np.float32]:
        if rows.size and not -1 <= rows.min() <= rows.max() < self.capacity:
            raise IndexError(f"rows {rows.min()} to {rows.max()}: expected 0 to {self.capacity - 1}")
        chosen = rows >= 0
        if only_known:
            chosen &= self.priority[rows] > 0
        at, given = rows[chosen], np.broadcast_to(priority, rows.shape)[chosen]
        if not at.size:
            return 0, np.float32(0)
        distinct = _distinct(np.sort(at))
        before = np.count_nonzero(self.priority[distinct])
        self.priority[at] = given
        is_drawn = self.weight[at] > 0 if only_known else np.ones(at.shape, bool)
        self.weight[at[is_drawn]] = np.broadcast_to(weight, rows.shape)[chosen][is_drawn]
        self._refresh(_distinct(distinct >> _SHIFT))
        return int(np.count_nonzero(self.priority[distinct]) - before), given.max()

    def _refresh(self, nodes: Rows) -> None:
        """Compute the lowest nodes [n] from their rows, and those above them."""
        self._sums[0][nodes] = _total(self._weights_of(nodes).astype(np.float64))
        for levels, reduce in ((self._leasts, _least), (self._mosts, _most)):
            if levels:
                levels[0][nodes] = reduce(self._rows_of(nodes))
        for level in range(1, len(self._sums)):
            nodes = _distinct(nodes >> _SHIFT)
            self._sums[level][nodes] = _total(_by_node(self._sums[level - 1])[nodes])
            for levels, reduce in ((self._leasts, _least), (self._mosts, _most)):
                if levels:
                    levels[level][nodes] = reduce(_by_node(levels[level - 1])[nodes])


def _by_node(level: NDArray[Any]) -> NDArray[Any]:
    return level.reshape(-1, _WIDTH)


def _distinct(ascending: Rows) -> Rows:
    is_last = ascending[:-1] != ascending[1:]
    return np.concatenate((ascending[:-1][is_last], ascending[-1:]))


def _total(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return [...] the sums of numbers [..., width], in the order of the kernel: halves are added until one is left."""
    while (width := numbers.shape[-1]) > 1:
        numbers = numbers[..., : width // 2] + numbers[..., width // 2 :]
    return numbers[..., 0]


def _least(children: Floats) -> Floats:
    """Return [n] the least of children [n, 32] that are above 0; 0 of none."""
    # As integers, which have the same order; 0 less 1 is the largest of them.
    least: Floats = ((children.view(np.uint32) - _ONE).min(axis=1) + _ONE).view(np.float32)
    return least


def _most(children: Floats) -> Floats:
    most: Floats = children.max(axis=1)
    return most


def _child(children: NDArray[Any], left: NDArray[np.float64]) -> tuple[Rows, NDArray[np.float64]]:
    """Return [n] which of children [n, 32] is the first at which their sum exceeds ``left``, less those before it."""
    groups = children.astype(np.float64).reshape(-1, _WIDTH // _GROUP, _GROUP)
    group, left = _pick(_total(groups), left)
    child, left = _pick(groups[np.arange(len(left)), group], left)
    return group * _GROUP + child, left


def _pick(numbers: NDArray[np.float64], left: NDArray[np.float64]) -> tuple[Rows, NDArray[np.float64]]:
    """Return [n] which of numbers [n, width] is the first at which their sum exceeds ``left``, less those before it."""
    before = np.zeros((len(numbers), numbers.shape[1] + 1))
    np.cumsum(numbers, axis=1, out=before[:, 1:])
    left = np.minimum(left, np.nextafter(before[:, -1], -np.inf))
    found = (before[:, 1:] <= left[:, None]).sum(axis=1)
    return found, left - before[np.arange(len(left)), found]


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
        if not (np.minimum.reduce(given) >= 0 and np.maximum.reduce(given) < np.inf):
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
        if self._exponent <= 1:  # then they are between the bounds, as what is stored is
            return (np.asarray(stored, np.float64) ** self._exponent).astype(np.float32)
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
