"""Environments as users name them, ``GymEnv``, an id, a function or an object, and how each is opened."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium.error import DependencyNotInstalled, NameNotFound, NamespaceNotFound, UnregisteredEnv, VersionNotFound
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlx.collector.environment.autoreset import AutoresetMode
from rlx.collector.environment.lanes import MakeEnv
from rlx.collector.environment.ted_env import TedEnv
from rlx.collector.environment.vector import OWN_THREADS, RESET_MASK, VectorEnvironment, parallel, serial
from rlx.engine.shared_memory import begin_step
from rlx.errors import CollectError, MissingExtraError, RlxError, check_installed, imported
from rlx.numbers import check_whole
from rlx.traces import in_words
from rlx.wording import nearest

PREFIX = "ALE/"
# 27,000 steps an episode at most, raw rewards.
ATARI: Mapping[str, Any] = {
    "img_height": 84,
    "img_width": 84,
    "grayscale": True,
    "stack_num": 1,
    "frameskip": 4,
    "maxpool": True,
    "noop_max": 0,
    "repeat_action_probability": 0.25,
    "full_action_space": False,
    "max_num_frames_per_episode": 108_000,
    "episodic_life": False,
    "reward_clipping": False,
    "use_fire_reset": False,
}
POOL = "envpool/"
# DQN preprocessing; envpool always begins an episode with one no-op.
ENVPOOL_ATARI: Mapping[str, Any] = {
    "stack_num": 1,
    "frame_skip": 4,
    "img_height": 84,
    "img_width": 84,
    "gray_scale": True,
    "noop_max": 1,
    "repeat_action_probability": 0.25,
    "full_action_space": False,
    "max_episode_steps": 27_000,
    "episodic_life": False,
    "reward_clip": False,
    "use_fire_reset": False,
}
_UNKNOWN = (NameNotFound, NamespaceNotFound, VersionNotFound, UnregisteredEnv)


def register(env_id: str) -> None:
    """Register Atari games with gymnasium if the id is one."""
    if not env_id.startswith(PREFIX):
        return
    check_installed("gymnasium", f"{env_id} needs gymnasium", "atari")
    ale_py = imported("ale_py", f"{env_id} needs ale-py", "atari")
    gymnasium.register_envs(ale_py)


def vector(env_id: str, game: str, num_envs: int, *, is_batched: bool) -> VectorEnvironment:
    """Return copies of a game in the emulator's own threads."""
    from ale_py import AtariVectorEnv  # only some users have it

    env = Unstacked(AtariVectorEnv(game, num_envs, autoreset_mode=AutoresetMode.SAME_STEP, **ATARI))
    return VectorEnvironment(env, env_id, is_batched=is_batched, settings=ATARI, as_seeds=emulator_seeds)


class Unstacked(gymnasium.vector.VectorObservationWrapper):
    """Frames [84, 84] instead of stacks of one; the wrapper leaves ``final_obs`` to its subclass."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        # The base class refuses SAME_STEP, because of final_obs, which `step` below sees to.
        gymnasium.vector.VectorWrapper.__init__(self, env)
        size: tuple[int, int] = (ATARI["img_height"], ATARI["img_width"])
        self.single_observation_space: Any = gymnasium.spaces.Box(0, 255, size, dtype=np.uint8)

    def step(self, actions: Any) -> Any:
        """Return gymnasium's five results, with frames."""
        observation, reward, terminated, truncated, info = self.env.step(actions)
        if "final_obs" in info:
            info["final_obs"] = info["final_obs"][:, 0]
        return observation[:, 0], reward, terminated, truncated, info

    def observations(self, observations: NDArray[Any]) -> NDArray[Any]:
        """Return the frames of stacks of one."""
        return observations[:, 0]


def emulator_seeds(seeds: Sequence[int]) -> NDArray[np.int64]:
    """Return the seeds that ale-py's own environment makes of these for the emulator, which takes no negative ones."""
    words = [np.random.SeedSequence(seed).generate_state(2)[1] for seed in seeds]
    return np.array(words, np.uint32).astype(np.int64) & 0x7FFFFFFF


