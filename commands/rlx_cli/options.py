"""The arguments and options that several commands share, declared once, and their shell completion."""

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, get_args

import typer

from rlx.verbs.arguments import Engine, OnError, SourceFormat, Store

_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


def complete_datasets(incomplete: str) -> list[str]:
    """Return ids of the datasets below $RLX_HOME; the shell adds paths."""
    from rlx.home import dataset_ids

    return _beginning(dataset_ids(), incomplete)


def complete_games(incomplete: str) -> list[str]:
    """Return the games of downloadable runs."""
    from rlx.formats.rl_unplugged import GAMES

    return _beginning(GAMES, incomplete)


def complete_runs(incomplete: str) -> list[str]:
    """Return downloadable runs: ``Pong/5``."""
    from rlx.formats.rl_unplugged import GAMES, RUNS

    return _beginning((f"{game}/{run}" for game in GAMES for run in RUNS), incomplete)


def complete_formats(own: Any, writes: Literal["datasets", "batches"] | None = None) -> list[str]:
    """Return names of formats: rlx's own, and those that other packages add.

    Args:
        own: a ``Literal`` type.
        writes: what they hold; by default, the formats are those that are read.
    """
    from rlx.formats.registry import readable, writable

    return list(dict.fromkeys((*get_args(own), *(readable() if writes is None else writable(writes)))))


def complete_transforms(incomplete: str) -> list[str]:
    """Return names of transforms."""
    from rlx.transform.registry import TRANSFORMS

    return _beginning(TRANSFORMS, incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    """Return the names that start with this text, ignoring case."""
    return [name for name in names if name.lower().startswith(incomplete.lower())]


def parse_shards(text: str) -> tuple[int, ...]:
    """Return shard numbers, ascending and each once.

    Example:
        >>> parse_shards("0-2,49")
        (0, 1, 2, 49)
    """
    numbers: set[int] = set()
    for part in text.split(","):
        matched = _RANGE.fullmatch(part.strip())
        low, high = (int(matched[1]), int(matched[2] or matched[1])) if matched else (1, 0)
        if low > high:
            raise typer.BadParameter(f"{part!r}: expected numbers and ranges such as 0-4,49")
        numbers.update(range(low, high + 1))
    return tuple(sorted(numbers))


DatasetArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATASET",
        help="Path of a dataset, or its id below $RLX_HOME, such as Pong/5.",
        autocompletion=complete_datasets,
    ),
]
AnyDatasetArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATASET",
        help="Path of a dataset, its id below $RLX_HOME, or its URL.",
        autocompletion=complete_datasets,
    ),
]
LocationArgument = Annotated[
    str, typer.Argument(metavar="URL", help="Location: s3://, gs://, az://, hf://, http(s):// or a directory.")
]
TargetArgument = Annotated[
    str, typer.Argument(metavar="URL", help="Location: s3://, gs://, az://, hf:// or a directory.")
]
SourceOption = Annotated[
    str | None,
    typer.Option(
        "--source", metavar="URL|DIR", help="Base URL or directory of the runs.", show_default="RL Unplugged's bucket"
    ),
]
ShardsOption = Annotated[
    # The parser determines the type; Typer only uses the annotation's name.
    Any,
    typer.Option(
        "--shards", parser=parse_shards, metavar="LIST", help="Shards to process, such as 0-4,49.", show_default=False
    ),
]


def codec_option(default: str) -> Any:
    """Return the option ``--codec``, with its default as text."""
    return typer.Option(
        "--codec",
        metavar="CODEC",
        help="Codec: zstd-dict, zstd, lz4 or none; with options, zstd:level=N,chunk=N.",
        show_default=default,
    )


CodecOption = Annotated[str | None, codec_option("zstd-dict for zarr, none for memmap")]
StoreOption = Annotated[Store, typer.Option("--store", help="Store of the new dataset.")]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="FORMAT",
        help=f"Format of the files: {', '.join(get_args(SourceFormat))}; with options, torchrl:time_dim=0.",
        show_default="auto-detected",
        autocompletion=lambda: complete_formats(SourceFormat),
    ),
]
JobsOption = Annotated[
    int | None,
    typer.Option("--jobs", min=1, max=2**12, metavar="N", help="Worker processes.", show_default="one per core"),
]
TransfersOption = Annotated[
    int | None, typer.Option("--jobs", min=1, max=2**12, metavar="N", help="Concurrent transfers.", show_default="8")
]
OnErrorOption = Annotated[
    OnError,
    typer.Option(
        "--on-error",
        help="At an episode that cannot be read: stop, or skip it, name it and take the others.",
    ),
]
EngineOption = Annotated[Engine, typer.Option("--engine", help="Where workers run: this machine, or a Ray cluster.")]
RayAddressOption = Annotated[
    str | None,
    typer.Option(
        "--ray-address",
        metavar="URL",
        help="Address of the Ray cluster: HOST:PORT, ray://HOST:PORT or auto.",
        show_default="$RAY_ADDRESS, or a new local cluster",
    ),
]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Start afresh; an existing dataset stays until the new one is complete.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, and the log.")]
