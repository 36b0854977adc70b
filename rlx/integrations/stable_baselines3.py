"""Replay buffer of Stable-Baselines3 whose images are compressed, and a recorder of its vector environments."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from rlx.buffer.storage.compressed import IMAGE_BYTES, FrameLog
from rlx.collector.environment.gym_env import environment_name
from rlx.collector.environment.intake import Intake
from rlx.collector.environment.lanes import in_lanes
from rlx.collector.recorder import Recorder
from rlx.errors import OptionError, check_installed
from rlx.integrations.record import Keys

check_installed("stable_baselines3", "this module needs stable-baselines3", "stable-baselines3")
from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer  # noqa: E402
from stable_baselines3.common.type_aliases import ReplayBufferSamples  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecEnvWrapper  # noqa: E402

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecNormalize

Frames = NDArray[np.uint8]


class _Latest:
    """The last next observation of every environment; the next step usually begins with it."""

    def __init__(self, frames: Frames, place: NDArray[np.int64], size: NDArray[np.int32]) -> None:
        self.frames, self.place, self.size = frames, place, size


class FrameStacks:
    """Observations now and next of some steps; a frame that several stacks share is kept once, compressed.

    Args:
        rows: steps per environment.
        n_envs: number of environments.
        stack: frames per observation.
        frame_bytes: bytes of a frame.
        level: zstd level.
    """

    def __init__(self, rows: int, n_envs: int, stack: int, frame_bytes: int, level: int) -> None:
        self._log = FrameLog(frame_bytes, level)
        self._stack = stack
        # The frames of the observation, then those of the next one.
        self._place = np.full((rows, n_envs, 2 * stack), -1, np.int64)
        self._size = np.zeros((rows, n_envs, 2 * stack), np.int32)
        self._latest: _Latest | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of memory used."""
        return self._log.nbytes + self._place.nbytes + self._size.nbytes

    def put(self, row: int, now: Frames, after: Frames) -> None:
        """Write the observations [n_envs, stack, frame_bytes] of a step of every environment."""
        # Columns: frames of the last next observation, of this observation, and of its next one.
        before, this, then = (slice(n * self._stack, (n + 1) * self._stack) for n in range(3))
        own = np.arange(len(now) * 3 * self._stack).reshape(len(now), -1)
        place, size = np.full(own.shape, -1, np.int64), np.zeros(own.shape, np.int32)
        if self._latest is not None:
            place[:, before], size[:, before] = self._latest.place, self._latest.size
        first = self._first(own, now, after)
        is_new = first == own
        at = np.concatenate([own[:, of][is_new[:, of]] for of in (this, then)])
        new = np.concatenate((now[is_new[:, this]], after[is_new[:, then]]))
        made = self._log.append([new])
        unused = np.concatenate((made["place"], self._place[row].reshape(-1), place[:, before].reshape(-1)))
        np.put(place, at, made["place"])
        np.put(size, at, made["size"])
        place, size = place.take(first), size.take(first)
        # The next observation for the step after this, too.
        held = np.concatenate([place[:, of].reshape(-1) for of in (this, then, then)])
        self._log.exchange(held, unused[unused >= 0])
        self._place[row], self._size[row] = place[:, self._stack :], size[:, self._stack :]
        self._latest = _Latest(after.copy(), place[:, then], size[:, then])

    def _first(self, own: NDArray[np.int64], now: Frames, after: Frames) -> NDArray[np.int64]:
        """Return [n_envs, 3 * stack] the number of the first frame that each equals; ``own`` has the numbers."""
        stack, first = self._stack, own.copy()
        is_there = np.zeros(now.shape[:2], bool) if self._latest is None else _equal(now, self._latest.frames)
        first[:, stack : 2 * stack] -= stack * is_there
        if not is_there.all():
            first[:, stack + 1 : 2 * stack] -= ~is_there[:, 1:] & _equal(now[:, 1:], now[:, :-1])
        if stack == 1:
            first[:, 2:] -= _equal(after, now)
        first[:, 2 * stack : -1] -= (stack - 1) * _equal(after[:, :-1], now[:, 1:])
        for _ in range(stack.bit_length() + 1):  # that one may equal one before it
            first = first.take(first)
        return first

    def get(self, rows: NDArray[Any], envs: NDArray[Any]) -> Frames:
        """Return the frames [2, n, stack, frame_bytes] of observations now and next."""
        wanted = (of[rows, envs].reshape(len(rows), 2, -1).swapaxes(0, 1) for of in (self._place, self._size))
        found = self._log.read(*(numbers.reshape(-1) for numbers in wanted))
        return found.reshape(2, len(rows), self._stack, -1)

    def clear(self) -> None:
        """Forget all steps."""
        self._log.clear()
        self._place.fill(-1)
        self._latest = None


