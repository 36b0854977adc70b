"""Collector that writes an exact number of steps or episodes of an environment into a dataset."""

import logging
import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

from rlx.collector.environment.intake import Remarks
from rlx.collector.rollout.episodes import StepLayout, agreed
from rlx.collector.worker.pool import RemainingBudget, ShardActor, ShardPool
from rlx.collector.worker.shard_worker import CAREFUL_STEPS, CHUNK_STEPS, Collection, ShardWorkerConfig
from rlx.errors import DatasetExistsError
from rlx.manifest import ShardRecord
from rlx.progress import Progress
from rlx.store.dataset import Dataset
from rlx.store.dataset_writer import DatasetWriter, shard_of
from rlx.store.layout import shard_name
from rlx.store.writer import ShardFormat

logger = logging.getLogger(__name__)

_PACKAGES = ("rlx", "gymnasium", "ale-py", "envpool", "numpy", "torch")


class DatasetCollector:
    """Collector that writes: adds the missing steps or episodes of a collection to a dataset.

    Args:
        start: starts a worker's process, in which a ``ShardWorker`` of the collection is made.
        progress: receives ``steps`` or ``episodes``.
        journals: whether finished episodes are kept in journals until their shard is listed; workers of this process
            need none.

    Attributes:
        remarks: those on what the environments of all workers gave.
    """

    def __init__(
        self,
        collection: Collection,
        writer: DatasetWriter,
        start: Callable[[], ShardActor],
        progress: Progress,
        command: str,
        *,
        journals: bool = True,
    ) -> None:
        listed = writer.manifest
        self._collection = collection
        self._writer = writer
        self._start = start
        self._progress = progress
        self._format: ShardFormat | None = None
        self.remarks = Remarks()
        self._next_session = 1 + max((int(shard.origin.get("session", 0)) for shard in listed.shards), default=-1)
        self._sessions: dict[int, int] = {}
        self._listed_of = Counter[int]()
        self._journals = writer.partial("journals").absolute() if journals else None
        self._first_shard, self._first_episode = next_numbers(writer)
        self._lineage_entry = {
            "command": command,
            "parents": [],
            "seed": collection.seed,
            "session": self._next_session,
            **{name: found for name in _PACKAGES if (found := _version(name)) is not None},
        }

    def run(self) -> None:
        """Collect the missing steps or episodes."""
        budget, listed = self._collection.budget, self._writer.manifest
        wanted, there = (
            (budget.steps, listed.steps) if budget.episodes is None else (budget.episodes, listed.trajectories)
        )
        left = max(0, (wanted or 0) - there)
        self._progress.expect("steps" if budget.episodes is None else "episodes", left)
        if left:
            self._writer.manifest = replace(listed, lineage=[*listed.lineage, self._lineage_entry])
            try:
                ShardPool(self, self._budgets(left), self._collection.num_envs).collect()
            finally:
                self._writer.flush()
                if self._journals is not None:
                    shutil.rmtree(self._journals, ignore_errors=True)
        self._save_as_complete()

    def start(self, worker: int) -> ShardActor:  # noqa: ARG002  (all are alike)
        """Start the process of a worker."""
        return self._start()

    def config(self, worker: int, episodes: int) -> ShardWorkerConfig:
        """Return how a worker begins. Those that begin together share a session; a replacement has its own."""
        is_replacement = worker in self._sessions
        if is_replacement:
            self._next_session = 1 + max(self._sessions.values())
        self._sessions[worker] = self._next_session
        return ShardWorkerConfig(
            self._next_session,
            worker,
            (self._first_episode + worker + episodes * self._collection.workers, self._collection.workers),
            self._writer.path.absolute(),
            os.getpid(),
            self._format,
            self._journals,
            CAREFUL_STEPS if is_replacement else CHUNK_STEPS,
        )

    def recover(self, worker: int, name: str) -> ShardRecord | None:  # noqa: ARG002  (the name is its own)
        """Write the shard that a dead worker had begun, of its finished episodes; None if it had none."""
        if self._journals is None or self._format is None or not (journal := self._journals / name).exists():
            return None
        return shard_of(journal, self._writer, self._format)

    def decide(self, layouts: Sequence[StepLayout]) -> ShardFormat:
        """Return how shards of steps like these are written."""
        here, listed = self._collection, self._writer.manifest
        reward = here.reward
        if listed.shards and reward is None:
            reward = listed.schema["reward"].dtype
        layout = agreed(layouts, reward)
        found = replace(listed, schema=layout.schema)
        if listed.shards and (different := listed.difference(found)):
            raise DatasetExistsError(
                f"{self._writer.path} holds another dataset: {different}",
                hint="`overwrite` starts afresh; or choose another directory",
            )
        self._writer.manifest = found
        self._format = self._writer.format()
        if left := [key for key in layout.infos if f"info/{key}" not in layout.schema]:
            kept = [key for key in left if layout.infos[key]]
            logger.warning("%s", left_out(kept, [key for key in left if key not in kept]))
        if here.info_keys != "all" and (absent := [key for key in here.info_keys if key not in layout.infos]):
            logger.warning("info that the first steps lack: %s; stored as NaN until it appears", ", ".join(absent))
        return self._format

    def shard(self, worker: int, number: int) -> str:
        """Return name of a worker's shard: the same whichever worker is faster."""
        return shard_name(self._first_shard + number * self._collection.workers + worker)

    def commit(self, worker: int, record: ShardRecord) -> None:
        """List a shard, and plan those that may have begun, so that an interruption shows."""
        self._listed_of[worker] += 1
        begun = {self.shard(number, self._listed_of[number]) for number in range(self._collection.workers)}
        listed = {*self._writer.manifest.listed, *self._writer.waiting, record.name}
        self._writer.manifest = replace(self._writer.manifest, planned=sorted(listed | begun))
        origin = {
            "environment": self._writer.manifest.id,
            "policy": self._collection.policy.text,
            "seed": self._collection.seed,
            "session": self._sessions[worker],
            "worker": worker,
        }
        self._writer.add(record, origin=origin, dropped={})
        if self._journals is not None:
            (self._journals / record.name).unlink(missing_ok=True)
        if not self._writer.due_s:
            self._writer.flush()

    def remark(self, remarks: Mapping[str, int]) -> None:
        """Add remarks on what environments gave, with their numbers of steps."""
        self.remarks.add(remarks)

    def advance(self, steps: int, episodes: int) -> None:
        """Report progress."""
        if self._collection.budget.episodes is None:
            self._progress.advance("steps", steps)
        else:
            self._progress.advance("episodes", episodes)

    def _budgets(self, left: int) -> list[RemainingBudget]:
        """Return the budget of each worker: an equal share, or one budget that all of them share."""

        def budget(amount: int) -> RemainingBudget:
            if self._collection.budget.episodes is None:
                return RemainingBudget(amount)
            return RemainingBudget(episodes=amount)

        count = self._collection.workers
        if not self._collection.is_sync:
            return [budget(left)] * count
        return [budget(left // count + (worker < left % count)) for worker in range(count)]

    def _save_as_complete(self) -> None:
        listed = self._writer.manifest
        if listed.missing:
            self._writer.manifest = replace(listed, planned=[shard.name for shard in listed.shards])
            self._writer.save()


def left_out(numbers: Sequence[str], others: Sequence[str]) -> str:
    """Return a message about entries of ``info`` that are not kept: those that could be, and the others."""
    said = [f"info that is not kept: {', '.join(numbers)}; `info` all or `info` KEY,... keeps it"] if numbers else []
    if others:
        expected = "expected texts as keys, and numbers or texts as values"
        said.append(f"info that cannot be kept ({expected}): {', '.join(others)}")
    return "; ".join(said)


def next_numbers(writer: DatasetWriter) -> tuple[int, int]:
    """Return the numbers of the shard and of the episode that come after those of a dataset."""
    listed = writer.manifest
    shard = 1 + max((int(shard.name) for shard in listed.shards), default=-1)
    return shard, 1 + int(Dataset(writer.path, partial=True).trajectories.episode.max()) if listed.steps else 0


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
