"""Base of all collectors: order steps from workers, number their trajectories, and make batches of them."""

import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase

from rlx.buffer.trajectory_split import split_trajectories
from rlx.collector.background import FreeRunning
from rlx.collector.batch_delivery import MASK, BatchDelivery
from rlx.collector.plan import Plan, Quota, quotas_for
from rlx.collector.policy.weights import NewWeights, load, pack
from rlx.collector.rollout.episodes import Episode, Episodes
from rlx.collector.rollout.steps import NO_TRAJECTORY, Steps, TrajectoryIds
from rlx.collector.ted import Portion, episodes_to_ted, joined
from rlx.collector.worker.shared_steps import Description, Weights
from rlx.collector.worker.step_pool import StepPool
from rlx.collector.worker.step_worker import StepTask, WorkerConfig
from rlx.engine.actor import Actors
from rlx.errors import CollectError
from rlx.fork import ThisProcessOnly, on_fork

# Where whole episodes are asked for: long enough to cost little, short enough that new weights are soon in use.
_CHUNK_STEPS = 16


class _Taken(NamedTuple):
    """The steps of a worker's quota."""

    quota: Quota
    steps: Steps
    ids: NDArray[np.int64]


class BaseCollector(FreeRunning):
    """Iterator over batches of steps as TED TensorDicts; ``Collector`` and ``MultiCollector`` say how it is made.

    Args:
        actors: what starts the workers.
        configs: of the workers.
        module: the policy, if it is a module.
        plan: how steps become batches.
        delivery: post-processing of batches.
        has_copies: whether workers have copies of the policy, which are sent new weights.

    Raises:
        CollectError: an environment or the policy cannot be had, or sizes make no sense.

    Example:
        >>> with rlx.Collector("CartPole-v1", frames_per_batch=10, total_frames=20) as collector:
        ...     isinstance(collector, rlx.collector.BaseCollector), [len(batch) for batch in collector]
        (True, [10, 10])
    """

    def __init__(
        self,
        actors: Actors,
        configs: Sequence[WorkerConfig],
        module: torch.nn.Module | None,
        plan: Plan,
        delivery: BatchDelivery,
        *,
        has_copies: bool,
    ) -> None:
        self._module = module
        self._has_copies = has_copies
        self._plan = plan
        self._deliver = delivery
        self._seed: int | None = None  # of ``set_seed``, if it was called
        self._sessions = 0
        self._frames = 0  # steps that workers have made, and that count
        self._ordered = 0  # and those that they are about to make
        self._rounds = 0
        self._iterations = 0
        self._version = 0
        self._here = ThisProcessOnly(
            "a collector cannot be used in a process forked from the one that made it",
            hint="make the collector in the process that uses it",
        )
        self._here.check()
        actors.__enter__()
        # Also without a shutdown: running work is abandoned, not waited for.
        self._close = weakref.finalize(self, actors.__exit__, GeneratorExit, GeneratorExit(), None)
        on_fork(self, BaseCollector._leave)
        try:
            self._pool = StepPool(
                actors,
                configs,
                self._length,
                slots=plan.slots,
                weights=self._weights(),
                new_session=self._new_session,
            )
            self._described = self._pool.descriptions
            self._lengths = [self._length(worker, description) for worker, description in enumerate(self._described)]
            self._envs = [description.num_envs for description in self._described]
            self._check()
        except BaseException:
            self.shutdown()
            raise
        workers = range(len(configs))
        self._first_envs = [sum(self._envs[:worker]) for worker in workers]
        self._ids = [TrajectoryIds(n, worker, len(workers)) for worker, n in enumerate(self._envs)]
        self._quotas: list[deque[Quota | None]] = [deque() for _ in workers]  # None: its steps are to be dropped
        self._due: dict[int, int] = {}  # sessions that workers are to begin with their next order
        self._episodes: list[Episodes] = []
        self._waiting: list[Episode] = []
        self._next_episode = 0
        self._restart()

    @property
    def policy_version(self) -> int:
        """How often ``update_policy_weights_`` was called."""
        return self._version

    @property
    def lost_episodes(self) -> int:
        """How many episodes were lost with the process of their worker; steps of them may be in batches."""
        return self._pool.lost_episodes

    def __iter__(self) -> Iterator[TensorDictBase | None]:
        """Yield batches, or None where they go to the replay buffer, until ``total_frames`` steps are done."""
        self._expect_idle()
        while (batch := self._next_batch()) is not None:
            self._iterations += 1
            yield self._deliver(batch, is_batched=self._described[0].is_batched)
            self._expect_idle()

    def next(self) -> TensorDictBase | None:
        """Return the next batch; None where it went to the replay buffer, or when all steps are done."""
        return next(iter(self), None)

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Begin new episodes everywhere, those of a new collector with this ``seed``; give a seed for another one.

        Args:
            seed: of all environments and random actions.
            static_seed: must be False: every environment has a seed of its own.

        Raises:
            CollectError: ``static_seed`` is True.
        """
        if static_seed:
            raise CollectError("static_seed=True: expected False, as every environment has a seed of its own")
        with self._quiet():
            self._seed, self._sessions = seed, 0
            self._begin_anew(range(len(self._envs)))
        return seed + 1

    def reset(self, reset_idx: Sequence[bool] | None = None) -> None:
        """Give up the running episodes: the next batch begins with new ones, under new ids.

        Whole episodes that wait for their batch are dropped too, unless only some workers are reset. Dropped steps do
        not count for ``total_frames``.

        Args:
            reset_idx: whether to reset each worker's environments; all by default.

        Raises:
            CollectError: there are more or fewer workers.
        """
        chosen = [True] * len(self._envs) if reset_idx is None else list(reset_idx)
        if len(chosen) != len(self._envs):
            raise CollectError(f"reset_idx has {len(chosen)} flags, expected one for each of {len(self._envs)} workers")
        with self._quiet():
            self._begin_anew([worker for worker, is_chosen in enumerate(chosen) if is_chosen])

    def update_policy_weights_(self, policy_or_weights: "NewWeights | None" = None) -> None:
        """Take new weights: a state_dict, a TensorDict of parameters or another module; none where the policy's own

        were changed in place. They are in use from the next batch that is begun. The version goes up by one.

        Raises:
            CollectError: there are weights and the policy has none.
        """
        self._here.check()
        if self._background is not None:
            self._background.check()
        if policy_or_weights is not None:
            if self._module is None:
                raise CollectError("the policy has no weights to be updated")
            load(self._module, policy_or_weights)
        self._version += 1
        self._pool.publish(self._weights())

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which a collector with the same arguments resumes.

        It holds counts of delivered steps, ids, sessions, from which the seeds follow, and the policy's weights.
        Environments are not in it: few can be saved. So running episodes are lost, and whole ones that wait for their
        batch; steps are made in their place. Nor is the state of generators that are not the collector's, such as
        torch's own.
        """
        with self._quiet():
            lost = sum(episodes.running_steps for episodes in self._episodes) + sum(one.steps for one in self._waiting)
            return {
                "frames": self._frames - lost,
                "iterations": self._iterations,
                "next_trajectory": max(max(ids.next for ids in self._ids), self._next_episode),
                "sessions": self._sessions,
                "seed": self._seed,
                "policy_version": self._version,
                "policy_state_dict": {} if self._module is None else self._module.state_dict(),
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another collector stood, with new episodes, ids that it did not give and other seeds.

        Of one state and seed follow the same batches, where they depend on the seed alone.

        Raises:
            CollectError: it is no collector's state.
        """
        self._expect_idle()
        if missing := [name for name in self.state_dict() if name not in state and name != "seed"]:
            raise CollectError(f"state has no {missing[0]!r}: expected a collector's state_dict()")
        self._drop_open(range(len(self._envs)))
        self._frames = self._ordered = state["frames"]
        self._iterations, self._sessions, self._seed = state["iterations"], state["sessions"], state.get("seed")
        if self._module is not None:
            self._module.load_state_dict(state["policy_state_dict"])
        self._version = state["policy_version"]
        self._pool.publish(self._weights())
        for ids in self._ids:
            ids.skip_to(state["next_trajectory"])
        self._restart()
        self._next_episode = state["next_trajectory"]

    def shutdown(self, timeout: float | None = None) -> None:
        """Close the environments, after the batch that the thread of ``start`` is collecting, if there is one.

        Args:
            timeout: seconds to wait for that batch; as long as it takes by default.

        Raises:
            CollectError: the batch took longer, though the environments are closed; or whatever ended the thread.
        """
        try:
            self._stop_background(timeout)
        finally:
            self._close()
        if self._background is not None:
            self._background.check()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.shutdown()
        except Exception:
            if error is None:  # else that is what its user is to see
                raise

    def _leave(self) -> None:
        super()._leave()
        self._close.detach()

    @property
    def _has_buffer(self) -> bool:
        return self._deliver.replay_buffer is not None

    def _collect_one(self) -> bool:
        if (batch := self._next_batch()) is None:
            return False
        self._iterations += 1
        self._deliver(batch, is_batched=self._described[0].is_batched)
        return True

    def _detach(self) -> None:
        if self._module is not None and not self._has_copies:
            self._pool.detach()
            self._has_copies = True

    def _length(self, worker: int, description: Description) -> int:
        """Return steps of an environment of a worker's usual quota."""
        frames, n = self._plan.frames, description.num_envs
        if frames is None:
            return _CHUNK_STEPS
        if frames[worker] < n:
            raise CollectError(f"batches of {frames[worker]}: expected at least {n} of {n} environments")
        return frames[worker] // n

    def _check(self) -> None:
        """Refuse what cannot be put together."""
        first, n, total = self._described[0], sum(self._envs), self._plan.total_frames
        for worker, other in enumerate(self._described):
            if other.observation_space != first.observation_space or other.action_space != first.action_space:
                raise CollectError(
                    f"worker {worker}'s environment has spaces {other.observation_space} and {other.action_space}, "
                    f"expected those of worker 0: {first.observation_space} and {first.action_space}"
                )
        is_uneven = len(set(self._envs)) > 1 or (self._plan.cat_results == "stack" and len(set(self._lengths)) > 1)
        if is_uneven and self._plan.is_sync and self._plan.trajs_per_batch is None:
            raise CollectError(
                f"workers of {self._envs} environments that make {self._lengths} steps of each: "
                "expected the same of all, or cat_results=0 of workers with as many environments"
            )
        if self._deliver.lanes and total > 0 and total % n:
            raise CollectError(f"total_frames={total}: expected a multiple of {n}, the lanes of the replay buffer")

    def _next_batch(self) -> TensorDictBase | None:
        """Return the next batch; none when all steps are done. What goes wrong ends the collector."""
        if not self._close.alive:
            raise CollectError("the collector is shut down")
        try:
            if self._plan.trajs_per_batch is not None:
                return self._whole_episodes(self._plan.trajs_per_batch)
            taken = self._obtain()
            batch = self._batch(taken) if taken else None
            self._order_ahead()
        except BaseException:
            self.shutdown()
            raise
        return batch

    def _batch(self, taken: Sequence[_Taken]) -> TensorDictBase:
        if self._plan.is_cut:
            taken = [one._replace(steps=_cut(one.steps)) for one in taken]
        portions = [Portion(steps, ids) for _, steps, ids in taken]
        is_batched, envs = self._described[0].is_batched, taken[-1].quota.envs
        if envs < len(taken[-1].ids):  # the last steps of all, without other portions
            return self._masked(joined(portions, 0, is_batched=True)[:envs])
        return self._masked(joined(portions, self._plan.cat_results, is_batched=is_batched))

    def _masked(self, batch: TensorDictBase) -> TensorDictBase:
        if self._plan.preemptive_threshold is not None:
            batch[MASK] = batch["collector", "traj_ids"] != NO_TRAJECTORY
        return batch

    def _whole_episodes(self, count: int) -> TensorDictBase | None:
        """Return ``count`` whole episodes; at the end fewer, and the last ones are truncated."""
        while len(self._waiting) < count and (taken := self._obtain()):
            for quota, steps, _ in taken:
                ended = self._episodes[quota.worker].add(steps, quota.steps)
                self._waiting += ended
                if ended:
                    self._pool.made_progress(quota.worker)
            self._order_ahead()
        if len(self._waiting) < count:
            self._waiting += [episode for episodes in self._episodes for episode in episodes.cut()]
        ready, self._waiting = self._waiting[:count], self._waiting[count:]
        if not ready:
            return None
        first, self._next_episode = self._next_episode, self._next_episode + len(ready)
        batch = episodes_to_ted(ready, range(first, self._next_episode))
        return batch if self._plan.traj_format == "cat" else split_trajectories(batch)

    def _obtain(self) -> list[_Taken]:
        """Return the next steps: a round of all workers, or the quota of one; empty when all steps are done."""
        if self._plan.is_sync:
            return [] if self._left() == 0 else self._round()
        while True:
            self._order_ahead()
            if not any(self._quotas):
                return []
            if (taken := self._take()) is not None:
                return [taken]

    def _round(self) -> list[_Taken]:
        quotas = quotas_for(self._left(), self._lengths, self._envs)
        enough = len(quotas)
        if self._plan.preemptive_threshold is not None:
            enough = max(1, int(enough * self._plan.preemptive_threshold))
        if self._plan.reset_at_each_iter:
            self._due = self._due or self._sessions_for(range(len(self._envs)))
        self._rounds += 1
        is_random = self._ordered < self._plan.init_random_frames
        for quota in quotas:
            self._give(quota, is_random=is_random)
        taken: dict[int, _Taken] = {}
        while len(taken) < len(quotas):
            if (one := self._take()) is None:
                continue
            taken[one.quota.worker] = one
            if len(taken) == enough:
                self._pool.stop(self._rounds)
        return [taken[quota.worker] for quota in quotas]

    def _order_ahead(self) -> None:
        """Keep workers busy, unless they run in rounds."""
        if self._plan.is_sync:
            return
        for open_orders in range(self._plan.slots):
            for worker, quotas in enumerate(self._quotas):
                if len(quotas) > open_orders or self._left() == 0:
                    continue
                (quota,) = quotas_for(self._left(), [self._lengths[worker]], [self._envs[worker]])
                if self._plan.reset_at_each_iter and worker not in self._due:
                    self._due |= self._sessions_for([worker])
                self._rounds += 1
                is_random = self._ordered < self._plan.init_random_frames
                self._give(replace(quota, worker=worker), is_random=is_random)

    def _left(self) -> int | None:
        """Return steps that are to be ordered yet."""
        total = self._plan.total_frames
        return None if total < 0 else max(0, total - self._ordered)

    def _give(self, quota: Quota, *, is_random: bool) -> None:
        worker = quota.worker
        session = self._due.pop(worker, None)
        task = StepTask(self._rounds, quota.length, is_random, session, self._first_envs[worker], self._seed)
        self._pool.submit(worker, task)
        self._quotas[worker].append(quota)
        self._ordered += quota.steps

    def _take(self) -> _Taken | None:
        """Return the steps of the first worker that is ready; None if it was reset meanwhile."""
        result = self._pool.next()
        worker, steps = result.worker, result.steps
        if (quota := self._quotas[worker].popleft()) is None:
            return None
        if result.task.session is not None:
            self._begin(worker)
        if self._plan.track_policy_version:
            steps = replace(steps, step={**steps.step, "policy_version": steps.version})
        made = int(steps.counts[: quota.envs].sum())
        if made and self._plan.trajs_per_batch is None:
            self._pool.made_progress(worker)
        self._frames += made
        self._ordered += made - quota.steps
        return _Taken(quota, steps, self._ids[worker].of(steps))

    def _begin(self, worker: int) -> None:
        """Begin new episodes in all environments of a worker; running ones are dropped."""
        self._drop_running(worker)
        self._ids[worker].begin()

    def _begin_anew(self, workers: Sequence[int]) -> None:
        """Drop what these workers were ordered and have not ended; their next order begins new episodes.

        If it is all of them, also whole episodes that wait.
        """
        self._drop_open(workers)
        for worker in workers:
            self._drop_running(worker)
        if len(workers) == len(self._envs):
            self._uncount(sum(episode.steps for episode in self._waiting))
            self._restart()
        else:
            self._due |= self._sessions_for(workers)

    def _drop_open(self, workers: Sequence[int]) -> None:
        """Drop the steps already ordered from these workers as they come in, without waiting for them."""
        for worker in workers:
            quotas = self._quotas[worker]
            self._ordered -= sum(quota.steps for quota in quotas if quota is not None)
            self._quotas[worker] = deque([None] * len(quotas))

    def _drop_running(self, worker: int) -> None:
        self._uncount(self._episodes[worker].running_steps)
        self._episodes[worker] = Episodes(self._envs[worker])

    def _uncount(self, steps: int) -> None:
        """Take back steps that were collected and are not given out."""
        self._frames -= steps
        self._ordered -= steps

    def _restart(self) -> None:
        """Begin new episodes everywhere."""
        self._due = self._sessions_for(range(len(self._envs)))
        self._episodes = [Episodes(n) for n in self._envs]
        self._waiting = []

    def _sessions_for(self, workers: Sequence[int]) -> dict[int, int]:
        return dict.fromkeys(workers, self._new_session())

    def _new_session(self) -> int:
        self._sessions += 1
        return self._sessions - 1

    def _weights(self) -> Weights:
        packed = np.empty(0, np.uint8) if self._module is None or not self._has_copies else pack(self._module)
        return Weights(self._version, packed)


def _cut(steps: Steps) -> Steps:
    """Return the steps with the last one of every environment flagged truncated, unless it ends its episode anyway."""
    envs, truncated = np.flatnonzero(steps.counts), steps.next["truncated"].copy()
    last = (envs, steps.counts[envs] - 1)
    truncated[last] |= ~steps.next["terminated"][last]
    return replace(steps, next={**steps.next, "truncated": truncated})


# Name of TorchRL before 0.13.
DataCollectorBase = BaseCollector
