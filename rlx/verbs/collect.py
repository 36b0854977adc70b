"""``rlx collect``: from an environment and a policy into a dataset, new or resumed."""

import pickle
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from rlx import manifest
from rlx.collector.dataset_collector import DatasetCollector
from rlx.collector.environment.gym_env import is_open
from rlx.collector.worker.pool import ShardActor
from rlx.collector.worker.shard_worker import Collection, Describe, EnvironmentDescription, ShardWorker, opened
from rlx.engine.actor import ActorDiedError, Actors
from rlx.engine.local_actors import InlineActors, LocalActors
from rlx.engine.ray_actors import RayActors
from rlx.errors import CollectError, DatasetExistsError, WorkerLostError
from rlx.files.disk import is_there
from rlx.manifest import Manifest
from rlx.progress import Progress
from rlx.store.dataset_writer import claimed, open_writer
from rlx.verbs.options import Options
from rlx.verbs.report import Report, manifest_at


def collect(collection: Collection, destination: Path, options: Options, progress: Progress) -> Report:
    """Collect into a dataset, new or resumed.

    Where the environment or the policy fails, or Ctrl-C is pressed, the episodes that have ended are kept.

    Raises what ``rlx.collect`` does.
    """
    started = time.monotonic()
    if not (collection.resume or options.overwrite) and is_there(destination / manifest.FILE_NAME):
        finished = _finished(destination, options.command)
        return Report.of(destination, finished, time.monotonic() - started, 0, skipped_shards=len(finished.shards))
    place = destination.absolute()  # wherever an environment of this process changes to
    actors = _actors(collection, options)
    with ExitStack() as running, _closing_given(collection, actors):
        running.enter_context(actors)
        first = [_started(actors, collection)]
        described = _described(collection, _environment_of(first[0], collection), options)
        with claimed(place, overwrite=options.overwrite) as claim:
            writer = open_writer(claim.place, _as_listed(described, claim.place))
            shards, steps = len(writer.manifest.shards), writer.manifest.steps
            with running.pop_all():  # the actors end before the claim does
                collector = DatasetCollector(
                    *(collection, writer, lambda: first.pop() if first else _started(actors, collection), progress),
                    options.command,
                    journals=not isinstance(actors, InlineActors),
                )
                collector.run()
            claim.finish()
    seconds = time.monotonic() - started
    written, remarks = writer.manifest.steps - steps, collector.remarks.counts
    return Report.of(destination, writer.manifest, seconds, written, skipped_shards=shards, remarks=remarks)


def _actors(collection: Collection, options: Options) -> Actors:
    """Return where the workers are: in processes of their own, so that nothing that an environment does ends this one.

    A single one without a step timeout is in this process if its environment or policy is an object, not a name.
    """
    if options.engine == "ray":
        if collection.step_timeout is not None:
            raise CollectError("step timeout: expected workers of this machine (engine local), found engine ray")
        return RayActors(options.ray_address, cpus=collection.workers)
    is_named = isinstance(collection.environment, str) and collection.policy.function is None
    if collection.workers == 1 and collection.step_timeout is None and not is_named:
        return InlineActors()
    return LocalActors(collection.step_timeout)


@contextmanager
def _closing_given(collection: Collection, actors: Actors) -> Iterator[None]:
    """Close an environment that was given open, of which workers in other processes have copies."""
    try:
        yield
    finally:
        if is_open(collection.environment) and not isinstance(actors, InlineActors):
            opened(collection).close()


def _started(actors: Actors, collection: Collection) -> ShardActor:
    try:
        return actors.start(ShardWorker, collection)
    except (pickle.PicklingError, TypeError, AttributeError) as exc:
        raise CollectError(
            f"environment {collection.environment!r} or its policy cannot be sent to a worker: {exc}",
            hint="give a function that makes the environment",
        ) from exc


def _environment_of(actor: ShardActor, collection: Collection) -> EnvironmentDescription:
    try:
        described: EnvironmentDescription = actor.call(Describe()).result()
    except ActorDiedError as death:
        raise WorkerLostError(
            f"environment {collection.environment} could not be made: {death}", hint="it ends its process, or hangs"
        ) from death
    return described


def _finished(destination: Path, command: str) -> Manifest:
    """Return the manifest of a dataset that the same command has finished."""
    listed = Manifest.load(destination)
    if command and not listed.missing and [made.get("command") for made in listed.lineage] == [command]:
        return listed
    raise DatasetExistsError(
        f"{destination} holds a dataset",
        hint="`resume` collects what is missing, `overwrite` starts afresh, `output` chooses another directory",
    )


def _described(collection: Collection, environment: EnvironmentDescription, options: Options) -> Manifest:
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
    codec = options.effective_codec.to_json()
    return Manifest(environment.name, options.store, codec, environment.schema, notes=notes)


def _as_listed(described: Manifest, place: Path) -> Manifest:
    """Return the description with the schema of the dataset that is resumed, if it has the environment's fields.

    The policy's fields are only known later.
    """
    if (there := manifest_at(place)) is None:
        return described
    listed = there.schema
    fields = {name: field for name, field in described.schema.fields.items() if name != "reward"}
    is_same = all(name in listed and listed[name] == fields[name] for name in fields)
    return replace(described, schema=listed) if is_same else described
