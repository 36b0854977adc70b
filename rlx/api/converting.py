"""``rlx.convert``."""

from collections.abc import Iterable
from pathlib import Path
from typing import Unpack, get_args, overload

from rlx.api.arguments import (
    ConvertFormat,
    Engine,
    ExportFormat,
    Store,
    StrPath,
    WriteArguments,
    check_choice,
    check_number,
    check_source_format,
    chosen_codec,
    command_line,
    shard_numbers,
    write_options,
)
from rlx.errors import OptionError
from rlx.formats.dopamine.writer import DopamineExporter
from rlx.pipeline.convert import convert as convert_run
from rlx.pipeline.convert import fetched
from rlx.pipeline.export import ExportReport, export
from rlx.pipeline.report import Report
from rlx.progress import Progress, Silent
from rlx.store.codec import Codec


class _ConvertArguments(WriteArguments, total=False):
    from_: str | None
    capacity: int | None
    shards: Iterable[int] | None
    jobs: int | None


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
        overwrite: start afresh instead of resuming, or replace an export of the same format.
        progress: reports ``shards`` and ``steps``.

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
        OptionError, CodecError: an argument is unknown or does not go with another.
        MissingExtraError: the format needs a package that is not installed.
        PartialError: a worker process died; call it again to resume.

    Example:
        >>> rlx.convert("dqn", "pong").steps
        2491
        >>> rlx.convert("pong", "pong.npz", to="npz").trajectories
        6
    """
    check_source_format(from_)
    check_choice("to", to, ConvertFormat)
    check_number("capacity", capacity, 8)
    if capacity is not None and to != "dopamine":
        raise OptionError(f"`capacity` requires `to` dopamine, found `to` {to}")
    check_choice("engine", engine, Engine)
    check_number("jobs", jobs, 1)
    progress = progress or Silent()
    path, origin = fetched(source if isinstance(source, str) else Path(source))
    if to in get_args(ExportFormat):
        for name, given in (
            ("`codec`", codec is not None),
            (f"`engine` {engine}", engine != "local"),
            ("`ray_address`", ray_address is not None),
        ):
            if given:
                raise OptionError(f"{name} requires `to` zarr or memmap, found `to` {to}")
        return export(
            path,
            Path(destination),
            to,
            source_format=from_,
            shards=shard_numbers(shards),
            overwrite=overwrite,
            exporter=None if capacity is None else DopamineExporter(capacity),
            progress=progress,
        )
    chosen = {
        "from": from_,
        "to": None if to == "zarr" else to,
        "codec": chosen_codec(codec),
        "shards": shard_numbers(shards),
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
    )
    return convert_run(path, Path(destination), options, source_format=from_, origin=origin, progress=progress)
