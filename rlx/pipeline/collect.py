"""``rlx collect``: from an environment and a policy into a dataset, new or resumed."""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from rlx import manifest
from rlx.collector.dataset_collector import DatasetCollector
from rlx.collector.environment.gym_env import is_open
from rlx.collector.environment.space import schema_of
from rlx.collector.environment.vector import VectorEnvironment
from rlx.collector.worker.shard_worker import Collection, ShardWorker, opened
from rlx.engine.actor import Actors
from rlx.engine.local_actors import InlineActors, LocalActors
from rlx.engine.ray_actors import RayActors
from rlx.errors import CollectError, DatasetExistsError
from rlx.files.disk import is_there
from rlx.manifest import Manifest
from rlx.pipeline.options import Options
from rlx.pipeline.report import Report, manifest_at
from rlx.progress import Progress
from rlx.store.dataset_writer import claimed, open_writer


def collect(collection: Collection, destination: Path, options: Options, progress: Progress) -> Report:
    """Collect into a dataset, new or resumed.

    Where the environment or the policy fails, or Ctrl-C is pressed, the episodes that have ended are kept.

    Raises what ``rlx.collect`` does.
    """
    started = time.monotonic()
    if not (collection.resume or options.overwrite) and is_there(destination / manifest.FILE_NAME):
        finished = _finished(destination, options.command)
        return Report.of(destination, finished, time.monotonic() - started, 0, skipped_shards=len(finished.shards))
    environment = opened(collection)
    try:
        with claimed(destination, overwrite=options.overwrite) as claim:
            described = _as_listed(_described(collection, environment, options), claim.place)
            writer = open_writer(claim.place, described)
            shards, steps = len(writer.manifest.shards), writer.manifest.steps
            with _actors(collection, options) as actors:
                is_here = isinstance(actors, InlineActors)
                if not is_here and not is_open(collection.environment):
                    environment.close()  # what a step holds is known, and every worker has its own
                make = partial(ShardWorker, environment=environment) if is_here else ShardWorker
                start = partial(actors.start, make)
                collector = DatasetCollector(collection, writer, start, progress, options.command)
                collector.run()
            claim.finish()
    finally:
        environment.close()
    seconds = time.monotonic() - started
    written, remarks = writer.manifest.steps - steps, collector.remarks.counts
    return Report.of(destination, writer.manifest, seconds, written, skipped_shards=shards, remarks=remarks)


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
    """Return the manifest of a dataset that the same command has finished."""
    listed = Manifest.load(destination)
    if command and not listed.missing and [made.get("command") for made in listed.lineage] == [command]:
        return listed
    raise DatasetExistsError(
        f"{destination} holds a dataset",
        hint="`resume` collects what is missing, `overwrite` starts afresh, `output` chooses another directory",
    )


def _described(collection: Collection, environment: VectorEnvironment, options: Options) -> Manifest:
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