def _equal(one: Frames, other: Frames) -> NDArray[np.bool_]:
    if one.shape[-1] % 8 == 0:  # compares eight bytes at once
        one, other = one.view(np.int64), other.view(np.int64)
    found: NDArray[np.bool_] = (one == other).all(-1)
    return found


class CompressedReplayBuffer(ReplayBuffer):  # type: ignore[misc]  # SB3 is not installed where types are checked
    """Replay buffer for ``replay_buffer_class=`` of DQN, SAC and TD3: the same batches in a fraction of the memory.

    Images are compressed without loss. Each frame is kept once, though it is in several stacks [frames, height, width],
    of observations and of next ones; other observations are kept as by Stable-Baselines3. Batches are those of its own
    buffer for the same seed, bit for bit.

    Args:
        buffer_size: maximum number of steps, over all environments.
        observation_space: space of one environment's observations, not a Dict.
        action_space: space of one environment's actions.
        device: device of batches.
        n_envs: number of environments.
        optimize_memory_usage: ignored.
        handle_timeout_termination: whether steps that a time limit ended are not done in batches.
        level: zstd level.

    Raises:
        OptionError: observations are a dict.

    Example:
        >>> from stable_baselines3 import DQN  # doctest: +SKIP
        >>> from rlx.integrations.stable_baselines3 import CompressedReplayBuffer  # doctest: +SKIP
        >>> model = DQN("CnnPolicy", env, replay_buffer_class=CompressedReplayBuffer)  # doctest: +SKIP
    """

    pos: int
    full: bool

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,  # noqa: ARG002  (SB3 gives it)
        handle_timeout_termination: bool = True,
        level: int = 6,
    ) -> None:
        if isinstance(observation_space, spaces.Dict):
            raise OptionError("observations are a dict: expected one array", hint="use the DictReplayBuffer of SB3")
        self._stacks: FrameStacks | None = None
        shape = tuple(observation_space.shape or ())
        frame = int(np.prod(shape[1:] if len(shape) == 3 else shape)) * np.dtype(observation_space.dtype).itemsize
        if frame < IMAGE_BYTES:
            super().__init__(
                buffer_size,
                observation_space,
                action_space,
                device,
                n_envs,
                handle_timeout_termination=handle_timeout_termination,
            )
            return
        # Not the constructor of ReplayBuffer, which makes the arrays.
        BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs=n_envs)
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.optimize_memory_usage = False
        self.handle_timeout_termination = handle_timeout_termination
        steps = self.buffer_size, n_envs
        self.actions = np.zeros((*steps, self.action_dim), self._maybe_cast_dtype(action_space.dtype))
        self.rewards, self.dones, self.timeouts = (np.zeros(steps, np.float32) for _ in range(3))
        self._stack = shape[0] if len(shape) == 3 else 1
        self._stacks = FrameStacks(self.buffer_size, n_envs, self._stack, frame, level)

    @property
    def nbytes(self) -> int:
        """Bytes of memory used by the steps."""
        arrays = [self.actions, self.rewards, self.dones, self.timeouts]
        if self._stacks is None:
            arrays += [self.observations, self.next_observations]
        return sum(array.nbytes for array in arrays) + (0 if self._stacks is None else self._stacks.nbytes)

    def add(
        self,
        obs: NDArray[Any],
        next_obs: NDArray[Any],
        action: NDArray[Any],
        reward: NDArray[Any],
        done: NDArray[Any],
        infos: list[dict[str, Any]],
    ) -> None:
        """Append a step of every environment."""
        if self._stacks is None:
            super().add(obs, next_obs, action, reward, done, infos)
            return
        self._stacks.put(self.pos, self._frames(obs), self._frames(next_obs))
        self.actions[self.pos] = np.array(action).reshape(self.n_envs, self.action_dim)
        self.rewards[self.pos], self.dones[self.pos] = reward, done
        if self.handle_timeout_termination:
            self.timeouts[self.pos] = [info.get("TimeLimit.truncated", False) for info in infos]
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full, self.pos = True, 0

    def reset(self) -> None:
        """Forget all steps."""
        super().reset()
        if self._stacks is not None:
            self._stacks.clear()

    def _frames(self, observations: NDArray[Any]) -> Frames:
        """Return frames [n_envs, stack, bytes] of observations."""
        plain = np.ascontiguousarray(observations, self.observation_space.dtype).reshape(self.n_envs, self._stack, -1)
        return plain.view(np.uint8)

    def _get_samples(self, batch_inds: NDArray[Any], env: "VecNormalize | None" = None) -> ReplayBufferSamples:
        if self._stacks is None:
            return super()._get_samples(batch_inds, env)
        lanes = np.random.randint(0, high=self.n_envs, size=(len(batch_inds),))  # noqa: NPY002  (as SB3 draws)
        frames = self._stacks.get(batch_inds, lanes).view(self.observation_space.dtype)
        now, after = frames.reshape(2, len(batch_inds), *self.obs_shape)
        ended = self.dones[batch_inds, lanes] * (1 - self.timeouts[batch_inds, lanes])
        data = (
            self._normalize_obs(now, env),
            self.actions[batch_inds, lanes],
            self._normalize_obs(after, env),
            ended.reshape(-1, 1),
            self._normalize_reward(self.rewards[batch_inds, lanes].reshape(-1, 1), env),
        )
        # Copies already: no others are needed.
        return ReplayBufferSamples(*(self.to_torch(array, copy=False) for array in data))


