"""``rlx collect``: from an environment and a policy into a dataset, exactly as much as was asked for."""

import time
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rlx import manifest
from rlx.collector.environment import Environment
from rlx.collector.opening import EnvSource, open_environment
from rlx.collector.policy_file import PolicySpec, load_object
from rlx.collector.session import Budget, Session
from rlx.collector.space import schema_of
from rlx.errors import CollectError, DatasetExistsError
from rlx.manifest import Manifest
from rlx.pipeline.options import Options
from rlx.pipeline.report import Report
from rlx.pipeline.shard_thread import ShardThread
from rlx.progress import Progress
from rlx.store.dataset_writer import DatasetWriter, claimed, open_writer
from rlx.store.layout import shard_name

_PACKAGES = ("rlx", "gymnasium", "ale-py", "numpy")


@dataclass(frozen=True, slots=True)
class Collection:
    """What is to be collected.

    Args:
        environment: a gymnasium id, ``module:name`` or ``file.py:name`` of what makes an environment, or such a thing.
        budget: how much, all sessions together.
        num_envs: copies that are stepped together.
        policy: what chooses the actions.
        seed: of environments and policy.
        shard_steps: a shard ends where its episodes and those that run have so many steps: as many may be lost if the
            process is killed, or those that run if they alone are more.
        resume: whether to go on where the dataset has fewer.

    Raises:
        CollectError: a number that makes no sense.
    """

    environment: EnvSource = "ALE/Pong-v5"
    budget: Budget = Budget(steps=10_000)  # noqa: RUF009  (it is frozen)
    num_envs: int = 4
    policy: PolicySpec = PolicySpec()  # noqa: RUF009  (it is frozen)
    seed: int = 0
    shard_steps: int = 100_000
    resume: bool = False

    def __post_init__(self) -> None:
        if (self.budget.steps is None) == (self.budget.episodes is None):
            raise CollectError("expected a number of steps or of episodes, and not both")
        numbers = {"steps": self.budget.steps, "episodes": self.budget.episodes, "envs": self.num_envs}
        for name, number in {**numbers, "shard steps": self.shard_steps}.items():
            if number is not None and number < 1:
                raise CollectError(f"{name} {number}: expected at least 1")
        if self.seed < 0:
            raise CollectError(f"seed {self.seed}: expected 0 or more")


def collect(collection: Collection, destination: Path, options: Options, progress: Progress) -> Report:
    """Collects into a dataset, new or resumed.

    Where the environment or the policy fails, or Ctrl-C is pressed, the episodes that have ended are kept.

    Args:
        collection: what.
        destination: the dataset's directory.
        options: how to write it.
        progress: is told of ``steps`` or ``episodes``.

    Raises:
        CollectError: the environment or the policy cannot be had, fails, or one does not fit the other.
        MissingExtraError: what the environment needs is not installed.
        DatasetExistsError: the destination holds a dataset and ``resume`` is not set, or another dataset.
        DiskFullError: there is no room for more; finished shards are kept.
    """
    started = time.monotonic()
    _refuse_existing(destination, resume=collection.resume or options.overwrite)
    environment = _opened(collection)
    try:
        with claimed(destination):
            described = _described(collection, environment, options)
            writer = open_writer(destination, described, overwrite=options.overwrite)
            before = (len(writer.manifest.shards), writer.manifest.steps)
            _Run(collection, environment, writer, progress, options.command).run()
    finally:
        environment.close()
    shards, steps = before
    seconds = time.monotonic() - started
    return Report.of(destination, writer.manifest, seconds, writer.manifest.steps - steps, skipped_shards=shards)


def _refuse_existing(destination: Path, *, resume: bool) -> None:
    if not resume and (destination / manifest.FILE_NAME).exists():
        raise DatasetExistsError(
            f"{destination} holds a dataset",
            hint="--resume goes on with it, --overwrite starts afresh, -o chooses another directory",
        )


