"""``rlx.convert``: files of other projects, or a dataset, into a dataset or another project's format."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack, get_args, overload

from rlx.errors import OptionError
from rlx.files.urls import check_path
from rlx.formats.registry import writable
from rlx.progress import Progress, receiver
from rlx.verbs.arguments import (
    ConvertFormat,
    ExportFormat,
    OnError,
    Options,
    StoreName,
    StrPath,
    WriteArguments,
    check_source_format,
    chosen_codec,
    shard_numbers,
)
from rlx.verbs.options import (
    Argument,
    CodecOption,
    EngineOption,
    FromOption,
    JobsOption,
    OnErrorOption,
    Option,
    OverwriteOption,
    RayAddressOption,
    ShardsOption,
    check,
    dataset_names,
    recorded,
)

if TYPE_CHECKING:
    from rlx.verbs.export import ExportReport
    from rlx.verbs.inputs import Fetched
    from rlx.verbs.report import Report


class _ConvertArguments(WriteArguments, total=False):
    from_: str | None
    capacity: int | None
    shards: Iterable[int] | None
    jobs: int | None
    on_error: OnError


@overload
def convert(
    source: StrPath, destination: StrPath, *, to: StoreName = "zarr", **arguments: Unpack[_ConvertArguments]
) -> "Report": ...


@overload
def convert(
    source: StrPath, destination: StrPath, *, to: ExportFormat, **arguments: Unpack[_ConvertArguments]
) -> "ExportReport": ...


def convert(
    source: Annotated[
        StrPath, Argument("Dataset, or files of another project.", metavar="SRC", completes=dataset_names)
    ],
    destination: Annotated[StrPath, Argument("New dataset or file.", metavar="DST", recorded=False)],
    *,
    from_: FromOption = None,
    to: Annotated[
        ConvertFormat,
        Option(
            "Store of a new dataset, zarr or memmap, or another project's format: "
            f"{', '.join(get_args(ExportFormat))}.",
            metavar="FORMAT",
            more=lambda: writable("datasets"),
        ),
    ] = "zarr",
    codec: CodecOption = None,
    capacity: Annotated[
        int | None,
        Option("Rows per file in Dopamine's layout.", least=8, default="1,000,000, or fewer if SRC is smaller"),
    ] = None,
    shards: ShardsOption = None,
    jobs: JobsOption = None,
    engine: EngineOption = "local",
    ray_address: RayAddressOption = None,
    on_error: OnErrorOption = "stop",
    overwrite: OverwriteOption = False,
    progress: Progress | None = None,
) -> "Report | ExportReport":
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
    given = dict(locals())
    check(convert, given)
    check_source_format(from_)
    check_path("source", source)
    check_path("destination", destination, "a path")
    is_export = to not in get_args(StoreName)
    for name, is_given, needed in (
        ("`capacity`", capacity is not None and to != "dopamine", "dopamine"),
        ("`codec`", codec is not None and is_export, "zarr or memmap"),
        (f"`engine` {engine}", engine != "local" and is_export, "zarr or memmap"),
        ("`ray_address`", ray_address is not None and is_export, "zarr or memmap"),
    ):
        if is_given:
            raise OptionError(f"{name} requires `to` {needed}, found `to` {to}")
    from rlx.verbs.inputs import fetched

    progress = receiver(progress)
    numbers = shard_numbers(shards)
    files = fetched(source if isinstance(source, str) else Path(source), progress)
    if is_export:
        from rlx.formats.dopamine.writer import DopamineExporter
        from rlx.verbs.export import export

        return export(
            files.path,
            Path(destination),
            to,
            source_format=from_,
            shards=numbers,
            skips=on_error == "skip",
            overwrite=overwrite,
            exporter=None if capacity is None else DopamineExporter(capacity),
            progress=progress,
        )
    options = Options(
        store=to,
        codec=chosen_codec(codec),
        shards=numbers,
        jobs=jobs,
        overwrite=overwrite,
        command=recorded(convert, given, codec=chosen_codec(codec), shards=numbers),
        engine=engine,
        ray_address=ray_address,
        on_error=on_error,
    )
    return convert_files(files, Path(destination), options, source_format=from_, progress=progress)


def convert_files(
    files: "Fetched", destination: Path, options: Options, *, source_format: str | None, progress: Progress
) -> "Report":
    """Convert files into a dataset, or resume an unfinished one; see ``convert``."""
    from rlx.formats.common.skipping import LeftOut, skipping
    from rlx.store.dataset_writer import claimed
    from rlx.verbs.ingest import Ingest
    from rlx.verbs.inputs import StoredDataset, open_source, warn_of
    from rlx.verbs.report import check_apart

    check_apart(files.path, destination)
    with skipping(options.skips) as left:
        opened, root = open_source(files.path, source_format)
        opened.shards()  # what plans them may find damage
    warn_of(left, opened)
    ingest = Ingest(
        opened,
        root,
        options,
        progress,
        parents=[opened.dataset] if isinstance(opened, StoredDataset) else [],
        origin=files.origin,
        citations=files.citations,
        left_out=LeftOut.of(left),
    )
    with claimed(destination, overwrite=options.overwrite) as claim:
        ingest.check_resumable(claim.place)
        return ingest.run(claim)
