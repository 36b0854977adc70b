"""Environments made by users' functions, as environments of gymnasium."""

from functools import partial
from typing import Any

import gymnasium

from rlx.collector.environment.copies import MakeEnv
from rlx.collector.environment.gym_env import GymEnv
from rlx.errors import CollectError, RlxError


def called(function: MakeEnv) -> Any:
    """Return the result of a user's function; a ``GymEnv`` or an environment of TorchRL as gymnasium's.

    Raises:
        CollectError: the function failed.
    """
    try:
        found = function()
    except RlxError:
        raise
    except (Exception, SystemExit) as exc:  # whatever a stranger's function raises
        raise CollectError(f"{function_name(function)} failed: {type(exc).__name__}: {exc}") from exc
    return as_gymnasium(found() if isinstance(found, GymEnv) else found)


def as_gymnasium(env: Any) -> Any:
    """Return an environment of TorchRL as gymnasium's; anything else as it is."""
    if not is_torchrl(env):
        return env
    from rlx.collector.environment.torchrl import adapted  # noqa: PLC0415  (torch takes seconds)

    return adapted(env)


def is_torchrl(env: Any) -> bool:
    """Return whether it is a ``torchrl.envs.EnvBase``."""
    return any(
        kind.__name__ == "EnvBase" and kind.__module__.partition(".")[0] == "torchrl" for kind in type(env).__mro__
    )


def function_name(function: MakeEnv) -> str:
    """Return the name of an environment factory for messages."""
    if isinstance(function, GymEnv):
        return function.env_id
    if isinstance(function, partial):
        return function_name(function.func)
    return getattr(function, "__qualname__", type(function).__name__)


def environment_name(env: Any) -> str:
    """Return the name of an environment for messages and manifests."""
    if isinstance(name := getattr(env.unwrapped, "torchrl_name", None), str):
        return name
    spec = getattr(env, "spec", None)
    return spec.id if spec is not None else type(env.unwrapped).__name__


def one(source: MakeEnv) -> "gymnasium.Env[Any, Any]":
    """Return the single environment that a function makes.

    Raises:
        CollectError: the function failed, or made something else.
    """
    made = called(source)
    if not isinstance(made, gymnasium.Env):
        raise CollectError(f"{function_name(source)} gave a {type(made).__name__}: expected a gymnasium.Env")
    return made