def _opened(collection: Collection) -> Environment:
    source = collection.environment
    if isinstance(source, str) and ":" in source:
        source = load_object(source)
    return open_environment(source, collection.num_envs)


def _described(collection: Collection, environment: Environment, options: Options) -> Manifest:
    notes = {
        "environment": environment.name,
        **({"environment_settings": dict(environment.settings)} if environment.settings else {}),
        "policy": collection.policy.text,
        **({"epsilon": collection.policy.epsilon} if collection.policy.epsilon else {}),
        "envs": environment.num_envs,
        "rewards": "raw",
    }
    schema = schema_of(environment.observation_space, environment.action_space)
    codec = options.effective_codec.to_json()
    return Manifest(environment.name, options.store, codec, schema, notes=notes)


class _Run:
    """One session, from what is listed to what was asked for."""

    def __init__(
        self,
        collection: Collection,
        environment: Environment,
        writer: DatasetWriter,
        progress: Progress,
        command: str,
    ) -> None:
        listed = writer.manifest
        self._collection = collection
        self._writer = writer
        self._progress = progress
        self._number = 1 + max((int(shard.origin.get("session", 0)) for shard in listed.shards), default=-1)
        self._unit = "steps" if collection.budget.steps is not None else "episodes"
        self._environment = environment
        self._origin = {
            "environment": environment.name,
            "policy": collection.policy.text,
            "seed": collection.seed,
            "session": self._number,
        }
        self._made = {
            "command": command,
            "parents": [],
            "seed": collection.seed,
            "session": self._number,
            **{name: found for name in _PACKAGES if (found := _version(name)) is not None},
        }
        self._shard_steps = 0

    def run(self) -> None:
        """Collects what is missing."""
        left = self._left()
        self._progress.expect(self._unit, max(left.steps or 0, left.episodes or 0))
        if left.steps == 0 or left.episodes == 0:
            self._save_as_complete()
            return
        self._writer.manifest = replace(self._writer.manifest, lineage=[*self._writer.manifest.lineage, self._made])
        trajectories, policy = self._writer.manifest.trajectories, self._collection.policy
        session = Session(self._environment, policy, self._collection.seed, self._number, trajectories)
        with ShardThread(self._writer) as shards:
            try:
                self._collect(session, left, shards)
            except (CollectError, KeyboardInterrupt):
                self._commit(shards, is_last=False)
                raise
            self._commit(shards, is_last=True)
        self._save_as_complete()

    def _left(self) -> Budget:
        budget, listed = self._collection.budget, self._writer.manifest
        if budget.steps is not None:
            return Budget(steps=max(0, budget.steps - listed.steps))
        return Budget(episodes=max(0, (budget.episodes or 0) - listed.trajectories))

    def _collect(self, session: Session, left: Budget, shards: ShardThread) -> None:
        for block in session.blocks(left):
            if block is not None:
                shards.append(self._name(), block)
                self._shard_steps += block.steps
                done = block.steps if self._unit == "steps" else len(block.lengths)
                self._progress.advance(self._unit, done)
            if self._shard_steps and self._shard_steps + session.running_steps >= self._collection.shard_steps:
                self._commit(shards, is_last=False)

    def _name(self) -> str:
        return shard_name(len(self._writer.manifest.shards))

    def _commit(self, shards: ShardThread, *, is_last: bool) -> None:
        if not shards.is_open:
            return
        record = shards.finish()
        count = len(self._writer.manifest.shards) + 1
        # One more is planned while there is more to come: so it shows if the run is interrupted.
        planned = [shard_name(number) for number in range(count + (not is_last))]
        self._writer.manifest = replace(self._writer.manifest, planned=planned)
        self._writer.commit(record, origin=self._origin, dropped={})
        self._shard_steps = 0

    def _save_as_complete(self) -> None:
        listed = self._writer.manifest
        if listed.missing:
            self._writer.manifest = replace(listed, planned=[shard.name for shard in listed.shards])
            self._writer.save()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
