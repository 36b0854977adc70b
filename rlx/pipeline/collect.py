"""``rlx collect``: from an environment and a policy into a dataset, exactly as much as was asked for."""

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rlx import manifest
from rlx.collector.environment.opening import EnvSource, is_open
from rlx.collector.environment.protocol import Environment
from rlx.collector.environment.space import schema_of
from rlx.collector.policy.spec import PolicySpec
from rlx.collector.rollout.infos import InfoKeys
from rlx.collector.rollout.layout import REWARDS, Layout, agreed
from rlx.collector.worker.shard_pool import CollectActor, Pot, Workers
from rlx.collector.worker.shard_worker import Assignment, Worker, opened
from rlx.engine.actor import Actors
from rlx.engine.inline_actors import InlineActors
from rlx.engine.local_actors import LocalActors
from rlx.engine.ray_actors import RayActors
from rlx.errors import CollectError, DatasetExistsError, DatasetNotFoundError, IncompleteDatasetError
from rlx.manifest import Manifest, ShardRecord
from rlx.pipeline.options import Options
from rlx.pipeline.report import Report
from rlx.progress import Progress
from rlx.store.dataset import Dataset
from rlx.store.dataset_writer import DatasetWriter, claimed, open_writer
from rlx.store.layout import shard_name
from rlx.store.writer import ShardFormat

logger = logging.getLogger(__name__)

_PACKAGES = ("rlx", "gymnasium", "ale-py", "envpool", "numpy", "torch")


@dataclass(frozen=True, slots=True)
class Budget:
    """The amount to collect: an exact number of steps, or of episodes."""

    steps: int | None = None
    episodes: int | None = None


@dataclass(frozen=True, slots=True)
class Collection:
    """The arguments of a collection.

    Args:
        environment: a gymnasium id, ``module:name`` or ``file.py:name`` of what makes an environment, or such a thing.
        budget: how much, all sessions together.
        num_envs: copies that each worker steps together.
        policy: what chooses the actions.
        seed: of environments and policy.
        shard_steps: a shard ends where its finished and running episodes have this many steps: at most this many are
            lost if the process is killed, or those of the running episodes if these alone are more.
        resume: whether to go on where the dataset has fewer.
        workers: processes, each with ``num_envs`` environments; one of this machine is this process.
        drop: names of what the policy writes that is not kept: ``logits``, ``next/value``, ``params`` and all below it.
        info_keys: entries of ``info`` that are kept, as ``info/KEY``, or "all" of the first steps.
        reward: dtype of rewards; if not given, float64 where float32 would change one of the first steps', else
            float32, and a later reward that does not fit is an error.
        is_sync: whether each worker collects an equal share, so that the seed decides all of it; or else as much as it
            can, so that none waits for a slower one.
        step_timeout: seconds that a step or a reset of an environment may take; then its worker, which has a process of
            its own, is killed and replaced. Without limit if not given.

    Raises:
        CollectError: a number that makes no sense.
    """

    environment: EnvSource = "ALE/Pong-v5"
    budget: Budget = Budget(steps=10_000)
    num_envs: int = 4
    policy: PolicySpec = PolicySpec()  # noqa: RUF009  (it is frozen)
    seed: int = 0
    shard_steps: int = 100_000
    resume: bool = False
    workers: int = 1
    is_sync: bool = True
    drop: Sequence[str] = ()
    info_keys: InfoKeys = ()
    reward: str | None = None
    step_timeout: float | None = None

    def __post_init__(self) -> None:
        if (self.budget.steps is None) == (self.budget.episodes is None):
            raise CollectError("expected a number of steps or of episodes, and not both")
        numbers = {"steps": self.budget.steps, "episodes": self.budget.episodes}
        numbers |= {"envs": self.num_envs, "workers": self.workers}
        for name, number in {**numbers, "shard steps": self.shard_steps}.items():
            if number is not None and number < 1:
                raise CollectError(f"{name} {number}: expected at least 1")
        if self.seed < 0:
            raise CollectError(f"seed {self.seed}: expected 0 or more")
        if self.step_timeout is not None and self.step_timeout <= 0:
            raise CollectError(f"step timeout {self.step_timeout:g}: expected more than 0 seconds")
        if self.reward not in (None, *REWARDS):
            raise CollectError(f"rewards of dtype {self.reward!r}: expected {' or '.join(REWARDS)}")


