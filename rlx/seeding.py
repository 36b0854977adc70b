"""Seeds of environments, and of the global generators that a user's function may draw from."""

import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of Python, numpy and torch (where it is imported), and restore them afterwards.

    Args:
        seed: 0 to 2**63 - 1.
    """
    with generators_kept():
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002  (a user's function may use the global one)
        if torch := sys.modules.get("torch"):
            torch.manual_seed(seed)
        yield


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restore the global generators of Python, numpy and torch (where it is imported) afterwards."""
    torch = sys.modules.get("torch")
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    of_torch = (torch.get_rng_state(), _device_states()) if torch else None
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        if torch and of_torch:
            torch.set_rng_state(of_torch[0])
            _set_device_states(of_torch[1])


def generator_state() -> dict[str, Any]:
    """Return the states of the global generators of Python, numpy and torch; goes through ``torch.save``."""
    import torch  # torch takes seconds

    kind, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002
    state = {
        "python": random.getstate(),
        "numpy": [kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
    }
    return state | _device_states()


def set_generator_state(state: Mapping[str, Any]) -> None:
    """Make the global generators continue from such states."""
    import torch  # torch takes seconds

    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    _set_device_states(state)


def _device_states() -> dict[str, list[Any]]:
    """Return the states of the generators of all devices, by their type; none if no accelerator is in use."""
    from rlx.accelerator import in_use  # torch takes seconds

    if (here := in_use()) is None:
        return {}
    module: Any = sys.modules["torch"].get_device_module(here)
    if hasattr(module, "get_rng_state_all"):
        return {here.type: list(module.get_rng_state_all())}
    return {here.type: [module.get_rng_state()]}  # such as Apple's


def _set_device_states(state: Mapping[str, Any]) -> None:
    from rlx.accelerator import available  # torch takes seconds

    torch: Any = sys.modules["torch"]
    here = available()
    if here is None or here.type not in state:
        return
    module = torch.get_device_module(here)
    if not hasattr(module, "set_rng_state_all"):
        module.set_rng_state(state[here.type][0])
        return
    for number, its in enumerate(state[here.type][: torch.accelerator.device_count()]):  # there may be fewer now
        module.set_rng_state(its, number)


def env_seeds(seed: int, session: int, num_envs: int, purpose: int, first: int = 0) -> list[int]:
    """Return [n] seeds of 31 bits for the environments from number ``first`` on.

    Each session, purpose and environment has a seed of its own, which ``num_envs`` does not change.

    Example:
        >>> env_seeds(0, 0, 2, 0) == env_seeds(0, 0, 3, 0)[:2]
        True
        >>> env_seeds(0, 0, 2, 0, first=1) == env_seeds(0, 0, 3, 0)[1:]
        True
        >>> env_seeds(0, 1, 2, 0) == env_seeds(0, 0, 2, 0)
        False
    """
    keys = [(session, purpose, env) for env in range(first, first + num_envs)]
    return [int(np.random.SeedSequence(seed, spawn_key=key).generate_state(1)[0]) >> 1 for key in keys]
