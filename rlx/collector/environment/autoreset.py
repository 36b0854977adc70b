"""Autoreset modes of gymnasium's vector environments, and what stands in for them in gymnasium 1.0, which has one.

There, gymnasium's own vector environments are in ``NEXT_STEP``, without saying so, and reset all environments together.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from gymnasium import vector
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

HAS_MODES = hasattr(vector, "AutoresetMode")

if TYPE_CHECKING or HAS_MODES:
    from gymnasium.vector import AutoresetMode as AutoresetMode
else:

    class AutoresetMode(Enum):
        """When an episode that ended begins anew: with gymnasium's names and values."""

        NEXT_STEP = "NextStep"
        SAME_STEP = "SameStep"
        DISABLED = "Disabled"


# Arguments of ``SyncVectorEnv`` and ``AsyncVectorEnv``.
SAME_STEP: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP} if HAS_MODES else {}


def declared(env: VectorEnv[Any, Any, Any]) -> Any:
    """Return the autoreset mode that an environment declares; None if it declares none."""
    mode = (env.metadata or {}).get("autoreset_mode")
    if mode is None and not HAS_MODES and isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv):
        return AutoresetMode.NEXT_STEP
    return mode


def resets_some(env: VectorEnv[Any, Any, Any]) -> bool:
    """Return whether it is known that ``reset`` takes gymnasium's "reset_mask"."""
    return HAS_MODES and isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
