"""A shuffled order that needs no memory: any place of it is computed when it is asked for.

A Feistel network, keyed by the seed and the epoch, shuffles the cells of the smallest rectangle about as wide as high
that has n of them or more: in turns a cell's column moves by a hash of its row and its row by a hash of its column. An
ordinal that lands on one of the few cells too many is shuffled again until it lands below n ("cycle walking").
"""

import math

import numpy as np
from numpy.typing import NDArray

from rlx.buffer.sampler.draws import ORDERS, stream

_FEW = 1024  # up to which the whole order is made at once, every one as likely
_ROUNDS = 6  # even, so that rows end up as rows
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)


def permute(ordinals: NDArray[np.int64], n: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return [...] where each ordinal of range(n) lands; all of them together land everywhere once.

    Args:
        ordinals: [...] of range(n).
        n: how many there are to shuffle; up to 2**62.
        seed: any integer.
        epoch: another one for another order of the same seed.

    Raises:
        IndexError: an ordinal outside range(n).

    Example:
        >>> permute(np.arange(6), 6, seed=0, epoch=1)
        array([1, 0, 5, 4, 3, 2])
    """
    places = np.array(ordinals, dtype=np.int64)
    if places.size and (places.min() < 0 or places.max() >= n):
        raise IndexError(f"expected ordinals of range({n}), found {places.min()} to {places.max()}")
    rng = stream(seed, ORDERS, epoch, 0)
    if n <= _FEW:
        return rng.permutation(n)[places]
    keys = rng.integers(2**64, size=_ROUNDS, dtype=np.uint64)
    width = math.isqrt(n - 1) + 1
    height = -(-n // width)
    flat = places.reshape(-1)
    walking = _shuffle(flat, width, height, keys)
    flat[:] = walking
    outside = np.flatnonzero(walking >= n)
    while outside.size:
        walking = _shuffle(flat[outside], width, height, keys)
        flat[outside] = walking
        outside = outside[walking >= n]
    return places


def _shuffle(places: NDArray[np.int64], width: int, height: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return [n] where a permutation of range(width * height) takes each place."""
    one, other = np.divmod(places.astype(np.uint64), np.uint64(width))
    size, other_size = np.uint64(height), np.uint64(width)
    for key in keys:
        mixed = (other ^ key) * _ODD
        mixed = (mixed ^ (mixed >> _HALF)) * _MIX
        one, other = other, (one + (mixed >> _HALF)) % size
        size, other_size = other_size, size
    return (one * np.uint64(width) + other).astype(np.int64)
