"""envpool's environments, which step in threads of C++, as a gymnasium vector environment that takes seeds."""

import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from rlx.errors import CollectError, MissingExtraError
from rlx.suggestion import nearest

PREFIX = "envpool/"
# DQN preprocessing; envpool cannot do without the one no-op that an episode begins with.
ATARI: Mapping[str, Any] = MappingProxyType(
    {
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
)


class Pool(VectorEnv[Any, Any, Any]):
    """Environments of envpool; a ``reset`` with a seed recreates them, as envpool's seeds are fixed.

    Args:
        env_id: ``envpool/CartPole-v1``; Atari games have DQN preprocessing.
        num_envs: how many.

    Raises:
        CollectError: envpool has no such environment.
        MissingExtraError: envpool is not installed.
    """

    def __init__(self, env_id: str, num_envs: int) -> None:
        self._task = env_id.removeprefix(PREFIX)
        self._envpool = _imported()
        if self._task not in self._envpool.list_all_envs():
            near = nearest(self._task, self._envpool.list_all_envs())
            hint = f"did you mean {', '.join(PREFIX + name for name in near)}?" if near else "envpool.list_all_envs()"
            raise CollectError(f"environment {self._task!r} is unknown to envpool", hint=hint)
        self.num_envs = num_envs
        self.settings = ATARI if self._is_atari() else {}
        self._pool: Any = self._made([0] * num_envs)
        self._observation: Any = None
        self.metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}
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
        return any(kind.__module__.startswith("envpool.atari") for kind in type(self._spec()).__mro__)

    def _spec(self) -> Any:
        return self._envpool.make_spec(self._task)

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


def _imported() -> Any:
    try:
        import envpool  # noqa: PLC0415  (only some users have it)
    except ModuleNotFoundError as exc:
        raise MissingExtraError("envpool is not installed", hint="pip install 'rlx[envpool]'") from exc
    return envpool
