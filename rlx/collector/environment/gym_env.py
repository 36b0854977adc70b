"""Environments as users name them, ``GymEnv``, an id, a function or an object, and how each is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import gymnasium
from gymnasium.vector import VectorEnv

from rlx.collector.environment.gym_id import make, of_id
from rlx.collector.environment.lanes import MakeEnv
from rlx.collector.environment.ted_env import TedEnv
from rlx.collector.environment.vector import VectorEnvironment, parallel, serial
from rlx.engine.shared_memory import begin_step
from rlx.errors import CollectError, RlxError
from rlx.numbers import check_whole
from rlx.traces import in_words

Makes = str | MakeEnv | Sequence[str | MakeEnv]


class GymEnv(TedEnv):
    """Environment of a gymnasium id: for a collector, or to step manually (see ``TedEnv``).

    Actions are gymnasium's own, as with TorchRL's ``categorical_action_encoding=True``.

    Args:
        env_id: gymnasium id, ``ALE/NAME-v5`` with DQN preprocessing, or ``envpool/NAME``.
        options: keyword arguments of ``gymnasium.make``.

    Example:
        >>> GymEnv("CartPole-v1")().spec.id
        'CartPole-v1'
        >>> GymEnv("CartPole-v1", max_episode_steps=5).rollout(100).shape
        torch.Size([5])
    """

    def __init__(self, env_id: str, **options: Any) -> None:
        super().__init__()
        self.env_id = env_id
        self.options: Mapping[str, Any] = options

    def __call__(self) -> gymnasium.Env[Any, Any]:
        """Return a new environment.

        Raises:
            CollectError: the id is unknown, or the environment cannot be made.
            MissingExtraError: a package that it needs is not installed.
        """
        return make(self.env_id, **self.options)

    def open(self, num_envs: int | None = None) -> VectorEnvironment:
        """Return copies of the environment, stepped side by side;
        without a number, one without a dimension of copies."""
        return of_id(self.env_id, self.options, num_envs or 1, is_batched=num_envs is not None)

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"GymEnv({self.env_id!r}{options})"


class _BatchedEnv(TedEnv):
    """Base of SerialEnv and ParallelEnv.

    Args:
        num_workers: number of copies.
        create_env_fn: a gymnasium id or a function that returns an environment; or a list with one per copy.
    """

    def __init__(self, num_workers: int, create_env_fn: Makes) -> None:
        super().__init__()
        self.num_workers = num_workers
        self.create_env_fn = create_env_fn
        check_whole("num_workers", num_workers, error=CollectError)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.num_workers}, {self.create_env_fn!r})"

    def _makes(self) -> tuple[str, list[MakeEnv]]:
        sources = self.create_env_fn
        if isinstance(sources, str) or not isinstance(sources, Sequence):
            sources = [sources] * self.num_workers
        if len(sources) != self.num_workers:
            raise CollectError(f"create_env_fn has {len(sources)} functions: expected {self.num_workers}")
        functions = [GymEnv(source) if isinstance(source, str) else source for source in sources]
        return function_name(functions[0]), [partial(one, function) for function in functions]


class SerialEnv(_BatchedEnv):
    """Copies of an environment, stepped one after the other: for a collector, or to step manually (see ``TedEnv``).

    Args:
        num_workers: number of copies.
        create_env_fn: a gymnasium id or a function that returns an environment; or a list with one per copy.

    Raises:
        CollectError: no workers are configured.

    Example:
        >>> SerialEnv(2, "CartPole-v1").rollout(5).shape
        torch.Size([2, 5])
    """

    def open(self) -> VectorEnvironment:
        """Return the copies."""
        name, makes = self._makes()
        return serial(makes, name, is_batched=True)


class ParallelEnv(_BatchedEnv):
    """Copies of an environment, each in its own process, with observations in shared memory; otherwise as SerialEnv.

    Args:
        num_workers: number of copies.
        create_env_fn: a gymnasium id or a function that returns an environment; or a list with one per copy.
        mp_start_method: how processes are started; use ``fork`` only if this process has no threads.

    Raises:
        CollectError: no workers are configured.

    Example:
        >>> env = rlx.collector.ParallelEnv(2, "CartPole-v1")
        >>> with rlx.Collector(env, frames_per_batch=20, total_frames=20) as collector:
        ...     [batch.shape for batch in collector]
        [torch.Size([2, 10])]
    """

    def __init__(self, num_workers: int, create_env_fn: Makes, mp_start_method: str = "spawn") -> None:
        super().__init__(num_workers, create_env_fn)
        self.mp_start_method = mp_start_method

    def open(self) -> VectorEnvironment:
        """Return the copies, whose processes have started."""
        name, makes = self._makes()
        return parallel(makes, name, self.mp_start_method)


def called(function: MakeEnv) -> Any:
    """Return the result of a user's function; a ``GymEnv`` or an environment of TorchRL as gymnasium's."""
    _check_function(function)
    try:
        found = function()
    except RlxError:
        raise
    except (Exception, SystemExit) as exc:  # a user's function may raise anything
        raise CollectError(f"{function_name(function)} failed: {in_words(exc)}") from exc
    return as_gymnasium(found() if isinstance(found, GymEnv) else found)


def _check_function(source: Any) -> None:
    if not callable(source):
        raise CollectError(
            f"environment {source!r}: expected a Gymnasium id, an environment or a function that makes one"
        )


def as_gymnasium(env: Any) -> Any:
    """Return an environment of TorchRL as gymnasium's; any other unchanged."""
    if not is_torchrl(env):
        return env
    from rlx.collector.environment.torchrl import adapted  # torch takes seconds

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


