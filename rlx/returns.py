"""Discounted sums of the rewards of consecutive steps, for datasets and for samples alike."""

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

Rewards = TypeVar("Rewards")
_AT_ONCE = 1 << 15  # numbers, padding included, that stay in a processor's cache


def discounted_sum(rewards: Iterable[Rewards], gamma: float) -> Rewards:
    """Return the reward of each step plus the discounted ones of the steps after it.

    Args:
        rewards: arrays or tensors of one shape: the reward of each step, of the one after it, and so on; 0 after the
            end of a trajectory.

    Example:
        >>> discounted_sum([np.array([1.0, 2.0]), np.array([2.0, 0.0])], 0.5)
        array([2., 2.])
    """
    terms: Iterator[Any] = iter(rewards)
    total: Any = 1.0 * next(terms)
    for ahead, reward in enumerate(terms, 1):
        total = total + gamma**ahead * reward
    return cast("Rewards", total)


def discount(steps: NDArray[np.int64], gamma: float) -> NDArray[np.float32]:
    """Return float32 [n, 1] the discount of a value that is steps [n] ahead."""
    return (gamma ** steps[:, None]).astype(np.float32)


def returns_to_go(rewards: NDArray[Any], lengths: NDArray[np.int64], gamma: float) -> NDArray[np.float64]:
    """Return [S] the discounted sum of the rewards from each step to the end of its trajectory.

    Example:
        >>> returns_to_go(np.ones(5), np.array([3, 2]), 0.5)
        array([1.75, 1.5 , 1.  , 1.5 , 1.  ])
    """
    if not np.isfinite(rewards).all():  # a sum may be multiplied by a discount of zero, which NaN and inf outlive
        return _one_by_one(rewards, lengths, gamma)
    longest = int(lengths.max(initial=1))
    if len(lengths) * longest <= _AT_ONCE:
        return _padded(rewards, lengths, longest, gamma)
    returns = np.empty(len(rewards))
    widths = 2 ** np.ceil(np.log2(np.maximum(lengths, 1))).astype(np.int64)
    for width in np.unique(widths).tolist():  # so that none is padded to more than about twice its length
        alike = widths == width
        mine = np.repeat(alike, lengths)
        returns[mine] = _padded(rewards[mine], lengths[alike], width, gamma)
    return returns


def _one_by_one(rewards: NDArray[Any], lengths: NDArray[np.int64], gamma: float) -> NDArray[np.float64]:
    """Return [S] the sums, each made of the one after it: slower, but nothing spreads to later steps."""
    returns = np.empty(len(rewards))
    stop = 0
    for length in lengths.tolist():
        start, stop = stop, stop + length
        backwards = accumulate(rewards[start:stop][::-1].tolist(), lambda later, now: now + gamma * later)
        returns[start:stop] = np.fromiter(backwards, np.float64, length)[::-1]
    return returns


def _padded(rewards: NDArray[Any], lengths: NDArray[np.int64], width: int, gamma: float) -> NDArray[np.float64]:
    """Return [S] the sums, of trajectories padded to one width."""
    inside = np.arange(width) < lengths[:, None]
    sums = np.zeros(inside.shape)
    sums[inside] = rewards
    # Every pass doubles how many rewards each sum has. Unlike a product of matrices it waits for no other thread.
    at_once = max(1, _AT_ONCE // width)
    for start in range(0, len(sums), at_once):
        piece, ahead = sums[start : start + at_once], 1
        while ahead < width:
            piece[:, :-ahead] += gamma**ahead * piece[:, ahead:]
            ahead *= 2
    return sums[inside]