class Pool(VectorEnv[Any, Any, Any]):
    """Environments of envpool; a ``reset`` with a seed recreates them, as envpool's seeds are fixed.

    Args:
        env_id: ``envpool/CartPole-v1``; Atari games have DQN preprocessing.
    """

    def __init__(self, env_id: str, num_envs: int) -> None:
        self._task = env_id.removeprefix(POOL)
        self._envpool = imported("envpool", f"{env_id} needs envpool", "envpool")
        if self._task not in self._envpool.list_all_envs():
            near = nearest(self._task, self._envpool.list_all_envs())
            hint = f"did you mean {' or '.join(POOL + name for name in near)}?" if near else "envpool.list_all_envs()"
            raise CollectError(f"environment {self._task!r} is unknown to envpool", hint=hint)
        self.num_envs = num_envs
        self.settings = ENVPOOL_ATARI if self._is_atari() else {}
        self._pool: Any = self._made([0] * num_envs)
        self._observation: Any = None
        self.metadata: dict[str, Any] = {
            "autoreset_mode": AutoresetMode.NEXT_STEP,
            OWN_THREADS: True,
            RESET_MASK: True,
        }
        self.single_observation_space: Any = self._pool.single_observation_space
        self.single_action_space: Any = self._pool.single_action_space

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Return [n, ...] first observations, of the environments that ``options["reset_mask"]`` [n] has if it is
        given."""
        mask = (options or {}).get("reset_mask")
        if mask is not None:
            begun, _ = self._pool.reset(options={"reset_mask": mask})
            self._observation = _replaced(self._observation, begun, mask)
            return self._observation, {}
        if seed is not None:
            self._pool.close()
            self._pool = self._made(seed)
        self._observation, _ = self._pool.reset()
        return self._observation, {}

    def step(self, actions: Any) -> Any:
        """Return one step of each."""
        dtype = self.single_action_space.dtype
        outcome = self._pool.step(np.asarray(actions).astype(dtype, copy=False))
        self._observation = outcome[0]
        return outcome

    def close(self, **_: Any) -> None:
        """End the threads."""
        self._pool.close()

    def _is_atari(self) -> bool:
        spec = self._envpool.make_spec(self._task)
        return any(kind.__module__.startswith("envpool.atari") for kind in type(spec).__mro__)

    def _made(self, seeds: Any) -> Any:
        with warnings.catch_warnings():
            # gymnasium's, of the bounds that envpool gives its spaces, when it first makes them.
            warnings.simplefilter("ignore", UserWarning)
            pool = self._envpool.make(
                self._task, env_type="gymnasium", num_envs=self.num_envs, seed=list(seeds), **self.settings
            )
            assert pool.observation_space is not None
            assert pool.single_observation_space is not None
        return pool


def _replaced(observation: Any, rows: Any, mask: NDArray[np.bool_]) -> Any:
    """Return an observation, an array [n, ...] or a tree of them, with other rows where the mask is set."""
    if isinstance(observation, Mapping):
        return {key: _replaced(part, rows[key], mask) for key, part in observation.items()}
    replaced = np.array(observation)
    replaced[mask] = rows
    return replaced


def of_id(env_id: str, options: Mapping[str, Any], num_envs: int, *, is_batched: bool) -> VectorEnvironment:
    """Return copies of an environment.

    Args:
        env_id: as gymnasium has it, or ``envpool/NAME``.
        is_batched: whether its user expects a dimension of environments.
    """
    if env_id.startswith(POOL):
        if options:
            raise CollectError(f"{env_id} takes no options, found {', '.join(options)}")
        return _pool(env_id, num_envs, is_batched=is_batched)
    register(env_id)
    entry = gymnasium.registry.get(env_id)
    if env_id.startswith(PREFIX) and entry is not None and not options:
        return vector(env_id, entry.kwargs["game"], num_envs, is_batched=is_batched)
    return serial([partial(make, env_id, **options)] * num_envs, env_id, is_batched=is_batched)


def make(env_id: str, **options: Any) -> gymnasium.Env[Any, Any]:
    """Return one environment by its id; Atari games with DQN preprocessing."""
    register(env_id)
    try:
        if not env_id.startswith(PREFIX):
            return gymnasium.make(env_id, **options)
        env = gymnasium.make(env_id, **{"frameskip": 1, "repeat_action_probability": 0.25, **options})
        return gymnasium.wrappers.AtariPreprocessing(env, noop_max=0)
    except _UNKNOWN as exc:
        near = _near(env_id)
        hint = f"did you mean {' or '.join(near)}?" if near else "gymnasium.pprint_registry() lists the known ids"
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
        register(PREFIX)
    game = f"{PREFIX}{re.split('NoFrameskip|Deterministic|-', env_id)[0]}-v5"
    if game in gymnasium.registry:
        return [game]
    return nearest(env_id, gymnasium.registry)


def _install(message: str) -> str | None:
    return " && ".join(re.findall("`(pip install [^`]+)`", message)) or None


def _pool(env_id: str, num_envs: int, *, is_batched: bool) -> VectorEnvironment:
    pool = Pool(env_id, num_envs)
    env = Unstacked(pool) if "stack_num" in pool.settings else pool
    return VectorEnvironment(env, env_id, is_batched=is_batched, settings=pool.settings)


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
