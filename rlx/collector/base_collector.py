"""Base of all collectors: batches of the steps that workers make, with weights, seeds and checkpoints."""

import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from rlx.accelerator import as_here
from rlx.buffer.batch import split_trajectories
from rlx.closing import Closing
from rlx.collector.environment.state import HiddenStateError, restore_state, save_state
from rlx.collector.policy.module import NewWeights, pack_weights, set_weights
from rlx.collector.rollout.episodes import Ended, Episodes
from rlx.collector.rollout.steps import NO_TRAJECTORY, Steps
from rlx.collector.step_source import BatchPlan, QuotaSteps, StepSource
from rlx.collector.ted import MASK, BatchDelivery, WorkerSteps, episodes_to_ted, joined
from rlx.collector.worker.shared_steps import Weights
from rlx.collector.worker.step_pool import WorkerConfig
from rlx.engine.actor import Actors
from rlx.errors import CollectError
from rlx.fork import ThisProcessOnly, on_fork
from rlx.numbers import check_whole

logger = logging.getLogger(__name__)


class Background:
    """Thread that calls a function until it returns False, raises, or is stopped.

    Args:
        work: collects one batch, and returns whether another is to follow.
    """

    def __init__(self, work: Callable[[], bool]) -> None:
        self._work = work
        self._turn = threading.Condition()
        self._is_working = False
        self._pauses = 0
        self._is_stopped = False
        self._error: BaseException | None = None
        # A daemon: a program that ends without a shutdown does not wait for a batch.
        self._thread = threading.Thread(target=as_here(self._run), name="collector", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether more batches are to come."""
        return self._thread.is_alive() and not self._is_stopped

    def check(self) -> None:
        """Raise the thread's error, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Wait for the batch that is being collected; none is begun inside."""
        with self._turn:
            self._pauses += 1
            self._turn.wait_for(lambda: not self._is_working)
        try:
            yield
        finally:
            with self._turn:
                self._pauses -= 1
                self._turn.notify_all()

    def stop(self, timeout: float | None = None) -> None:
        """Wait for the batch that is being collected, and end the thread."""
        with self._turn:
            self._is_stopped = True
            self._turn.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)
        if timeout is not None and self._thread.is_alive():
            raise CollectError(f"the collector did not finish its batch within {timeout} s")

    def _run(self) -> None:
        try:
            while self._begins():
                try:
                    if not self._work():
                        return
                finally:
                    with self._turn:
                        self._is_working = False
                        self._turn.notify_all()
        except BaseException as exc:  # for the next caller; a thread cannot report it
            self._error = exc
            logger.warning("collecting in the background ended: %s: %s", type(exc).__name__, exc)

    def _begins(self) -> bool:
        with self._turn:
            self._turn.wait_for(lambda: self._is_stopped or not self._pauses)
            self._is_working = not self._is_stopped
            return self._is_working


def give_up(background: Background) -> None:
    """Wait, at the end of the program, for a batch, but not for long."""
    with suppress(CollectError):
        background.stop(timeout=1.0)


