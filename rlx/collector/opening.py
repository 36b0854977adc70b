"""From what a user calls an environment, an id, a function or one that is there already, to an Environment."""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import DependencyNotInstalled, NameNotFound, NamespaceNotFound, UnregisteredEnv, VersionNotFound
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from rlx.collector import main_module
from rlx.collector.environment import Environment
from rlx.collector.pool import PREFIX as POOL
from rlx.collector.pool import Pool
from rlx.collector.vector_environment import VectorEnvironment
from rlx.errors import CollectError, MissingExtraError, RlxError

# DQN preprocessing, so that new data match the DQN Replay Dataset: 27,000 steps an episode at most, raw rewards.
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
_UNKNOWN = (NameNotFound, NamespaceNotFound, VersionNotFound, UnregisteredEnv)
MakeEnv = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class GymEnv:
    """A gymnasium id, under the name that TorchRL's users know; calling it makes the environment.

    Example:
        >>> GymEnv("CartPole-v1")().spec.id
        'CartPole-v1'
    """

    env_id: str

    def __call__(self) -> "gymnasium.Env[Any, Any]":
        """A new environment."""
        return make(self.env_id)


@dataclass(frozen=True, slots=True)
class SerialEnv:
    """So many copies of an environment, stepped one after the other.

    Args:
        num_workers: how many.
        create_env_fn: an id, or what makes one copy.
    """

    num_workers: int
    create_env_fn: "str | MakeEnv"


@dataclass(frozen=True, slots=True)
class ParallelEnv:
    """So many copies of an environment, a process each, with observations in shared memory.

    Args:
        num_workers: how many.
        create_env_fn: an id, or what makes one copy.
        mp_start_method: how processes are started; ``fork`` only where this process has no threads.
    """

    num_workers: int
    create_env_fn: "str | MakeEnv"
    mp_start_method: str = "spawn"


EnvSource = str | GymEnv | SerialEnv | ParallelEnv | MakeEnv | gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]


def open_environment(source: EnvSource, num_envs: int | None = None) -> Environment:
    """The environment that a user means.

    Args:
        source: a gymnasium id, or ``envpool/NAME``; one of this module's; a ``gymnasium.Env`` or ``VectorEnv``, or what
            makes one.
        num_envs: how many copies; where not given, what the source is: one, or as many as it has.

    Raises:
        CollectError: there is no such environment, or it cannot be made or copied.
        MissingExtraError: what it needs is not installed.
    """
    if isinstance(source, str | GymEnv):
        env_id = source if isinstance(source, str) else source.env_id
        return _of_id(env_id, num_envs or 1, is_batched=num_envs is not None)
    if isinstance(source, SerialEnv | ParallelEnv):
        return _copies(source)
    if isinstance(source, gymnasium.Env | VectorEnv):
        return _of_made(source, None, num_envs)
    made = _made(source)
    return _copies(made) if isinstance(made, SerialEnv | ParallelEnv) else _of_made(made, source, num_envs)


def is_open(source: EnvSource) -> bool:
    """Whether it is an environment already, and not what one is made of."""
    return isinstance(source, gymnasium.Env | VectorEnv)


def _of_made(made: Any, source: MakeEnv | None, num_envs: int | None) -> Environment:
    """What a user gave or what a function made; others like it are made by that function, if there is one."""
    if isinstance(made, VectorEnv):
        if num_envs not in (None, made.num_envs):
            raise CollectError(
                f"{_name(made)} has {made.num_envs} environments, expected {num_envs}", hint=f"--envs {made.num_envs}"
            )
        return VectorEnvironment(made, _name(made))
    if not isinstance(made, gymnasium.Env):
        found = f"a {type(made).__name__}" if source is None else f"{_spec_name(source)} gave a {type(made).__name__}"
        raise CollectError(f"{found}: expected a gymnasium.Env or VectorEnv")
    makes: list[MakeEnv] = [lambda: made]
    if num_envs is not None and num_envs > 1:
        if source is None:
            raise CollectError(f"{_name(made)} is one environment, expected a function that makes {num_envs}")
        makes += [partial(_made, source)] * (num_envs - 1)
    return _serial(makes, _name(made), is_batched=num_envs is not None)


def make(env_id: str) -> "gymnasium.Env[Any, Any]":
    """One environment by its id; Atari ids with DQN preprocessing.

    Raises:
        CollectError: there is no such id.
        MissingExtraError: what it needs is not installed.
    """
    _register_atari(env_id)
    try:
        if not env_id.startswith("ALE/"):
            return gymnasium.make(env_id)
        env = gymnasium.make(env_id, frameskip=1, repeat_action_probability=0.25)
        return gymnasium.wrappers.AtariPreprocessing(env, noop_max=0)
    except _UNKNOWN as exc:
        near = _near(env_id)
        hint = f"did you mean {', '.join(near)}?" if near else "gymnasium.pprint_registry() lists what there is"
        raise CollectError(f"environment {env_id!r} is unknown to gymnasium", hint=hint) from exc
    except (DependencyNotInstalled, ModuleNotFoundError) as exc:
        raise MissingExtraError(
            f"{env_id} needs a package that is not installed: {exc}", hint=_install(str(exc))
        ) from exc
    except gymnasium.error.Error as exc:
        raise CollectError(f"environment {env_id!r} cannot be made: {exc}") from exc


