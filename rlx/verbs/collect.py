"""``rlx.collect``: steps of an environment into a dataset, new or resumed."""

import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rlx.errors import CollectError, DatasetExistsError, OptionError, WorkerLostError
from rlx.files.urls import check_path
from rlx.progress import Progress, receiver
from rlx.store.codec import Codec
from rlx.verbs.arguments import Autoreset, Options, RewardDtype, StoreName, StrPath, check_exclusive, chosen_codec
from rlx.verbs.options import (
    CODEC,
    STORE,
    Argument,
    EngineOption,
    Option,
    OverwriteOption,
    RayAddressOption,
    check,
    recorded,
)
from rlx.wording import words_of

if TYPE_CHECKING:
    from rlx.collector.environment.gym_env import EnvSource
    from rlx.collector.worker.pool import ShardActor
    from rlx.collector.worker.shard_worker import Collection, EnvironmentDescription
    from rlx.engine.actor import Actors
    from rlx.manifest import Manifest
    from rlx.verbs.report import Report

_DEFAULT_STEPS = 10_000


def collect(
    env: Annotated[
        "EnvSource", Argument("Gymnasium id, or module:name or file.py:name of an environment factory.", metavar="ENV")
    ] = "ALE/Pong-v5",
    *,
    output: Annotated[
        StrPath | None, Option("Dataset directory.", metavar="DIR", short="-o", default="$RLX_HOME/ENV", recorded=False)
    ] = None,
    envs: Annotated[int, Option("Environments per worker.", least=1, most=2**16, recorded="always")] = 4,
    workers: Annotated[int, Option("Worker processes.", least=1, most=2**12)] = 1,
    sync: Annotated[
        bool, Option("Equal shares per worker, reproducible from the seed; or work on demand.", off="async")
    ] = True,
    steps: Annotated[int | None, Option("Exact number of steps.", least=1, default="10,000")] = None,
    episodes: Annotated[int | None, Option("Number of whole episodes, instead of --steps.", least=1)] = None,
    policy: Annotated[
        str | Callable[..., Any],
        Option(
            "Policy: random, module:name, file.py:name, file.pt2, or file.pt:module:factory.",
            metavar="POLICY",
            recorded="always",
        ),
    ] = "random",
    epsilon: Annotated[float, Option("Probability of a random action.", metavar="P", least=0, most=1)] = 0.0,
    deterministic: Annotated[bool, Option("Mode of the policy's distribution instead of a sample.")] = False,
    drop: Annotated[
        str | Sequence[str] | None, Option("Policy outputs to drop, such as logits,next/value.", metavar="KEY,...")
    ] = None,
    info: Annotated[
        str | Sequence[str] | None, Option("Info entries to keep, as next/info/KEY.", metavar="KEY,...|all")
    ] = None,
    autoreset: Annotated[
        Autoreset | None,
        Option("Autoreset mode of a vector environment that declares none.", default="as it declares"),
    ] = None,
    reward_dtype: Annotated[
        RewardDtype | None,
        Option("Reward dtype; float32 rounds.", default="float32, or float64 if float32 would change a reward"),
    ] = None,
    seed: Annotated[int, Option("Random seed.", least=0, recorded="always")] = 0,
    shard_steps: Annotated[int, Option("Steps per shard; at most this many are lost in a crash.", least=1)] = 100_000,
    step_timeout: Annotated[
        float | None,
        Option(
            "Time limit of make, reset, step and close; a worker that exceeds it is replaced.",
            metavar="SECONDS",
            least=0.001,
            default="no limit",
        ),
    ] = None,
    store: Annotated[StoreName, replace(STORE, recorded=False)] = "zarr",
    codec: Annotated[str | Codec | None, replace(CODEC, recorded=False)] = None,
    engine: EngineOption = "local",
    ray_address: RayAddressOption = None,
    resume: Annotated[
        bool,
        Option("Resume until --steps or --episodes is reached, with fresh seeds.", recorded=False),
    ] = False,
    overwrite: OverwriteOption = False,
    progress: Progress | None = None,
) -> "Report":
    """Collect steps of an environment into a dataset.

    Keeps all policy outputs, such as log-probs and hidden states. Atari games use the preprocessing of the DQN Replay
    Dataset. Episodes that the number of steps cuts are flagged truncated. Ctrl-C keeps the episodes that have ended.

    Args:
        env: Gymnasium id, or ``module:name`` or ``file.py:name`` of an environment factory, or such a function.
        output: the dataset's directory; below ``$RLX_HOME`` by default, with the environment's id as its name.
        envs: environments per worker.
        workers: worker processes.
        sync: equal shares per worker, reproducible from the seed; otherwise workers take work on demand.
        steps: exact number of steps; 10,000 by default.
        episodes: number of whole episodes, instead of steps.
        policy: ``random``, ``module:name``, ``file.py:name``, ``file.pt2`` or ``file.pt:module:factory``, or a function
            of observations [envs, ...], or a torch module.
        epsilon: probability of a random action.
        deterministic: take the mode of the policy's distribution instead of a sample.
        drop: policy outputs to drop, such as ``["logits", "next/value"]``.
        info: info entries to keep, as ``next/info/KEY``, or ``all``.
        autoreset: autoreset mode of a vector environment that declares none: ``next-step``, ``same-step`` or
            ``disabled``.
        reward_dtype: ``float32``, which rounds, or ``float64``; by default float64 if float32 would change a reward.
        seed: random seed.
        shard_steps: steps per shard; at most this many are lost in a crash.
        step_timeout: seconds that making an environment, reset, step or close may take; a worker that exceeds them is
            replaced. By default, only close has a limit, 30 seconds.
        store: ``zarr`` or ``memmap``.
        codec: such as ``zstd:level=19``; ``zstd-dict`` for zarr and ``none`` for memmap by default.
        engine: where workers run: ``local``, or ``ray`` for a Ray cluster.
        ray_address: address of the Ray cluster; ``$RAY_ADDRESS`` or a new local cluster by default.
        resume: resume until steps or episodes is reached, with fresh seeds.
        overwrite: start afresh; an existing dataset stays until the new one is complete.
        progress: reports ``steps`` or ``episodes``.

    Raises:
        CollectError: the environment or the policy is unknown or fails, or the two do not fit.
        PolicyNotFoundError: the policy's file does not exist.
        WorkerLostError: a worker died three times without finishing a shard.
        EngineError: the Ray cluster cannot be joined, or its workers cannot run rlx.
        DatasetExistsError: output holds another dataset, or an unfinished one and resume is not set.
        DatasetLockedError: another process is writing output.
        DiskFullError: the disk has too little space; finished shards are kept.
        OptionError, CodecError: an argument is unknown or conflicts with another.
        MissingExtraError: the environment needs a package that is not installed.

    Example:
        >>> report = rlx.collect("CartPole-v1", episodes=5, output="poles")
        >>> report.trajectories
        5
        >>> def lean(observation):
        ...     return (observation[:, 2] > 0).astype(int)
        >>> rlx.collect("CartPole-v1", steps=200, policy=lean, output="leaning").steps
        200
    """
    given = dict(locals())
    check(collect, given)
    check_exclusive(("steps", steps), ("episodes", episodes))
    check_exclusive(("resume", resume or None), ("overwrite", overwrite or None))
    from rlx.collector.dataset_collector import DatasetCollector
    from rlx.collector.policy.spec import PolicySpec
    from rlx.collector.worker.shard_worker import Budget, Collection
    from rlx.engine.local_actors import InlineActors
    from rlx.files.disk import is_there
    from rlx.manifest import FILE_NAME, Manifest
    from rlx.store.dataset_writer import claimed, open_writer
    from rlx.verbs.report import Report

    started = time.monotonic()
    path = destination(env, output)
    options = Options(store, chosen_codec(codec), engine=engine, ray_address=ray_address)
    if steps is None and episodes is None:
        steps = _DEFAULT_STEPS
    dropped, kept = _keys(drop), _keys(info)
    command = ""
    if isinstance(env, str) and isinstance(policy, str):
        as_one = {"drop": ",".join(dropped) or None, "info": ",".join(kept) or None}
        command = recorded(collect, given, steps=steps, sync=sync or workers == 1, **as_one)
    collection = Collection(
        environment=env,
        budget=Budget(steps, episodes),
        num_envs=envs,
        policy=PolicySpec.of(policy, epsilon, deterministic),
        seed=seed,
        shard_steps=shard_steps,
        resume=resume,
        workers=workers,
        drop=dropped,
        info_keys="all" if info == "all" else kept,
        reward=reward_dtype,
        autoreset=autoreset,
        is_sync=sync,
        step_timeout=step_timeout,
    )
    progress = receiver(progress)
    if not (resume or overwrite) and is_there(path / FILE_NAME):
        finished = Manifest.load(path)
        # An earlier rlx recorded the options in another order.
        commands = [sorted(words_of(str(made.get("command")))) for made in finished.lineage]
        if not command or finished.missing or commands != [sorted(words_of(command))]:
            raise DatasetExistsError(
                f"{path} holds a dataset",
                hint="`resume` collects what is missing, `overwrite` starts afresh, `output` chooses another directory",
            )
        return Report.of(path, finished, time.monotonic() - started, 0, skipped_shards=len(finished.shards))
    place = path.absolute()  # wherever an environment of this process changes to
    actors = _actors(collection, options)
    with ExitStack() as running, _closing_given(collection, actors):
        running.enter_context(actors)
        first = [_started(actors, collection)]
        described = _described(collection, _environment_of(first[0], collection), options)
        with claimed(place, overwrite=overwrite) as claim:
            writer = open_writer(claim.place, _as_listed(described, claim.place))
            shards, there = len(writer.manifest.shards), writer.manifest.steps
            with running.pop_all():  # the actors end before the claim does
                collector = DatasetCollector(
                    *(collection, writer, lambda: first.pop() if first else _started(actors, collection), progress),
                    command,
                    journals=not isinstance(actors, InlineActors),
                )
                collector.run()
            claim.finish()
    seconds, written = time.monotonic() - started, writer.manifest.steps - there
    remarks = collector.remarks.counts
    return Report.of(path, writer.manifest, seconds, written, skipped_shards=shards, remarks=remarks)


