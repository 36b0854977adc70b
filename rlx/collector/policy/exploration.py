"""How policies sample their distributions: the ``InteractionType`` of tensordict, set while they act."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from inspect import signature
from typing import Any


@contextmanager
def exploring(exploration_type: str) -> Iterator[None]:
    """Let policies of tensordict and TorchRL sample, or not, as ``exploration_type`` says.

    Args:
        exploration_type: name of an ``InteractionType``, such as ``"RANDOM"`` or ``"DETERMINISTIC"``.
    """
    if "tensordict" not in sys.modules:  # then no policy asks how to explore, and importing it takes seconds
        yield
        return
    from tensordict.nn import InteractionType, set_interaction_type  # noqa: PLC0415  (not imported here)

    with set_interaction_type(InteractionType[exploration_type], **_of_this_thread(set_interaction_type)):
        yield


@cache
def _of_this_thread(set_interaction_type: Callable[..., Any]) -> dict[str, Any]:
    """Return arguments that leave other threads alone, such as a learner's; of tensordicts that support them."""
    return {"thread_local": True} if "thread_local" in signature(set_interaction_type).parameters else {}