def _near(env_id: str) -> list[str]:
    """Ids that are like one that is unknown; of Atari games without a namespace, or of old names, the one with it."""
    if find_spec("ale_py") is not None:
        _register_atari("ALE/")
    game = f"ALE/{re.split('NoFrameskip|Deterministic|-', env_id)[0]}-v5"
    if game in gymnasium.registry:
        return [game]
    return difflib.get_close_matches(env_id, gymnasium.registry, n=3, cutoff=0.5)


def _install(message: str) -> str | None:
    """The command, if gymnasium's message tells one."""
    return " && ".join(re.findall("`(pip install [^`]+)`", message)) or None


def _register_atari(env_id: str) -> None:
    if not env_id.startswith("ALE/"):
        return
    if find_spec("ale_py") is None:
        raise MissingExtraError(f"{env_id} needs ale-py, which is not installed", hint="pip install 'rlx[atari]'")
    import ale_py  # noqa: PLC0415  (only some users have it)

    gymnasium.register_envs(ale_py)


def _of_id(env_id: str, num_envs: int, *, is_batched: bool) -> Environment:
    if env_id.startswith(POOL):
        return _pool(env_id, num_envs, is_batched=is_batched)
    _register_atari(env_id)
    entry = gymnasium.registry.get(env_id)
    if env_id.startswith("ALE/") and entry is not None:
        return _atari(env_id, entry.kwargs["game"], num_envs, is_batched=is_batched)
    return _serial([partial(make, env_id)] * num_envs, env_id, is_batched=is_batched)


def _atari(env_id: str, game: str, num_envs: int, *, is_batched: bool) -> Environment:
    from ale_py import AtariVectorEnv  # noqa: PLC0415  (only some users have it)

    env = _Unstacked(AtariVectorEnv(game, num_envs, autoreset_mode=AutoresetMode.SAME_STEP, **ATARI))
    return VectorEnvironment(env, env_id, is_batched=is_batched, settings=ATARI, as_seeds=emulator_seeds)


def _pool(env_id: str, num_envs: int, *, is_batched: bool) -> Environment:
    pool = Pool(env_id, num_envs)
    env = _Unstacked(pool) if "stack_num" in pool.settings else pool
    return VectorEnvironment(env, env_id, is_batched=is_batched, settings=pool.settings)


class _Unstacked(gymnasium.vector.VectorObservationWrapper):
    """Frames [84, 84] instead of stacks of one; the wrapper leaves ``final_obs`` to its subclass."""

    def __init__(self, env: "VectorEnv[Any, Any, Any]") -> None:
        # The base class refuses SAME_STEP, because of final_obs, which `step` below sees to.
        gymnasium.vector.VectorWrapper.__init__(self, env)
        size: tuple[int, int] = (ATARI["img_height"], ATARI["img_width"])
        self.single_observation_space: Any = gymnasium.spaces.Box(0, 255, size, dtype=np.uint8)

    def step(self, actions: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(actions)
        if "final_obs" in info:
            info["final_obs"] = info["final_obs"][:, 0]
        return observation[:, 0], reward, terminated, truncated, info

    def observations(self, observations: NDArray[Any]) -> NDArray[Any]:
        return observations[:, 0]


def emulator_seeds(seeds: Sequence[int]) -> NDArray[np.int64]:
    """The seeds that ale-py's own environment makes of these for the emulator, which takes no negative ones."""
    words = [np.random.SeedSequence(seed).generate_state(2)[1] for seed in seeds]
    return np.array(words, np.uint32).astype(np.int64) & 0x7FFFFFFF


def _copies(source: SerialEnv | ParallelEnv) -> Environment:
    if source.num_workers < 1:
        raise CollectError(f"{source}: expected at least one worker")
    makes = [partial(_made, source.create_env_fn)] * source.num_workers
    name = _spec_name(source.create_env_fn)
    if isinstance(source, SerialEnv):
        return _serial(makes, name, is_batched=True)
    try:
        with main_module.hidden():
            env = AsyncVectorEnv(makes, context=source.mp_start_method, autoreset_mode=AutoresetMode.SAME_STEP)
    except RlxError:
        raise
    except Exception as exc:  # whatever a stranger's environment raises
        raise CollectError(f"environment {name} cannot be made: {type(exc).__name__}: {exc}") from exc
    return VectorEnvironment(env, name)


def _serial(makes: Sequence[MakeEnv], name: str, *, is_batched: bool) -> Environment:
    try:
        env = SyncVectorEnv(makes, autoreset_mode=AutoresetMode.SAME_STEP)
    except RlxError:
        raise
    except Exception as exc:  # whatever a stranger's environment raises
        raise CollectError(f"environment {name} cannot be made: {type(exc).__name__}: {exc}") from exc
    return VectorEnvironment(env, name, is_batched=is_batched)


def _made(source: "str | MakeEnv") -> Any:
    if isinstance(source, str):
        return make(source)
    try:
        found = source()
        return found() if isinstance(found, GymEnv) else found
    except RlxError:
        raise
    except Exception as exc:  # whatever a stranger's function raises
        raise CollectError(f"{_spec_name(source)} failed: {type(exc).__name__}: {exc}") from exc


def _spec_name(source: "str | MakeEnv") -> str:
    if isinstance(source, GymEnv):
        return source.env_id
    return source if isinstance(source, str) else getattr(source, "__qualname__", type(source).__name__)


def _name(env: Any) -> str:
    spec = getattr(env, "spec", None)
    return spec.id if spec is not None else type(env.unwrapped).__name__
