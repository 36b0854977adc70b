"""Batches of steps for a learner, collected in this process, under the names that TorchRL's users know."""

from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import InteractionType, set_interaction_type

from rlx.buffer.trajectory_split import split_trajectories
from rlx.collector.environment import Environment
from rlx.collector.episodes import Episodes
from rlx.collector.module_policy import ModulePolicy
from rlx.collector.opening import EnvSource, open_environment
from rlx.collector.policy import Policy, RandomPolicy
from rlx.collector.policy_file import as_policy
from rlx.collector.rollout import Rollout, Steps
from rlx.collector.session import seeds_of
from rlx.collector.ted import episodes_to_ted, steps_to_ted
from rlx.errors import CollectError

Device = torch.device | str
Postproc = Callable[[TensorDictBase], TensorDictBase]


class Collector:
    """Iterates over batches of steps as TED TensorDicts, of shape [T], or [n, T] of n environments.

    Trajectories go on from batch to batch. ``("collector", "traj_ids")`` are unique and increase.

    Args:
        create_env_fn: an environment, a gymnasium id, or what makes one.
        policy: a TensorDictModule that writes ``action``, a module or function that gives actions [n, ...] for
            observations [n, ...]; random where not given.
        frames_per_batch: steps of all environments a batch, rounded down to as many in each.
        total_frames: steps of all batches; exactly so many: the last batches are smaller. -1: without end.
        max_frames_per_traj: where a trajectory is truncated, and a new one begun, if it lasts so long.
        init_random_frames: actions are random until so many steps are done.
        reset_at_each_iter: whether every batch begins with new episodes; those left are flagged truncated.
        split_trajs: whether batches are [N, T_max], a row a trajectory, with ``("collector", "mask")``.
        trajs_per_batch: instead of frames_per_batch: batches [N, T_max] of exactly so many whole episodes.
        postproc: is applied to every batch.
        replay_buffer: is extended by every batch, and None is yielded.
        device: of policy and batches, if nothing else is said of these.
        storing_device: where batches are put.
        policy_device: where the policy runs.
        exploration_type: how a distribution in the policy is sampled; ``InteractionType`` of tensordict.
        set_truncated: whether the last step of every batch is flagged truncated, without ending its trajectory.
        seed: of environments and random actions.
        track_policy_version: whether every step has the policy's number, ``policy_version``.

    Raises:
        CollectError: the environment cannot be had, fails, or does not fit the policy; or sizes make no sense.

    Example:
        >>> with Collector("CartPole-v1", frames_per_batch=20, total_frames=50) as collector:
        ...     [batch.shape[0] for batch in collector]
        [20, 20, 10]
    """

    def __init__(
        self,
        create_env_fn: EnvSource,
        policy: Any = None,
        *,
        frames_per_batch: int | None = None,
        total_frames: int = -1,
        max_frames_per_traj: int | None = None,
        init_random_frames: int = 0,
        reset_at_each_iter: bool = False,
        split_trajs: bool = False,
        trajs_per_batch: int | None = None,
        postproc: Postproc | None = None,
        replay_buffer: Any = None,
        device: Device | None = None,
        storing_device: Device | None = None,
        policy_device: Device | None = None,
        exploration_type: InteractionType = InteractionType.RANDOM,
        set_truncated: bool = False,
        seed: int = 0,
        track_policy_version: bool = False,
    ) -> None:
        if (frames_per_batch is None) == (trajs_per_batch is None):
            raise CollectError("expected frames_per_batch or trajs_per_batch, and not both")
        self._environment: Environment = open_environment(create_env_fn)
        n = self._environment.num_envs
        if (frames_per_batch is not None and frames_per_batch < n) or (
            trajs_per_batch is not None and trajs_per_batch < 1
        ):
            self._environment.close()
            raise CollectError(
                f"batches of {frames_per_batch or trajs_per_batch}: expected at least {n} of {n} environments"
            )
        self._random = RandomPolicy(self._environment.action_space, seeds_of(seed, 0, n, 1))
        self._policy = self._random if policy is None else _policy(policy, policy_device or device)
        self._length = None if frames_per_batch is None else frames_per_batch // n
        self._trajs_per_batch = trajs_per_batch
        self._total = total_frames
        self._init_random = init_random_frames
        self._reset_each = reset_at_each_iter
        self._split = split_trajs
        self._postproc = postproc
        self._replay_buffer = replay_buffer
        self._storing_device = storing_device or device
        self._exploration_type = exploration_type
        self._set_truncated = set_truncated
        self._seed = seed
        self._tracks_version = track_policy_version
        self._max_frames_per_traj = max_frames_per_traj
        self._rollout: Rollout | None = None
        self._ids = np.arange(n, dtype=np.int64)
        self._next_id = n
        self._sessions = 0
        self._frames = 0
        self._iterations = 0
        self._version = 0
        self._is_shut = False

    @property
    def policy_version(self) -> int:
        """How often ``update_policy_weights_`` was called."""
        return self._version

    def __iter__(self) -> Iterator[TensorDictBase | None]:
        """Batches, or None where they go to the replay buffer, until ``total_frames`` steps are done."""
        if self._is_shut:
            raise CollectError("the collector is shut down")
        batches = self._batches() if self._trajs_per_batch is None else self._episode_batches(self._trajs_per_batch)
        for batch in batches:
            self._iterations += 1
            yield self._delivered(batch)

    def update_policy_weights_(
        self, weights: Mapping[str, Any] | TensorDictBase | torch.nn.Module | None = None
    ) -> None:
        """Takes new weights: a state_dict, a TensorDict of parameters or another module; none where the policy's own

        were changed in place. The version goes up by one.

        Raises:
            CollectError: there are weights and the policy has none.
        """
        if weights is not None:
            if not isinstance(self._policy, ModulePolicy):
                raise CollectError("the policy has no weights to be updated")
            with torch.no_grad():
                if isinstance(weights, TensorDictBase):
                    weights.to_module(self._policy.module, inplace=True)
                else:
                    state = weights.state_dict() if isinstance(weights, torch.nn.Module) else weights
                    self._policy.module.load_state_dict(state)
        self._version += 1

    def state_dict(self) -> dict[str, Any]:
        """What a collector that goes on needs: counts, ids, the policy's weights; environments begin new episodes."""
        weights = self._policy.module.state_dict() if isinstance(self._policy, ModulePolicy) else {}
        return {
            "frames": self._frames,
            "iterations": self._iterations,
            "next_trajectory": self._next_id,
            "sessions": self._sessions,
            "policy_version": self._version,
            "policy_state_dict": weights,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where another collector stood, with new episodes and other seeds than it had."""
        self._frames, self._iterations = state["frames"], state["iterations"]
        self._version = state["policy_version"]
        if isinstance(self._policy, ModulePolicy):
            self._policy.module.load_state_dict(state["policy_state_dict"])
        self._sessions = state["sessions"]
        n = self._environment.num_envs
        self._ids = np.arange(state["next_trajectory"], state["next_trajectory"] + n)
        self._next_id = state["next_trajectory"] + n
        self._rollout = None

    def shutdown(self) -> None:
        """Closes the environments."""
        if not self._is_shut:
            self._is_shut = True
            self._environment.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _batches(self) -> Iterator[TensorDict]:
        n, length = self._environment.num_envs, self._length or 1
        while (left := self._left()) != 0:
            if self._reset_each:
                self._restart()
            count = length if left is None else min(length, max(1, left // n))
            steps, ids = self._take(count, is_cut=self._reset_each or self._set_truncated)
            batch = steps_to_ted(steps, ids)
            if left is not None and left < n:
                batch = batch[:left]
            self._frames += batch.numel()
            yield batch if self._environment.is_batched else batch[0]

    def _episode_batches(self, count: int) -> Iterator[TensorDictBase]:
        """Batches of whole episodes; the last may have fewer, and its last ones be truncated."""
        episodes = Episodes(self._environment.num_envs)
        waiting = []
        first = 0
        while (left := self._left()) != 0:
            steps, _ = self._take(1 if left is not None else 16, is_cut=False)
            waiting += episodes.add(steps, left)
            self._frames += int(steps.counts.sum()) if left is None else min(left, int(steps.counts.sum()))
            if self._left() == 0:
                waiting += episodes.cut()
            while len(waiting) >= count or (waiting and self._left() == 0):
                ready, waiting = waiting[:count], waiting[count:]
                yield split_trajectories(episodes_to_ted(ready, range(first, first + len(ready))))
                first += len(ready)

    def _left(self) -> int | None:
        return None if self._total < 0 else max(0, self._total - self._frames)

    def _take(self, length: int, *, is_cut: bool) -> tuple[Steps, NDArray[np.int64]]:
        """The next steps [n, T], and the ids of their trajectories."""
        if self._rollout is None:
            self._rollout = Rollout(self._environment, self._new_seeds(), self._max_frames_per_traj)
        policy: Policy = self._random if self._frames < self._init_random else self._policy
        with set_interaction_type(self._exploration_type):
            steps = self._rollout.run(policy, length)
        if (steps.counts < length).any():
            raise CollectError(
                f"{self._environment.name} resets in place of a step (autoreset mode NEXT_STEP), so batches have holes",
                hint="make the vector environment with autoreset_mode=AutoresetMode.SAME_STEP",
            )
        ids = self._number(steps)
        if is_cut:
            self._cut(steps)
        return steps, ids

    def _number(self, steps: Steps) -> NDArray[np.int64]:
        ids = np.empty(steps.reward.shape, np.int64)
        starts = np.zeros(len(ids), np.int64)
        for at, env in sorted((at, env) for env, at in steps.final):
            ids[env, starts[env] : at + 1] = self._ids[env]
            starts[env] = at + 1
            self._ids[env], self._next_id = self._next_id, self._next_id + 1
        for env, start in enumerate(starts):
            ids[env, start:] = self._ids[env]
        return ids

    def _cut(self, steps: Steps) -> None:
        """Flags the last step of every environment truncated, unless it is the last of its episode anyway."""
        steps.truncated[:, -1] |= ~steps.terminated[:, -1]

    def _restart(self) -> None:
        if self._rollout is not None:
            n = self._environment.num_envs
            self._rollout.restart(self._new_seeds())
            self._ids = np.arange(self._next_id, self._next_id + n)
            self._next_id += n

    def _new_seeds(self) -> list[int]:
        self._sessions += 1
        return seeds_of(self._seed, self._sessions - 1, self._environment.num_envs, 0)

    def _delivered(self, batch: TensorDictBase) -> TensorDictBase | None:
        if self._tracks_version:
            batch["policy_version"] = torch.full(batch.shape, self._version, dtype=torch.int64)
        if self._split and self._trajs_per_batch is None:
            batch = split_trajectories(batch)
        if self._storing_device is not None:
            batch = batch.to(self._storing_device)
        if self._postproc is not None:
            batch = self._postproc(batch)
        if self._replay_buffer is None:
            return batch
        self._replay_buffer.extend(batch.reshape(-1))
        return None


def _policy(policy: Any, device: Device | None) -> Policy:
    return ModulePolicy(policy, device) if isinstance(policy, torch.nn.Module) else as_policy(policy)


# Names of TorchRL before 0.13, and of its base class.
SyncDataCollector = Collector
DataCollectorBase = Collector
BaseCollector = Collector