def collect(collection: Collection, destination: Path, options: Options, progress: Progress) -> Report:
    """Collect into a dataset, new or resumed.

    Where the environment or the policy fails, or Ctrl-C is pressed, the episodes that have ended are kept.

    Args:
        collection: what.
        destination: the dataset's directory.
        options: how to write it.
        progress: receives ``steps`` or ``episodes``.

    Raises:
        CollectError: the environment or the policy cannot be had, fails, or one does not fit the other.
        WorkerLostError: a worker died three times without finishing a shard.
        MissingExtraError: what the environment needs is not installed.
        DatasetExistsError: the destination holds another dataset; or ``resume`` is not set and it holds one that the
            same command has not finished.
        DiskFullError: no space is left; finished shards are kept.
        EngineError: no Ray cluster answers.
    """
    started = time.monotonic()
    if not (collection.resume or options.overwrite) and (destination / manifest.FILE_NAME).exists():
        finished = _finished(destination, options.command)
        return Report.of(destination, finished, time.monotonic() - started, 0, skipped_shards=len(finished.shards))
    environment = opened(collection.environment, collection.num_envs)
    try:
        with claimed(destination):
            described = _as_listed(_described(collection, environment, options), destination, options)
            writer = open_writer(destination, described, overwrite=options.overwrite)
            shards, steps = len(writer.manifest.shards), writer.manifest.steps
            with _actors(collection, options) as actors:
                is_here = isinstance(actors, InlineActors)
                if not is_here and not is_open(collection.environment):
                    environment.close()  # what a step holds is known, and every worker has its own
                make = partial(Worker, environment=environment) if is_here else Worker
                _Run(collection, writer, partial(actors.start, make), progress, options.command).run()
    finally:
        environment.close()
    seconds = time.monotonic() - started
    return Report.of(destination, writer.manifest, seconds, writer.manifest.steps - steps, skipped_shards=shards)


def _actors(collection: Collection, options: Options) -> Actors:
    """Return where the workers are: a single one without a step timeout is this process."""
    if options.engine == "ray":
        if collection.step_timeout is not None:
            raise CollectError("step timeout: expected workers of this machine (engine local), found engine ray")
        return RayActors(options.ray_address, cpus=collection.workers)
    if collection.workers == 1 and collection.step_timeout is None:
        return InlineActors()
    return LocalActors(collection.step_timeout)


def _finished(destination: Path, command: str) -> Manifest:
    """Return the manifest of a dataset that the same command has finished.

    Raises:
        DatasetExistsError: it is another dataset, or not finished.
    """
    listed = Manifest.load(destination)
    if command and not listed.missing and [made.get("command") for made in listed.lineage] == [command]:
        return listed
    raise DatasetExistsError(
        f"{destination} holds a dataset",
        hint="--resume collects what is missing, --overwrite starts afresh, -o chooses another directory",
    )


def _described(collection: Collection, environment: Environment, options: Options) -> Manifest:
    notes = {
        "environment": environment.name,
        **({"environment_settings": dict(environment.settings)} if environment.settings else {}),
        **({"environment_spec": dict(environment.spec)} if environment.spec else {}),
        "policy": collection.policy.text,
        **({"epsilon": collection.policy.epsilon} if collection.policy.epsilon else {}),
        **({"exploration": "deterministic"} if collection.policy.deterministic else {}),
        "envs": environment.num_envs,
        **({"workers": collection.workers} if collection.workers > 1 else {}),
        "rewards": "raw" if collection.reward != "float32" else "as float32",
    }
    schema = schema_of(environment.observation_space, environment.action_space)
    codec = options.effective_codec.to_json()
    return Manifest(environment.name, options.store, codec, schema, notes=notes)


def _as_listed(described: Manifest, destination: Path, options: Options) -> Manifest:
    """Return the collection with the dataset's schema, if its environment is the same: the policy's fields come
    later."""
    try:
        listed = Manifest.load(destination).schema
    except (DatasetNotFoundError, IncompleteDatasetError):
        return described
    fields = {name: field for name, field in described.schema.fields.items() if name != "reward"}
    is_same = not options.overwrite and all(name in listed and listed[name] == fields[name] for name in fields)
    return replace(described, schema=listed) if is_same else described


