"""Steps for batches: the part of each worker, and the source that asks a pool for steps and numbers trajectories."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlx.collector.environment.intake import Remarks
from rlx.collector.rollout.steps import Steps, TrajectoryIds
from rlx.collector.ted import CatResults
from rlx.collector.worker.shared_steps import Description, Weights
from rlx.collector.worker.step_pool import StepPool, StepTask, WorkerConfig
from rlx.engine.actor import Actors
from rlx.errors import CollectError
from rlx.numbers import check_flag, check_whole

TrajFormat = Literal["padded", "cat"]
# Where whole episodes are asked for: long enough to cost little, short enough that new weights are soon in use.
_CHUNK_STEPS = 16


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Plan of how steps become batches, with arguments of ``Collector`` and ``MultiCollector``.

    Args:
        frames: steps per batch of each worker; with trajs_per_batch, the steps that it makes at once, if given.
    """

    frames: Sequence[int] | None
    total_frames: int
    trajs_per_batch: int | None
    traj_format: TrajFormat
    init_random_frames: int
    reset_at_each_iter: bool
    set_truncated: bool
    track_policy_version: bool
    cat_results: CatResults = 0
    is_sync: bool = True
    preemptive_threshold: float | None = None

    def __post_init__(self) -> None:
        if self.frames is None and self.trajs_per_batch is None:
            raise CollectError("expected frames_per_batch or trajs_per_batch")
        if self.trajs_per_batch is not None:
            self._check_whole("trajs_per_batch", 1)
        for name in ("total_frames", "init_random_frames"):
            self._check_whole(name, -1)
        for frames in self.frames or ():
            check_whole("frames_per_batch", frames, error=CollectError)
        for name in ("reset_at_each_iter", "set_truncated", "track_policy_version"):
            check_flag(name, getattr(self, name), error=CollectError)
        if self.traj_format not in ("padded", "cat"):
            raise CollectError(f"traj_format {self.traj_format!r}: expected 'padded' or 'cat'")

    def _check_whole(self, name: str, minimum: int) -> None:
        object.__setattr__(self, name, check_whole(name, getattr(self, name), minimum, error=CollectError))

    @property
    def slots(self) -> int:
        """Tasks that a worker may have at once: two, so that it never waits, or one if workers run in rounds."""
        return 1 if self.is_sync else 2

    @property
    def is_even(self) -> bool:
        """Whether every environment has the same number of consecutive steps in a batch."""
        return self.trajs_per_batch is None and self.preemptive_threshold is None

    @property
    def is_cut(self) -> bool:
        """Whether the last step of every batch is flagged truncated."""
        return self.reset_at_each_iter or self.set_truncated


@dataclass(frozen=True, slots=True)
class Quota:
    """The steps that one worker contributes to a batch.

    Args:
        envs: number of environments that count; the others are left out.
    """

    worker: int
    length: int
    envs: int

    @property
    def steps(self) -> int:
        """Steps that count."""
        return self.length * self.envs


def quotas_for(left: int | None, lengths: Sequence[int], envs: Sequence[int]) -> list[Quota]:
    """Return each worker's quota of the next batch; together, they never exceed the remaining steps.

    If too few steps remain, the longest quotas become shorter; then only the first workers have one, and last only the
    first environments of the first worker.

    Args:
        left: remaining steps, at least 1; None without a limit.
    """
    longest = max(lengths)
    if left is not None:
        while longest > 0 and sum(_steps(longest, lengths, envs)) > left:
            longest -= 1
    if longest > 0:
        return [Quota(w, min(longest, length), n) for w, (length, n) in enumerate(zip(lengths, envs, strict=True))]
    quotas: list[Quota] = []
    rest = left or 0
    for worker, n in enumerate(envs):
        if n > rest:
            break
        quotas.append(Quota(worker, 1, n))
        rest -= n
    return quotas or [Quota(0, 1, rest)]


def _steps(longest: int, lengths: Sequence[int], envs: Sequence[int]) -> list[int]:
    return [min(longest, length) * n for length, n in zip(lengths, envs, strict=True)]


