"""Replay buffer of Stable-Baselines3 whose images are compressed."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from rlx.buffer.storage.compressed import IMAGE_BYTES, FrameLog
from rlx.errors import MissingExtraError, OptionError

try:
    from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer
    from stable_baselines3.common.type_aliases import ReplayBufferSamples
except ModuleNotFoundError as exc:
    raise MissingExtraError.of("this needs stable-baselines3", "stable-baselines3") from exc

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecNormalize

Frames = NDArray[np.uint8]


class _Latest:
    """The last next observation of every environment, which the next step is likely to begin with."""

    def __init__(self, frames: Frames, place: NDArray[np.int64], size: NDArray[np.int32]) -> None:
        self.frames, self.place, self.size = frames, place, size


class FrameStacks:
    """Observations now and next of some steps; a frame that several stacks share is kept once, compressed.

    Args:
        rows: steps of each environment.
        n_envs: environments.
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
        """Bytes of memory that they take."""
        return self._log.nbytes + self._place.nbytes + self._size.nbytes

    def put(self, row: int, now: Frames, after: Frames) -> None:
        """Write the observations [n_envs, stack, frame_bytes] of a step of every environment."""
        place, size, same = self._known(now, after)
        frames = np.concatenate((now, after), 1)
        new = (place < 0) & (same < 0)
        at = np.nonzero(new)
        place[at], size[at] = self._log.append(frames[at])
        for column in range(2 * self._stack):  # each is that of one before it
            envs = np.flatnonzero(same[:, column] >= 0)
            place[envs, column], size[envs, column] = (
                place[envs, same[envs, column]],
                size[envs, same[envs, column]],
            )
        made = place[at]
        old = self._place[row][self._place[row] >= 0]
        self._log.hold(place.reshape(-1))
        self._place[row], self._size[row] = place, size
        kept = place[:, self._stack :]
        self._log.hold(kept.reshape(-1))
        last = np.empty(0, np.int64) if self._latest is None else self._latest.place.reshape(-1)
        self._log.release(np.concatenate((made, old, last)))
        self._latest = _Latest(after.copy(), kept.copy(), size[:, self._stack :].copy())

    def _known(self, now: Frames, after: Frames) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
        """Return [n_envs, 2 * stack] places and sizes of frames that are there, -1 of others; and of these the column
        of an equal one, or -1."""
        shape = len(now), 2 * self._stack
        place, size, same = np.full(shape, -1, np.int64), np.zeros(shape, np.int32), np.full(shape, -1, np.int64)
        columns = np.arange(self._stack)
        same[:, 1 : self._stack] = np.where(_equal(now[:, 1:], now[:, :-1]), columns[:-1], -1)
        same[:, self._stack : -1] = np.where(_equal(after[:, :-1], now[:, 1:]), columns[1:], -1)
        if self._stack == 1:
            same[:, 1] = np.where(_equal(after, now)[:, 0], 0, -1)
        if (latest := self._latest) is not None:
            is_there = _equal(now, latest.frames)
            place[:, : self._stack] = np.where(is_there, latest.place, -1)
            size[:, : self._stack] = np.where(is_there, latest.size, 0)
            same[:, : self._stack][is_there] = -1
        return place, size, same

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
    found: NDArray[np.bool_] = (one == other).all(-1)
    return found


class CompressedReplayBuffer(ReplayBuffer):  # type: ignore[misc]  # SB3 is not installed where types are checked
    """Replay buffer for ``replay_buffer_class=`` of DQN, SAC and TD3: the same batches in a fraction of the memory.

    Images are compressed without loss. Each frame is kept once, though it is in several stacks [frames, height, width],
    of observations and of next ones; other observations are kept as by Stable-Baselines3. Batches are those of its own
    buffer for the same seed, bit for bit.

    Args:
        buffer_size: maximum number of steps, over all environments.
        observation_space: of one environment: an array.
        action_space: of one environment.
        device: of batches.
        n_envs: number of environments.
        optimize_memory_usage: no effect: observations are always kept once.
        handle_timeout_termination: whether steps that a time limit ended count as not done.
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
        """Bytes of memory that steps take."""
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