class _Run:
    """The collection from the listed shards up to the budget.

    Args:
        collection: what.
        writer: lists the shards.
        start: starts a worker.
        progress: receives ``steps`` or ``episodes``.
        command: what the user typed.
    """

    def __init__(
        self,
        collection: Collection,
        writer: DatasetWriter,
        start: Callable[[Assignment], CollectActor],
        progress: Progress,
        command: str,
    ) -> None:
        listed = writer.manifest
        self._collection = collection
        self._writer = writer
        self._start = start
        self._progress = progress
        self._format: ShardFormat | None = None
        self._next_session = 1 + max((int(shard.origin.get("session", 0)) for shard in listed.shards), default=-1)
        self._sessions: dict[int, int] = {}
        self._listed_of = Counter[int]()
        self._first_shard = 1 + max((int(shard.name) for shard in listed.shards), default=-1)
        self._first_episode = _next_episode(writer) if listed.steps else 0
        self._made = {
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
            self._writer.manifest = replace(listed, lineage=[*listed.lineage, self._made])
            Workers(self, self._pots(left), self._collection.num_envs).collect()
        self._save_as_complete()

    def start(self, worker: int, episodes: int) -> CollectActor:
        """Start a worker. Those that are started together share a session; a replacement has its own."""
        if worker in self._sessions:
            self._next_session = 1 + max(self._sessions.values())
        self._sessions[worker] = self._next_session
        here = self._collection
        assignment = Assignment(
            environment=here.environment,
            num_envs=here.num_envs,
            policy=here.policy,
            seed=here.seed,
            session=self._next_session,
            worker=worker,
            episodes=(self._first_episode + worker + episodes * here.workers, here.workers),
            dataset=self._writer.path.absolute(),
            writer=os.getpid(),
            format=self._format,
            shard_steps=here.shard_steps,
            drop=here.drop,
            info_keys=here.info_keys,
            rounds=here.reward == "float32",
        )
        return self._start(assignment)

    def decide(self, layouts: Sequence[Layout]) -> ShardFormat:
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
                hint="--overwrite starts afresh; or choose another directory",
            )
        self._writer.manifest = found
        self._format = self._writer.format()
        if left := [key for key in layout.infos if f"info/{key}" not in layout.schema]:
            kept = [key for key in left if layout.infos[key]]
            logger.warning("%s", _left_out(kept, [key for key in left if key not in kept]))
        return self._format

    def shard(self, worker: int, number: int) -> str:
        """Return name of a worker's shard: the same whichever worker is faster."""
        return shard_name(self._first_shard + number * self._collection.workers + worker)

    def commit(self, worker: int, record: ShardRecord) -> None:
        """List a shard. Those that may be begun by then are planned: so it shows if the run is interrupted."""
        self._listed_of[worker] += 1
        begun = {self.shard(number, self._listed_of[number]) for number in range(self._collection.workers)}
        listed = {*self._writer.manifest.listed, record.name}
        self._writer.manifest = replace(self._writer.manifest, planned=sorted(listed | begun))
        origin = {
            "environment": self._writer.manifest.id,
            "policy": self._collection.policy.text,
            "seed": self._collection.seed,
            "session": self._sessions[worker],
            "worker": worker,
        }
        self._writer.commit(record, origin=origin, dropped={})

    def advance(self, steps: int, episodes: int) -> None:
        """Tell the progress."""
        if self._collection.budget.episodes is None:
            self._progress.advance("steps", steps)
        else:
            self._progress.advance("episodes", episodes)

    def _pots(self, left: int) -> list[Pot]:
        """Return the budget of each worker: an equal share, or one budget that all of them share."""

        def pot(amount: int) -> Pot:
            return Pot(amount) if self._collection.budget.episodes is None else Pot(episodes=amount)

        count = self._collection.workers
        if not self._collection.is_sync:
            return [pot(left)] * count
        return [pot(left // count + (worker < left % count)) for worker in range(count)]

    def _save_as_complete(self) -> None:
        listed = self._writer.manifest
        if listed.missing:
            self._writer.manifest = replace(listed, planned=[shard.name for shard in listed.shards])
            self._writer.save()


def _left_out(numbers: Sequence[str], others: Sequence[str]) -> str:
    """Return which entries of ``info`` are not kept."""
    said = [f"info that is not kept: {', '.join(numbers)}; --info all or --info KEY,... keeps it"] if numbers else []
    if others:
        said.append(f"info that cannot be kept, being neither numbers nor texts: {', '.join(others)}")
    return "; ".join(said)


def _next_episode(writer: DatasetWriter) -> int:
    return 1 + int(Dataset(writer.path, partial=True).trajectories.episode.max())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
