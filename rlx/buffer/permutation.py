"""A shuffled order that needs no memory: any place of it is computed when it is asked for.

A Feistel network shuffles the next power of 4 keyed by the seed and the epoch; an ordinal that lands at or above n is
shuffled again until it lands below ("cycle walking"), which takes fewer than four rounds on average.
"""

import numpy as np
from numpy.typing import NDArray

from rlx.buffer.draws import ORDERS, stream

_ROUNDS = 6
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)


def permute(ordinals: NDArray[np.int64], n: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """[...] where each ordinal of range(n) lands; all of them together land everywhere once.

    Args:
        ordinals: [...] of range(n).
        n: how many there are to shuffle; up to 2**62.
        seed: any integer.
        epoch: another one for another order of the same seed.

    Raises:
        IndexError: an ordinal outside range(n).

    Example:
        >>> permute(np.arange(6), 6, seed=0, epoch=1)
        array([0, 1, 4, 5, 3, 2])
    """
    places = np.array(ordinals, dtype=np.int64)
    if places.size and (places.min() < 0 or places.max() >= n):
        raise IndexError(f"ordinals of range({n}) expected, found {places.min()} to {places.max()}")
    half_bits = max(1, ((n - 1).bit_length() + 1) // 2)
    keys = stream(seed, ORDERS, epoch, 0).integers(2**64, size=_ROUNDS, dtype=np.uint64)
    flat = places.reshape(-1)
    walking = _shuffle(flat, half_bits, keys)
    flat[:] = walking
    outside = np.flatnonzero(walking >= n)
    while outside.size:
        walking = _shuffle(flat[outside], half_bits, keys)
        flat[outside] = walking
        outside = outside[walking >= n]
    return places


def _shuffle(places: NDArray[np.int64], half_bits: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """A permutation of range(4**half_bits)."""
    bits, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = places.astype(np.uint64) >> bits, places.astype(np.uint64) & mask
    for key in keys:
        mixed = (right ^ key) * _ODD
        mixed = (mixed ^ (mixed >> _HALF)) * _MIX
        left, right = right, left ^ ((mixed >> _HALF) & mask)
    return (left << bits | right).astype(np.int64)
