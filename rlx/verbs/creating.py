"""``rlx.collect`` and ``rlx.convert``: datasets from environments and from other projects' files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, get_args, overload

from rlx.errors import OptionError
from rlx.files.urls import check_path
from rlx.formats.registry import writable
from rlx.home import home
from rlx.progress import Progress, receiver
from rlx.store.codec import Codec
from rlx.verbs.arguments import (
    Autoreset,
    ConvertFormat,
    Engine,
    ExportFormat,
    OnError,
    RewardDtype,
    Store,
    StrPath,
    WriteArguments,
    check_choice,
    check_exclusive,
    check_number,
    check_source_format,
    chosen_codec,
    command_line,
    shard_numbers,
    write_options,
)
from rlx.verbs.report import Report

if TYPE_CHECKING:
    from rlx.collector.environment.gym_env import EnvSource
    from rlx.verbs.export import ExportReport


_DEFAULT_STEPS = 10_000
_SHARD_STEPS = 100_000


def collect(
    env: EnvSource = "ALE/Pong-v5",
    *,
    output: StrPath | None = None,
    envs: int = 4,
    workers: int = 1,
    sync: bool = True,
    steps: int | None = None,
    episodes: int | None = None,
    policy: str | Callable[..., Any] = "random",
    epsilon: float = 0.0,
    deterministic: bool = False,
    drop: str | Sequence[str] | None = None,
    info: str | Sequence[str] | None = None,
    autoreset: Autoreset | None = None,
    reward_dtype: RewardDtype | None = None,
    seed: int = 0,
    shard_steps: int = _SHARD_STEPS,
    step_timeout: float | None = None,
    store: Store = "zarr",
    codec: str | Codec | None = None,
    engine: Engine = "local",
    ray_address: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Report:
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
    from rlx.collector.policy.spec import PolicySpec
    from rlx.collector.worker.shard_worker import Budget, Collection  # needs an extra
    from rlx.verbs.collect import collect as collect_steps

    check_exclusive(("steps", steps), ("episodes", episodes))
    check_exclusive(("resume", resume or None), ("overwrite", overwrite or None))
    check_choice("autoreset", autoreset, Autoreset)
    check_choice("reward_dtype", reward_dtype, RewardDtype)
    check_number("epsilon", epsilon, 0, 1)
    path = destination(env, output)
    if steps is None and episodes is None:
        steps = _DEFAULT_STEPS
    chosen: dict[str, object] = {"steps": steps, "episodes": episodes, "envs": envs}
    if workers != 1:
        chosen |= {"workers": workers, "async": None if sync else True}
    chosen |= {
        "policy": policy,
        "epsilon": epsilon or None,
        "deterministic": deterministic or None,
        "drop": ",".join(_keys(drop)) or None,
        "info": ",".join(_keys(info)) or None,
        "autoreset": autoreset,
        "reward-dtype": reward_dtype,
        "seed": seed,
        "shard-steps": None if shard_steps == _SHARD_STEPS else shard_steps,
        "step-timeout": step_timeout,
    }
    named = isinstance(env, str) and isinstance(policy, str)
    options = write_options(
        store=store,
        codec=codec,
        overwrite=overwrite,
        engine=engine,
        ray_address=ray_address,
        command=command_line("collect", [str(env)], chosen) if named else "",
    )
    collection = Collection(
        environment=env,
        budget=Budget(steps, episodes),
        num_envs=envs,
        policy=PolicySpec.of(policy, epsilon, deterministic),
        seed=seed,
        shard_steps=shard_steps,
        resume=resume,
        workers=workers,
        drop=_keys(drop),
        info_keys="all" if info == "all" else _keys(info),
        reward=reward_dtype,
        autoreset=autoreset,
        is_sync=sync,
        step_timeout=step_timeout,
    )
    return collect_steps(collection, path, options, receiver(progress))


def destination(env: EnvSource, output: StrPath | None) -> Path:
    """Return the directory of a collection: below ``$RLX_HOME`` if no output is given.

    Raises:
        OptionError: no output is given, and env is not a Gymnasium id.
    """
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


class _ConvertArguments(WriteArguments, total=False):
    from_: str | None
    capacity: int | None
    shards: Iterable[int] | None
    jobs: int | None
    on_error: OnError


@overload
def convert(
    source: StrPath, destination: StrPath, *, to: Store = "zarr", **arguments: Unpack[_ConvertArguments]
) -> Report: ...


@overload
def convert(
    source: StrPath, destination: StrPath, *, to: ExportFormat, **arguments: Unpack[_ConvertArguments]
) -> ExportReport: ...


def convert(
    source: StrPath,
    destination: StrPath,
    *,
    from_: str | None = None,
    to: ConvertFormat = "zarr",
    codec: str | Codec | None = None,
    capacity: int | None = None,
    shards: Iterable[int] | None = None,
    jobs: int | None = None,
    engine: Engine = "local",
    ray_address: str | None = None,
    on_error: OnError = "stop",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Report | ExportReport:
    """Convert files or a dataset into a dataset, or another project's format.

    Call it again to resume a conversion to a dataset. Data that another project's format cannot hold are logged as a
    warning.

    Args:
        source: a dataset's directory or its id below ``$RLX_HOME``, or files of another project: their path, or
            ``hf://datasets/ORG/NAME[@REV][/PATH]``, which is fetched into the cache of huggingface_hub.
        destination: the new dataset or file.
        from_: format of source, with options if it has any: ``torchrl:time_dim=0``; auto-detected by default.
        to: ``zarr`` or ``memmap``, the stores of a dataset; or another project's format.
        codec: such as ``zstd:level=19``; ``zstd-dict`` for zarr and ``none`` for memmap by default.
        capacity: rows per file in Dopamine's layout; 1,000,000 by default, or fewer if source is smaller.
        shards: numbers of the shards to convert; all by default.
        jobs: worker processes; one per core by default.
        engine: where workers run: ``local``, or ``ray`` for a Ray cluster.
        ray_address: address of the Ray cluster; ``$RAY_ADDRESS`` or a new local cluster by default.
        on_error: what an episode that cannot be read does: ``stop``, or ``skip`` to leave it out and take the others. A
            warning names those that are left out, and so do the report and the dataset's notes. Episodes are then held
            in memory until they are read whole.
        overwrite: start afresh instead of resuming, or replace an export of the same format.
        progress: reports ``shards`` and ``steps``, and ``bytes`` that are fetched.

    Returns:
        The new dataset, with the shards that failed: ``raise_for_failures()`` raises their error. With another
        project's format the export, and in ``losses`` what the format could not hold.

    Raises:
        SourceNotFoundError: source holds no run, or more than one, or no such shard.
        DatasetNotFoundError: source does not exist.
        CorruptShardError: a file that is exported is damaged.
        ExportError: the format does not support these data.
        DatasetExistsError: destination is the source, contains it, or holds something else.
        DiskFullError: the disk has too little space.
        OptionError, CodecError: an argument is unknown or conflicts with another.
        MissingExtraError: the format needs a package that is not installed.
        EngineError: the Ray cluster cannot be joined, or its workers cannot run rlx.
        PartialError: a worker process died; call it again to resume.

    Example:
        >>> rlx.convert("dqn", "pong").steps
        2491
        >>> rlx.convert("pong", "pong.npz", to="npz").trajectories
        6
    """
    from rlx.formats.dopamine.writer import DopamineExporter  # collect needs no format
    from rlx.verbs.convert import convert as convert_run
    from rlx.verbs.convert import fetched
    from rlx.verbs.export import export

    check_source_format(from_)
    check_choice("to", to, ConvertFormat, partial(writable, "datasets"))
    check_number("capacity", capacity, 8)
    if capacity is not None and to != "dopamine":
        raise OptionError(f"`capacity` requires `to` dopamine, found `to` {to}")
    check_choice("engine", engine, Engine)
    check_choice("on_error", on_error, OnError)
    check_number("jobs", jobs, 1)
    progress = receiver(progress)
    check_path("source", source)
    check_path("destination", destination, "a path")
    files = fetched(source if isinstance(source, str) else Path(source), progress)
    if to not in get_args(Store):
        for name, given in (
            ("`codec`", codec is not None),
            (f"`engine` {engine}", engine != "local"),
            ("`ray_address`", ray_address is not None),
        ):
            if given:
                raise OptionError(f"{name} requires `to` zarr or memmap, found `to` {to}")
        return export(
            files.path,
            Path(destination),
            to,
            source_format=from_,
            shards=shard_numbers(shards),
            skips=on_error == "skip",
            overwrite=overwrite,
            exporter=None if capacity is None else DopamineExporter(capacity),
            progress=progress,
        )
    chosen = {
        "from": from_,
        "to": None if to == "zarr" else to,
        "codec": chosen_codec(codec),
        "shards": shard_numbers(shards),
        "on_error": None if on_error == "stop" else on_error,
    }
    options = write_options(
        store=to,
        codec=codec,
        shards=shards,
        jobs=jobs,
        overwrite=overwrite,
        engine=engine,
        ray_address=ray_address,
        command=command_line("convert", [str(source)], chosen),
        on_error=on_error,
    )
    return convert_run(files, Path(destination), options, source_format=from_, progress=progress)