def destination(env: "EnvSource", output: StrPath | None) -> Path:
    """Return the directory of a collection: below ``$RLX_HOME`` if no output is given.

    Raises:
        OptionError: no output is given, and env is not a Gymnasium id.
    """
    from rlx.home import home

    if output is not None:
        return Path(check_path("`output`", output, "a directory"))
    if not isinstance(env, str) or ":" in env:
        raise OptionError(f"{env} has no id to derive a directory from: `output` is required")
    return home() / env


def _keys(keys: str | Sequence[str] | None) -> list[str]:
    """Return the keys of a sequence, or of a comma-separated text."""
    if not isinstance(keys, str | Iterable | None):
        raise OptionError(f"keys {keys!r}: expected a list of texts")
    return [key for key in (keys.split(",") if isinstance(keys, str) else keys or ()) if key]


def _actors(collection: "Collection", options: Options) -> "Actors":
    """Return where the workers are: in processes of their own, so that nothing that an environment does ends this one.

    A single one without a step timeout is in this process if its environment or policy is an object, not a name.
    """
    from rlx.engine.local_actors import InlineActors, LocalActors
    from rlx.engine.ray_engine import RayActors

    if options.engine == "ray":
        if collection.step_timeout is not None:
            raise CollectError("step timeout: expected workers of this machine (engine local), found engine ray")
        return RayActors(options.ray_address, cpus=collection.workers)
    is_named = isinstance(collection.environment, str) and collection.policy.function is None
    if collection.workers == 1 and collection.step_timeout is None and not is_named:
        return InlineActors()
    return LocalActors(collection.step_timeout)