_FINAL, _CUT = "terminal_observation", "TimeLimit.truncated"


class RecordVecEnv(VecEnvWrapper):  # type: ignore[misc]  # as above
    """``RecordExperience`` for a vector environment of Stable-Baselines3.

    Below ``VecNormalize`` it records what the environments give; around it, what the agent sees. Actions are those that
    the environments get: PPO clips them to a Box, and its log-probs are of those before.

    Args:
        venv: the environments.
        path, shard_steps, max_steps, reward_dtype, info_keys, id: see ``rlx.integrations.record.RecordExperience``.

    Raises:
        CollectError, OptionError, DatasetExistsError, DatasetLockedError: as ``RecordExperience``.

    Example:
        >>> from stable_baselines3 import PPO  # doctest: +SKIP
        >>> from stable_baselines3.common.env_util import make_vec_env  # doctest: +SKIP
        >>> with RecordVecEnv(make_vec_env("CartPole-v1", 4), "recorded") as env:  # doctest: +SKIP
        ...     model = PPO("MlpPolicy", env)
        ...     model.policy.register_forward_hook(
        ...         lambda _, __, found: env.record(state_value=found[1], action_log_prob=found[2])
        ...     )
        ...     model.learn(10_000)
    """

    def __init__(
        self,
        venv: VecEnv,
        path: str | os.PathLike[str],
        *,
        shard_steps: int = 100_000,
        max_steps: int | None = None,
        reward_dtype: str | None = None,
        info_keys: Keys = (),
        id: str | None = None,
    ) -> None:
        super().__init__(venv)
        (spec,) = venv.get_attr("spec", 0)
        base, intake = venv.unwrapped, Intake(environment_name(venv), venv)
        if isinstance(base, DummyVecEnv):  # a reset may write into the last observation
            base.envs = in_lanes(base.envs, intake)
        self._take = intake.taker(venv.observation_space, "observation")
        self._recorder = Recorder(
            *(venv, venv.observation_space, venv.action_space, venv.num_envs, path, intake),
            shard_steps=shard_steps,
            max_steps=max_steps,
            reward_dtype=reward_dtype,
            info_keys=info_keys,
            id=id or (None if spec is None else spec.id),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reset(self) -> Any:
        """Begin an episode in every environment."""
        observation = self.venv.reset()
        self._recorder.begin(observation)
        return observation

    def record(self, **outputs: Any) -> None:
        """Record outputs [n, ...] of the policy with the next step; see ``RecordExperience.record``."""
        self._recorder.record(outputs)

    def step_async(self, actions: NDArray[Any]) -> None:
        """Begin a step in every environment."""
        self._recorder.act(actions)
        self.venv.step_async(actions)

    def step_wait(self) -> Any:
        """Return the results of the step, and record them."""
        observation, reward, done, infos = self.venv.step_wait()
        is_cut = np.array([bool(info.get(_CUT, False)) for info in infos])
        others = [{key: value for key, value in info.items() if key not in (_FINAL, _CUT)} for info in infos]

        def ends(_: Any, __: Any, ended: NDArray[np.bool_]) -> tuple[Mapping[int, Any], tuple[()]]:
            return {env: self._take(infos[env][_FINAL], None) for env in np.flatnonzero(ended).tolist()}, ()

        self._recorder.step(observation, reward, done & ~is_cut, done & is_cut, others, ends=ends)
        return observation, reward, done, infos

    def close(self) -> None:
        """Write the rest, and close the environments."""
        try:
            self._recorder.close()
        finally:
            super().close()