class BaseCollector(Closing):
    """Iterator over batches of steps as TED TensorDicts; base of ``Collector`` and ``MultiCollector``.

    Args:
        actors: starts the workers.
        configs: one config per worker.
        module: the policy, if it is a module.
        plan: how steps become batches.
        delivery: post-processing of batches.
        has_copies: whether workers have copies of the policy, which are sent new weights.

    Attributes:
        hidden_state: why the last ``state_dict(environments=True)`` or ``load_state_dict`` did not keep the running
            episodes; None if it did.

    Raises:
        CollectError: an environment or the policy cannot be created, or a size is invalid.

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
        plan: BatchPlan,
        delivery: BatchDelivery,
        *,
        has_copies: bool,
    ) -> None:
        self._module = module
        self._has_copies = has_copies
        self._plan = plan
        self._deliver = delivery
        self._iterations = 0
        self._version = 0
        self._here = ThisProcessOnly(
            "a collector cannot be used in a fork of the process that created it",
            hint="create the collector in the process that uses it",
        )
        self._here.check()
        self._background: Background | None = None
        self._end: weakref.finalize[[Background], BaseCollector] | None = None
        actors.__enter__()
        # Also without a shutdown: running work is abandoned, not waited for.
        self._close = weakref.finalize(self, actors.__exit__, GeneratorExit, GeneratorExit(), None)
        on_fork(self, BaseCollector._leave)
        try:
            self._source = StepSource(actors, configs, plan, self._weights())
            self._pool = self._source.pool
            self._check()
        except BaseException:
            self.shutdown()
            raise
        self._is_batched = self._pool.descriptions[0].is_batched
        self._episodes: list[Episodes] = []  # running ones of each worker, where whole episodes are asked for
        self._waiting: list[Ended] = []
        self._next_episode = 0
        self.hidden_state: str | None = None
        self._drop_episodes()

    @property
    def policy_version(self) -> int:
        """Number of calls of ``update_policy_weights_``."""
        return self._version

    @property
    def lost_episodes(self) -> int:
        """Number of episodes lost with the process of their worker; batches may contain steps of them."""
        return self._pool.lost_episodes

    @property
    def remarks(self) -> Mapping[str, int]:
        """Number of steps by remark on what the environments gave, such as ``observation: outside its space``; each is
        logged once."""
        return self._source.remarks.counts

    # ``| Any``: whether there are batches depends on the arguments, and who iterates knows it.
    def __iter__(self) -> Iterator[TensorDictBase | Any]:
        """Yield batches, or None if they go to the replay buffer, until ``total_frames`` steps are done."""
        self._expect_idle()
        while (batch := self._next_batch()) is not None:
            self._iterations += 1
            yield self._deliver(batch, is_batched=self._is_batched)
            self._expect_idle()

    def next(self) -> TensorDictBase | Any:
        """Return the next batch; None if it was written to the replay buffer, or after the last one."""
        return next(iter(self), None)

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Begin new episodes, the same as those of a new collector with this seed; return another seed.

        Args:
            seed: random seed of all environments and random actions.
            static_seed: must be False: every environment has its own seed.

        Raises:
            CollectError: ``static_seed`` is True, or the seed is invalid.
        """
        if static_seed:
            raise CollectError("static_seed=True: expected False, as every environment has a seed of its own")
        seed = check_whole("seed", seed, 0, error=CollectError)
        with self._quiet():
            self._source.seed, self._source.sessions = seed, 0
            self._begin_anew(range(len(self._episodes)))
        return seed + 1

    def reset(self, reset_idx: Sequence[bool] | None = None) -> None:
        """Drop the running episodes: the next batch begins with new ones, with new ids.

        Whole episodes that wait for their batch are dropped too, unless only some workers are reset. Dropped steps do
        not count for ``total_frames``.

        Args:
            reset_idx: for each worker, whether to reset its environments; all by default.

        Raises:
            CollectError: reset_idx does not have one value per worker.
        """
        chosen = [True] * len(self._episodes) if reset_idx is None else list(reset_idx)
        if len(chosen) != len(self._episodes):
            raise CollectError(
                f"reset_idx has {len(chosen)} flags, expected one for each of {len(self._episodes)} workers"
            )
        with self._quiet():
            self._begin_anew([worker for worker, is_chosen in enumerate(chosen) if is_chosen])

    def update_policy_weights_(self, policy_or_weights: "NewWeights | None" = None) -> None:
        """Update the weights of the policy from the next batch on; ``policy_version`` increases by one.

        Args:
            policy_or_weights: a state_dict, a TensorDict of parameters or another module; by default the policy's own
                weights, changed in place.

        Raises:
            CollectError: weights are given, and the policy has none.
        """
        self._here.check()
        if self._background is not None:
            self._background.check()
        if policy_or_weights is not None:
            if self._module is None:
                raise CollectError("the policy has no weights to update")
            set_weights(self._module, policy_or_weights)
        self._version += 1
        self._pool.publish(self._weights())

    def state_dict(self, *, environments: bool = False, trust: bool = False) -> dict[str, Any]:
        """Return the state from which a collector with the same arguments resumes.

        It contains counts of delivered steps, ids, sessions, which determine the seeds, and the policy's weights, but
        not generators of other libraries, such as torch's. By default it does not contain environments either: running
        episodes, and whole ones that wait for their batch, are lost and collected again.

        Args:
            environments: whether to include the state of the environments and everything else that the next steps
                depend on: by their own ``get_state`` and ``set_state``, or by attributes that are numbers, texts,
                arrays and generators; ALE and MuJoCo too. ``hidden_state`` says what hides its state.
            trust: whether attributes of other kinds are pickled; ``load_state_dict`` then runs code of the state.
        """
        with self._quiet():
            live = self._live_state(trust) if environments else {}
            lost = sum(episodes.running_steps for episodes in self._episodes) + sum(one.steps for one in self._waiting)
            return {
                "frames": self._source.frames - lost,
                "iterations": self._iterations,
                "next_trajectory": max(self._source.next_trajectory, self._next_episode),
                "sessions": self._source.sessions,
                "seed": self._source.seed,
                "policy_version": self._version,
                "policy_state_dict": {} if self._module is None else self._module.state_dict(),
                **live,
            }

    def _live_state(self, trust: bool) -> dict[str, Any]:
        try:
            source = self._source.live_state(trust)
        except HiddenStateError as exc:
            self.hidden_state = str(exc)
            return {"hidden": self.hidden_state}
        self.hidden_state = None
        weights = self._pool.weights
        running = [episodes.state() for episodes in self._episodes]
        waiting = [[getattr(one, part.name) for part in fields(one)] for one in self._waiting]
        return {
            "source": source,
            "episodes": save_state([running, waiting], limit=None),
            "next_episode": self._next_episode,
            "weights": [weights.version, torch.from_numpy(weights.packed.copy())],
        }

    def _load_live_state(self, state: Mapping[str, Any], trust: bool) -> None:
        """Continue where the environments were; raise HiddenStateError where they hide their state."""
        if "source" not in state:
            raise HiddenStateError(state.get("hidden", "the state was saved without environments"))
        version, packed = state["weights"]
        self._pool.publish(Weights(version, packed.numpy()))
        self._drop_episodes()
        self._source.load_live_state(state["source"], trust)
        both: list[list[Any]] = [[], []]
        running, waiting = restore_state(both, state["episodes"])
        for episodes, one in zip(self._episodes, running, strict=True):
            episodes.load_state(one)
        self._waiting = [Ended(*parts) for parts in waiting]
        self._next_episode = state["next_episode"]

    def load_state_dict(self, state: Mapping[str, Any], *, trust: bool = False) -> None:
        """Resume from the state of another collector.

        From a state with environments it continues bit-identically: in the same episodes, at the same steps. Otherwise
        it begins new episodes, with new ids and other seeds, and ``hidden_state`` says why. The same state and seed
        give the same batches, if these depend only on the seed.

        Args:
            trust: whether to unpickle what the state has pickled, which runs code of whoever made it.

        Raises:
            CollectError: the state is not a collector's.
        """
        self._expect_idle()
        if missing := [name for name in self.state_dict() if name not in state and name != "seed"]:
            raise CollectError(f"state has no {missing[0]!r}: expected a collector's state_dict()")
        self._iterations = state["iterations"]
        if self._module is not None:
            self._module.load_state_dict(state["policy_state_dict"])
        self._version = state["policy_version"]
        self.hidden_state = None
        try:
            self._load_live_state(state, trust)
        except HiddenStateError as exc:
            self.hidden_state = str(exc)
        else:
            return
        if "hidden" in state or "source" in state:
            logger.warning("new episodes begin, as %s", self.hidden_state)
        self._pool.publish(self._weights())
        self._source.resume_at(state["frames"], state["sessions"], state.get("seed"), state["next_trajectory"])
        self._drop_episodes()
        self._next_episode = state["next_trajectory"]

    def start(self) -> None:
        """Collect into the replay buffer in a thread of its own, until ``total_frames`` or ``shutdown``.

        The policy runs as a copy: new weights are in use from the next batch after ``update_policy_weights_``. What
        ends the thread early is raised by the next method that is called.

        Raises:
            CollectError: the collector has no replay buffer, or the policy cannot be copied.

        Example:
            >>> from rlx.buffer import LazyTensorStorage, ReplayBuffer
            >>> from rlx.collector import Collector
            >>> memory = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=32)
            >>> with Collector("CartPole-v1", frames_per_batch=50, replay_buffer=memory) as collector:
            ...     collector.start()
            ...     while memory.write_count < 200:
            ...         pass
            ...     with collector.pause():
            ...         memory.sample().shape
            torch.Size([32])
        """
        self._here.check()
        if self._deliver.replay_buffer is None:
            raise CollectError("start: expected a collector with a replay_buffer")
        if self._background is not None:
            self._background.check()
            if self._background.is_running:
                return
        if self._module is not None and not self._has_copies:
            self._pool.detach()
            self._has_copies = True
        self._background = Background(self._collect_one)
        # Made after the one that closes the environments, so run before it when the program ends.
        self._end = weakref.finalize(self, give_up, self._background)

    def is_running(self) -> bool:
        """Return whether the thread of ``start`` is collecting."""
        return self._background is not None and self._background.is_running

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Wait for the batch that the thread of ``start`` collects; inside, nothing is written to the buffer.

        Raises:
            CollectError: the collector was not started, or the thread failed.
        """
        self._here.check()
        if self._background is None:
            raise CollectError("pause: expected a collector that was started")
        with self._quiet():
            yield

    def async_shutdown(self, timeout: float | None = None) -> None:
        """Do the same as ``shutdown``."""
        self.shutdown(timeout)

    def shutdown(self, timeout: float | None = None) -> None:
        """Close the environments, after the batch that a thread of ``start`` is collecting, if any.

        Args:
            timeout: seconds to wait for that batch; as long as it takes by default.

        Raises:
            CollectError: the batch took longer (the environments are closed nevertheless), or the thread failed.
        """
        try:
            if self._background is not None:
                self._background.stop(timeout)
            if self._end is not None:
                self._end.detach()
        finally:
            self._close()
        if self._background is not None:
            self._background.check()

    def close(self) -> None:
        """Call ``shutdown``."""
        self.shutdown()

    def _leave(self) -> None:
        """Update after a fork: the child stops nothing of its parent."""
        if self._end is not None:
            self._end.detach()
        self._background = None
        self._close.detach()

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        self._here.check()
        if self._background is None:
            yield
            return
        with self._background.paused():
            self._background.check()
            yield

    def _expect_idle(self) -> None:
        self._here.check()
        if self._background is None:
            return
        self._background.check()
        if self._background.is_running:
            raise CollectError(
                "the collector fills its replay buffer in the background: do not iterate over it",
                hint="sample from the replay buffer, or do not call start()",
            )

    def _collect_one(self) -> bool:
        if (batch := self._next_batch()) is None:
            return False
        self._iterations += 1
        self._deliver(batch, is_batched=self._is_batched)
        return True

    def _check(self) -> None:
        n, total = sum(self._source.envs), self._plan.total_frames
        if self._deliver.lanes and total > 0 and total % n:
            raise CollectError(f"total_frames={total}: expected a multiple of {n}, the lanes of the replay buffer")
        is_batched, size = self._pool.descriptions[0].is_batched, self._source.steps_per_batch
        if is_batched and self._deliver.takes_rows and self._plan.is_even and total > size and total % size:
            raise CollectError(
                f"total_frames={total}: expected a multiple of {size}, as the rows of the replay buffer are those of "
                f"whole batches (frames_per_batch rounded down to {size})",
                hint=f"give the storage ndim=2, which takes any multiple of {n}",
            )

    def _next_batch(self) -> TensorDictBase | None:
        """Return the next batch; none when all steps are done. What goes wrong ends the collector."""
        if not self._close.alive:
            raise CollectError("the collector is shut down")
        try:
            if self._plan.trajs_per_batch is not None:
                return self._whole_episodes(self._plan.trajs_per_batch)
            taken = self._source.take()
            batch = self._batch(taken) if taken else None
            self._source.ask_ahead()
        except BaseException:
            self.shutdown()
            raise
        return batch

    def _batch(self, taken: Sequence[QuotaSteps]) -> TensorDictBase:
        parts = [WorkerSteps(_cut(one.steps) if self._plan.is_cut else one.steps, one.ids) for one in taken]
        envs = taken[-1].quota.envs
        if envs < len(taken[-1].ids):  # the last steps of all, of one worker
            return self._masked(joined(parts, 0, is_batched=True)[:envs])
        return self._masked(joined(parts, self._plan.cat_results, is_batched=self._is_batched))

    def _masked(self, batch: TensorDictBase) -> TensorDictBase:
        if self._plan.preemptive_threshold is not None:
            batch[MASK] = batch["collector", "traj_ids"] != NO_TRAJECTORY
        return batch

    def _whole_episodes(self, count: int) -> TensorDictBase | None:
        while len(self._waiting) < count and (taken := self._source.take()):
            for quota, steps, _, is_start in taken:
                if is_start:
                    self._drop_running(quota.worker)
                ended = self._episodes[quota.worker].add(steps, quota.steps)
                self._waiting += [one for each in ended for one in each.each()]
                if ended:
                    self._pool.made_progress(quota.worker)
            self._source.ask_ahead()
        if len(self._waiting) < count:
            self._waiting += [episode for episodes in self._episodes for episode in episodes.cut()]
        ready, self._waiting = self._waiting[:count], self._waiting[count:]
        if not ready:
            return None
        first, self._next_episode = self._next_episode, self._next_episode + len(ready)
        batch = episodes_to_ted(ready, range(first, self._next_episode))
        return batch if self._plan.traj_format == "cat" else split_trajectories(batch)

    def _begin_anew(self, workers: Sequence[int]) -> None:
        """Have these workers begin new episodes, and drop their running ones; if it is all of them, also whole episodes
        that wait."""
        self._source.restart(workers)
        for worker in workers:
            self._drop_running(worker)
        if len(workers) == len(self._episodes):
            self._source.uncount(sum(episode.steps for episode in self._waiting))
            self._waiting = []

    def _drop_running(self, worker: int) -> None:
        self._source.uncount(self._episodes[worker].running_steps)
        self._episodes[worker] = Episodes(self._source.envs[worker])

    def _drop_episodes(self) -> None:
        self._episodes = [Episodes(n) for n in self._source.envs]
        self._waiting = []

    def _weights(self) -> Weights:
        packed = np.empty(0, np.uint8) if self._module is None or not self._has_copies else pack_weights(self._module)
        return Weights(self._version, packed)


def _cut(steps: Steps) -> Steps:
    """Return the steps with the last one of every environment flagged truncated, unless it ends its episode anyway."""
    envs, truncated = np.flatnonzero(steps.counts), steps.next["truncated"].copy()
    last = (envs, steps.counts[envs] - 1)
    truncated[last] |= ~steps.next["terminated"][last]
    return replace(steps, next={**steps.next, "truncated": truncated})


# Name of TorchRL before 0.13.
DataCollectorBase = BaseCollector