@contextmanager
def _closing_given(collection: "Collection", actors: "Actors") -> Iterator[None]:
    """Close an environment that was given open, of which workers in other processes have copies."""
    from rlx.collector.environment.gym_env import is_open
    from rlx.collector.worker.shard_worker import opened
    from rlx.engine.local_actors import InlineActors

    try:
        yield
    finally:
        if is_open(collection.environment) and not isinstance(actors, InlineActors):
            opened(collection).close()


def _started(actors: "Actors", collection: "Collection") -> "ShardActor":
    from rlx.collector.worker.shard_worker import ShardWorker

    try:
        return actors.start(ShardWorker, collection)
    except (pickle.PicklingError, TypeError, AttributeError) as exc:
        raise CollectError(
            f"environment {collection.environment!r} or its policy cannot be sent to a worker: {exc}",
            hint="give a function that makes the environment",
        ) from exc


def _environment_of(actor: "ShardActor", collection: "Collection") -> "EnvironmentDescription":
    from rlx.collector.worker.shard_worker import Describe
    from rlx.engine.actor import ActorDiedError

    try:
        described: EnvironmentDescription = actor.call(Describe()).result()
    except ActorDiedError as death:
        raise WorkerLostError(
            f"environment {collection.environment} could not be made: {death}", hint="it ends its process, or hangs"
        ) from death
    return described


def _described(collection: "Collection", environment: "EnvironmentDescription", options: Options) -> "Manifest":
    from rlx.manifest import Manifest

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


def _as_listed(described: "Manifest", place: Path) -> "Manifest":
    """Return the description with the schema of the dataset that is resumed, if it has the environment's fields.

    The policy's fields are only known later.
    """
    from rlx.verbs.report import manifest_at

    if (there := manifest_at(place)) is None:
        return described
    listed = there.schema
    fields = {name: field for name, field in described.schema.fields.items() if name != "reward"}
    is_same = all(name in listed and listed[name] == fields[name] for name in fields)
    return replace(described, schema=listed) if is_same else described
