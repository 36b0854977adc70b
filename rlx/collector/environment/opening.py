"""From what a user calls an environment, an id, a function or one that is there already, to an Environment."""

from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import gymnasium
from gymnasium.vector import VectorEnv

from rlx.collector.environment.gym_env import (
    GymEnv,
    ParallelEnv,
    SerialEnv,
    as_gymnasium,
    called,
    environment_name,
    function_name,
    is_torchrl,
    one,
)
from rlx.collector.environment.protocol import Environment
from rlx.collector.environment.vector import MakeEnv, VectorEnvironment, serial
from rlx.errors import CollectError

# An environment of TorchRL is a torch module, so a function to the type checker; it is known by its class.
EnvSource = str | GymEnv | SerialEnv | ParallelEnv | MakeEnv | gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]


def open_environment(source: EnvSource, num_envs: int | None = None) -> Environment:
    """Return the environment that a user means.

    Args:
        source: a gymnasium id, or ``envpool/NAME``; a ``GymEnv``, ``SerialEnv`` or ``ParallelEnv``; a ``gymnasium.Env``
            or ``VectorEnv``; a ``torchrl.envs.EnvBase``; or a function that makes one of these.
        num_envs: number of copies; by default one, or the number that the source has.

    Raises:
        CollectError: the environment is unknown, or cannot be made or copied.
        MissingExtraError: a package that it needs is not installed.
    """
    if isinstance(source, str):
        source = GymEnv(source)
    if isinstance(source, GymEnv):
        return source.open(num_envs)
    if isinstance(source, SerialEnv | ParallelEnv):
        return source.open()
    if is_open(source):
        return _of_made(as_gymnasium(source), None, num_envs)
    function = cast("MakeEnv", source)
    made = called(function)
    return made.open() if isinstance(made, SerialEnv | ParallelEnv) else _of_made(made, function, num_envs)


def with_options(source: EnvSource, options: Mapping[str, Any] | None) -> EnvSource:
    """Return a source that makes the environment with these keyword arguments; an id gets them from ``gymnasium.make``.

    Raises:
        CollectError: the source is an environment already, or describes several.
    """
    if not options:
        return source
    if isinstance(source, str):
        return GymEnv(source, **options)
    if isinstance(source, GymEnv):
        return GymEnv(source.env_id, **{**source.options, **options})
    if isinstance(source, SerialEnv | ParallelEnv) or is_open(source):
        names = ", ".join(options)
        raise CollectError(f"create_env_kwargs ({names}): expected an id or a function, found {source!r}")
    return partial(cast("MakeEnv", source), **options)


def is_open(source: EnvSource) -> bool:
    """Return whether it is an environment already, rather than a description or a function that makes one."""
    return isinstance(source, gymnasium.Env | VectorEnv) or is_torchrl(source)


def _of_made(made: Any, source: MakeEnv | None, num_envs: int | None) -> Environment:
    """Return the environment of a user's object, or of the one that ``source`` made; ``source`` makes further
    copies."""
    if isinstance(made, VectorEnv):
        if num_envs not in (None, made.num_envs):
            raise CollectError(
                f"{environment_name(made)} has {made.num_envs} environments, expected {num_envs}",
                hint=f"--envs {made.num_envs}",
            )
        return VectorEnvironment(made, environment_name(made))
    if not isinstance(made, gymnasium.Env):
        found = (
            f"a {type(made).__name__}" if source is None else f"{function_name(source)} gave a {type(made).__name__}"
        )
        raise CollectError(f"{found}: expected a gymnasium.Env or VectorEnv, or an environment of TorchRL")
    makes: list[MakeEnv] = [lambda: made]
    if num_envs is not None and num_envs > 1:
        if source is None:
            raise CollectError(
                f"{environment_name(made)} is one environment, expected a function that makes {num_envs}"
            )
        makes += [partial(one, source)] * (num_envs - 1)
    return serial(makes, environment_name(made), is_batched=num_envs is not None)
