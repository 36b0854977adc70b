"""Environments by their ids: gymnasium's, Atari games as the DQN Replay Dataset has them, and envpool's."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import DependencyNotInstalled, NameNotFound, NamespaceNotFound, UnregisteredEnv, VersionNotFound
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from rlx.collector.environment.autoreset import AutoresetMode
from rlx.collector.environment.vector import OWN_THREADS, RESET_MASK, VectorEnvironment, serial
from rlx.errors import CollectError, MissingExtraError, check_installed, imported
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