class QuotaSteps(NamedTuple):
    """Steps of a worker for its quota.

    Args:
        steps: the steps; those of environments after ``quota.envs`` do not count.
        ids: [n, T] of their trajectories.
        is_start: whether all environments begin new episodes with them.
    """

    quota: Quota
    steps: Steps
    ids: NDArray[np.int64]
    is_start: bool


class StepSource:
    """Source of the steps of some workers, up to ``plan.total_frames``.

    Attributes:
        sessions: number of sessions begun; the seeds of episodes follow from it.
        seed: seed of later episodes; None for that of the configs.
        remarks: those on the environments of all workers.
    """

    def __init__(self, actors: Actors, configs: Sequence[WorkerConfig], plan: BatchPlan, weights: Weights) -> None:
        self._plan = plan
        self.frames = self.sessions = 0
        self.seed: int | None = None
        self.remarks = Remarks()
        self._asked = 0  # steps that are made and count, or that were asked for
        self._rounds = 0
        self.pool = StepPool(
            actors, configs, self._length, slots=plan.slots, weights=weights, new_session=self._new_session
        )
        descriptions = self.pool.descriptions
        self._lengths = [self._length(worker, description) for worker, description in enumerate(descriptions)]
        self.envs = [description.num_envs for description in descriptions]
        self._check(descriptions)
        workers = range(len(configs))
        self._first_envs = [sum(self.envs[:worker]) for worker in workers]
        self._ids = [TrajectoryIds(n, worker, len(workers)) for worker, n in enumerate(self.envs)]
        self._quotas: list[deque[Quota | None]] = [deque() for _ in workers]  # None: its steps are to be dropped
        self._due: dict[int, int] = {}  # sessions that workers are to begin with their next task
        self.restart(workers)

    @property
    def steps_per_batch(self) -> int:
        """Steps of a whole batch: of all workers, or of one where batches are those of one."""
        steps = [length * envs for length, envs in zip(self._lengths, self.envs, strict=True)]
        return sum(steps) if self._plan.is_sync else steps[0]

    @property
    def next_trajectory(self) -> int:
        """A number larger than all ids in use."""
        return max(ids.next for ids in self._ids)

    def take(self) -> list[QuotaSteps]:
        """Return the next steps: of a round of all workers, or of one; empty after ``total_frames``."""
        if self._plan.is_sync:
            return [] if self._left() == 0 else self._round()
        while True:
            self.ask_ahead()
            if not any(self._quotas):
                return []
            if (taken := self._take_one()) is not None:
                return [taken]

    def ask_ahead(self) -> None:
        """Keep workers busy, unless they run in rounds."""
        if self._plan.is_sync:
            return
        for unanswered in range(self._plan.slots):
            for worker, quotas in enumerate(self._quotas):
                if len(quotas) > unanswered or self._left() == 0:
                    continue
                (quota,) = quotas_for(self._left(), [self._lengths[worker]], [self.envs[worker]])
                if self._plan.reset_at_each_iter and worker not in self._due:
                    self._due |= self._sessions_for([worker])
                self._rounds += 1
                self._ask(replace(quota, worker=worker), is_random=self._asked < self._plan.init_random_frames)

    def restart(self, workers: Sequence[int]) -> None:
        """Begin new episodes with the next tasks of these workers; drop the steps that they were asked for, without
        waiting for them."""
        for worker in workers:
            quotas = self._quotas[worker]
            self._asked -= sum(quota.steps for quota in quotas if quota is not None)
            self._quotas[worker] = deque([None] * len(quotas))
        self._due |= self._sessions_for(workers)

    def uncount(self, steps: int) -> None:
        """Subtract steps that were collected but not delivered from the count."""
        self.frames -= steps
        self._asked -= steps

    def resume_at(self, frames: int, sessions: int, seed: int | None, trajectory: int) -> None:
        """Continue with the counts of another source, with new episodes everywhere."""
        self.sessions, self.seed = sessions, seed
        for ids in self._ids:
            ids.skip_to(trajectory)
        self.restart(range(len(self.envs)))
        self.frames = self._asked = frames

    def live_state(self, trust: bool) -> dict[str, Any]:
        """Return the state of the counts and of all workers; raise HiddenStateError if it cannot be read."""
        return {
            "workers": self.pool.state(trust),
            "counts": [self.frames, self._asked, self._rounds, self.sessions],
            "seed": self.seed,
            "due": self._due.copy(),
            "ids": [ids.state_dict() for ids in self._ids],
        }

    def load_live_state(self, state: Mapping[str, Any], trust: bool) -> None:
        """Continue from a state of ``live_state``; raise HiddenStateError if it does not fit."""
        self.pool.load_state(state["workers"], self._first_envs, trust)
        self.frames, self._asked, self._rounds, self.sessions = state["counts"]
        self.seed, self._due = state["seed"], dict(state["due"])
        for ids, saved in zip(self._ids, state["ids"], strict=True):
            ids.load_state_dict(saved)

    def _round(self) -> list[QuotaSteps]:
        quotas = quotas_for(self._left(), self._lengths, self.envs)
        enough = len(quotas)
        if self._plan.preemptive_threshold is not None:
            enough = max(1, int(enough * self._plan.preemptive_threshold))
        if self._plan.reset_at_each_iter:
            self._due = self._due or self._sessions_for(range(len(self.envs)))
        self._rounds += 1
        is_random = self._asked < self._plan.init_random_frames
        for quota in quotas:
            self._ask(quota, is_random=is_random)
        taken: dict[int, QuotaSteps] = {}
        while len(taken) < len(quotas):
            if (one := self._take_one()) is None:
                continue
            taken[one.quota.worker] = one
            if len(taken) == enough:
                self.pool.stop(self._rounds)
        return [taken[quota.worker] for quota in quotas]

    def _ask(self, quota: Quota, *, is_random: bool) -> None:
        worker = quota.worker
        session = self._due.pop(worker, None)
        task = StepTask(self._rounds, quota.length, is_random, session, self._first_envs[worker], self.seed)
        self.pool.submit(worker, task)
        self._quotas[worker].append(quota)
        self._asked += quota.steps

    def _take_one(self) -> QuotaSteps | None:
        worker, task, steps = self.pool.next()
        self.remarks.add(steps.remarks)
        if (quota := self._quotas[worker].popleft()) is None:
            return None
        is_start = task.session is not None
        if is_start:
            self._ids[worker].begin()
        if self._plan.track_policy_version:
            steps = replace(steps, step={**steps.step, "policy_version": steps.version})
        made = int(steps.counts[: quota.envs].sum())
        if made and self._plan.trajs_per_batch is None:
            self.pool.made_progress(worker)
        self.frames += made
        self._asked += made - quota.steps
        return QuotaSteps(quota, steps, self._ids[worker].of(steps), is_start)

    def _left(self) -> int | None:
        total = self._plan.total_frames
        return None if total < 0 else max(0, total - self._asked)

    def _sessions_for(self, workers: Iterable[int]) -> dict[int, int]:
        return dict.fromkeys(workers, self._new_session())

    def _new_session(self) -> int:
        self.sessions += 1
        return self.sessions - 1

    def _length(self, worker: int, description: Description) -> int:
        frames, n = self._plan.frames, description.num_envs
        if frames is None:
            return _CHUNK_STEPS
        if frames[worker] < n:
            raise CollectError(f"batches of {frames[worker]}: expected at least {n} of {n} environments")
        return frames[worker] // n

    def _check(self, descriptions: Sequence[Description]) -> None:
        first = descriptions[0]
        for worker, other in enumerate(descriptions):
            if other.observation_space != first.observation_space or other.action_space != first.action_space:
                raise CollectError(
                    f"worker {worker}'s environment has spaces {other.observation_space} and {other.action_space}, "
                    f"expected those of worker 0: {first.observation_space} and {first.action_space}"
                )
        is_uneven = len(set(self.envs)) > 1 or (self._plan.cat_results == "stack" and len(set(self._lengths)) > 1)
        if is_uneven and self._plan.is_sync and self._plan.trajs_per_batch is None:
            raise CollectError(
                f"workers of {self.envs} environments that make {self._lengths} steps of each: "
                "expected the same of all, or cat_results=0 of workers with as many environments"
            )
