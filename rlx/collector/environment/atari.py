"""Atari games with the preprocessing of the DQN Replay Dataset, so that new data match it."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from rlx.collector.environment.vector import VectorEnvironment
from rlx.errors import MissingExtraError

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


def register(env_id: str) -> None:
    """Tell gymnasium of Atari games, if the id is that of one.

    Raises:
        MissingExtraError: ale-py is not installed.
    """
    if not env_id.startswith(PREFIX):
        return
    if find_spec("ale_py") is None:
        raise MissingExtraError(f"{env_id} needs ale-py, which is not installed", hint="pip install 'rlx[atari]'")
    import ale_py  # noqa: PLC0415  (only some users have it)

    gymnasium.register_envs(ale_py)


def vector(env_id: str, game: str, num_envs: int, *, is_batched: bool) -> VectorEnvironment:
    """Return copies of a game in the emulator's own threads."""
    from ale_py import AtariVectorEnv  # noqa: PLC0415  (only some users have it)

    env = Unstacked(AtariVectorEnv(game, num_envs, autoreset_mode=AutoresetMode.SAME_STEP, **ATARI))
    return VectorEnvironment(env, env_id, is_batched=is_batched, settings=ATARI, as_seeds=emulator_seeds)


class Unstacked(gymnasium.vector.VectorObservationWrapper):
    """Frames [84, 84] instead of stacks of one; the wrapper leaves ``final_obs`` to its subclass."""

    def __init__(self, env: "VectorEnv[Any, Any, Any]") -> None:
        # The base class refuses SAME_STEP, because of final_obs, which `step` below sees to.
        gymnasium.vector.VectorWrapper.__init__(self, env)
        size: tuple[int, int] = (ATARI["img_height"], ATARI["img_width"])
        self.single_observation_space: Any = gymnasium.spaces.Box(0, 255, size, dtype=np.uint8)

    def step(self, actions: Any) -> Any:
        """Return gymnasium's five, of frames."""
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
