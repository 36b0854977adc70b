"""Several copies of an environment as one: stepped in this process, or each in a process of its own."""

from collections.abc import Callable, Sequence
from typing import Any

from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from rlx.collector.environment.vector import VectorEnvironment
from rlx.engine.main_module import hidden
from rlx.errors import CollectError, RlxError

MakeEnv = Callable[[], Any]


def serial(makes: Sequence[MakeEnv], name: str, *, is_batched: bool) -> VectorEnvironment:
    """Return the environments of all functions, stepped one after the other.

    Raises:
        CollectError: a function failed, or made something else than a ``gymnasium.Env``.
    """
    env = _vector(name, lambda: SyncVectorEnv(makes, autoreset_mode=AutoresetMode.SAME_STEP))
    return VectorEnvironment(env, name, is_batched=is_batched)


def parallel(makes: Sequence[MakeEnv], name: str, start_method: str) -> VectorEnvironment:
    """Return the environments of all functions, each in its own process, with observations in shared memory.

    Raises:
        CollectError: a function failed, or made something else than a ``gymnasium.Env``.
    """
    with hidden():
        env = _vector(name, lambda: AsyncVectorEnv(makes, context=start_method, autoreset_mode=AutoresetMode.SAME_STEP))
    return VectorEnvironment(env, name)


def _vector(name: str, make: "Callable[[], VectorEnv[Any, Any, Any]]") -> "VectorEnv[Any, Any, Any]":
    try:
        return make()
    except RlxError:
        raise
    except (Exception, SystemExit) as exc:  # whatever a stranger's environment raises
        raise CollectError(f"environment {name} cannot be made: {type(exc).__name__}: {exc}") from exc