def one(source: MakeEnv) -> gymnasium.Env[Any, Any]:
    """Return the single environment that a function makes."""
    made = called(source)
    if not isinstance(made, gymnasium.Env):
        raise CollectError(f"{function_name(source)} gave a {type(made).__name__}: expected a gymnasium.Env")
    return made


# An environment of TorchRL is a torch module, so a function to the type checker; it is known by its class.
EnvSource = str | GymEnv | SerialEnv | ParallelEnv | MakeEnv | gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]


def open_environment(source: EnvSource, num_envs: int | None = None, autoreset: str | None = None) -> VectorEnvironment:
    """Return the environment of a source.

    Args:
        source: a gymnasium id, or ``envpool/NAME``; a ``GymEnv``, ``SerialEnv`` or ``ParallelEnv``; a ``gymnasium.Env``
            or ``VectorEnv``; a ``torchrl.envs.EnvBase``; or a function that makes one of these.
        num_envs: number of copies; by default one, or the number that the source has.
        autoreset: autoreset mode of a vector environment that declares none; see ``VectorEnvironment.declare``.
    """
    pulse = begin_step()
    try:
        opened = _opened(source, num_envs)
    finally:
        if pulse is not None:
            pulse.beat()
    try:
        if autoreset is not None:
            opened.declare(autoreset)
    except BaseException:
        opened.close()
        raise
    return opened


def _opened(source: EnvSource, num_envs: int | None) -> VectorEnvironment:
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
    """Return a source that makes the environment with these arguments; an id gets them from ``gymnasium.make``."""
    if not options:
        return source
    if isinstance(source, str):
        return GymEnv(source, **options)
    if isinstance(source, GymEnv):
        return GymEnv(source.env_id, **{**source.options, **options})
    if isinstance(source, SerialEnv | ParallelEnv) or is_open(source):
        names = ", ".join(options)
        raise CollectError(f"create_env_kwargs ({names}): expected an id or a function, found {source!r}")
    _check_function(source)
    return partial(cast("MakeEnv", source), **options)


def is_open(source: EnvSource) -> bool:
    """Return whether it is an environment already, rather than a description or a function that makes one."""
    return isinstance(source, gymnasium.Env | VectorEnv) or is_torchrl(source)


def _of_made(made: Any, source: MakeEnv | None, num_envs: int | None) -> VectorEnvironment:
    """Return the environment of a user's object, or of the result of ``source``, which creates further copies."""
    if isinstance(made, VectorEnv):
        if num_envs not in (None, made.num_envs):
            raise CollectError(
                f"{environment_name(made)} has {made.num_envs} environments, expected {num_envs}",
                hint=f"`envs` {made.num_envs}",
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
