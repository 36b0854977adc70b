"""Randomness that depends on a place in a dataset, and not on who works there."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


@contextmanager
def seeded(place: int) -> Iterator[None]:
    """Seeds the global generators of Python, numpy and torch (where it is imported); they are put back afterwards."""
    torch = sys.modules.get("torch")
    states = random.getstate(), np.random.get_state(), torch.get_rng_state() if torch else None  # noqa: NPY002
    random.seed(place)
    np.random.seed(place % 2**32)  # noqa: NPY002  (a user's function may use the global one)
    if torch:
        torch.manual_seed(place)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        if torch:
            torch.set_rng_state(states[2])
