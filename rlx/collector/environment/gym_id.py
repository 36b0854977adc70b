"""Environments by their ids: those that gymnasium knows, Atari games, and envpool's."""

import re
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

import gymnasium
from gymnasium.error import DependencyNotInstalled, NameNotFound, NamespaceNotFound, UnregisteredEnv, VersionNotFound

from rlx.collector.environment import atari
from rlx.collector.environment.envpool import PREFIX as POOL
from rlx.collector.environment.envpool import Pool
from rlx.collector.environment.protocol import Environment
from rlx.collector.environment.vector import VectorEnvironment, serial
from rlx.errors import CollectError, MissingExtraError
from rlx.suggestion import nearest

_UNKNOWN = (NameNotFound, NamespaceNotFound, VersionNotFound, UnregisteredEnv)


def of_id(env_id: str, options: Mapping[str, Any], num_envs: int, *, is_batched: bool) -> Environment:
    """Return copies of an environment.

    Args:
        env_id: as gymnasium has it, or ``envpool/NAME``.
        options: keyword arguments of ``gymnasium.make``.
        num_envs: how many copies.
        is_batched: whether its user expects a dimension of environments.

    Raises:
        CollectError: the id is unknown, or the environment cannot be made.
        MissingExtraError: a package that it needs is not installed.
    """
    if env_id.startswith(POOL):
        if options:
            raise CollectError(f"{env_id} takes no options, found {', '.join(options)}")
        return _pool(env_id, num_envs, is_batched=is_batched)
    atari.register(env_id)
    entry = gymnasium.registry.get(env_id)
    if env_id.startswith(atari.PREFIX) and entry is not None and not options:
        return atari.vector(env_id, entry.kwargs["game"], num_envs, is_batched=is_batched)
    return serial([partial(make, env_id, **options)] * num_envs, env_id, is_batched=is_batched)


def make(env_id: str, **options: Any) -> "gymnasium.Env[Any, Any]":
    """Return one environment by its id; Atari games with DQN preprocessing.

    Raises:
        CollectError: the id is unknown, or the environment cannot be made.
        MissingExtraError: a package that it needs is not installed.
    """
    atari.register(env_id)
    try:
        if not env_id.startswith(atari.PREFIX):
            return gymnasium.make(env_id, **options)
        env = gymnasium.make(env_id, **{"frameskip": 1, "repeat_action_probability": 0.25, **options})
        return gymnasium.wrappers.AtariPreprocessing(env, noop_max=0)
    except _UNKNOWN as exc:
        near = _near(env_id)
        hint = f"did you mean {', '.join(near)}?" if near else "gymnasium.pprint_registry() lists the known ids"
        raise CollectError(f"environment {env_id!r} is unknown to gymnasium", hint=hint) from exc
    except (DependencyNotInstalled, ModuleNotFoundError) as exc:
        raise MissingExtraError(
            f"{env_id} needs a package that is not installed: {exc}", hint=_install(str(exc))
        ) from exc
    except gymnasium.error.Error as exc:
        raise CollectError(f"environment {env_id!r} cannot be made: {exc}") from exc


def _near(env_id: str) -> list[str]:
    """Return known ids like an unknown one; of an Atari game without a namespace, or by an old name, the one with
    it."""
    if find_spec("ale_py") is not None:
        atari.register(atari.PREFIX)
    game = f"{atari.PREFIX}{re.split('NoFrameskip|Deterministic|-', env_id)[0]}-v5"
    if game in gymnasium.registry:
        return [game]
    return nearest(env_id, gymnasium.registry)


def _install(message: str) -> str | None:
    """Return the command in gymnasium's message, if it has one."""
    return " && ".join(re.findall("`(pip install [^`]+)`", message)) or None


def _pool(env_id: str, num_envs: int, *, is_batched: bool) -> Environment:
    pool = Pool(env_id, num_envs)
    env = atari.Unstacked(pool) if "stack_num" in pool.settings else pool
    return VectorEnvironment(env, env_id, is_batched=is_batched, settings=pool.settings)
