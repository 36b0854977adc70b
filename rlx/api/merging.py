"""``rlx.merge``."""

import os
from collections.abc import Iterable
from pathlib import Path

from rlx.api.arguments import Store, StrPath, chosen_codec, write_options
from rlx.api.lineage import command_line
from rlx.errors import OptionError
from rlx.home import locate
from rlx.pipeline.assembly import merge as merge_datasets
from rlx.pipeline.report import Report
from rlx.progress import Progress, Silent
from rlx.store.codec import Codec


def merge(
    datasets: Iterable[StrPath],
    output: StrPath,
    *,
    to: Store | None = None,
    codec: str | Codec | None = None,
    jobs: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Merge datasets into one; call it again to resume.

    Shards are hard-linked where the file system allows it, and copied elsewhere.

    Args:
        datasets: directories of the datasets, or their ids below ``$RLX_HOME``, in the desired order.
        output: the new dataset's directory.
        to: ``zarr`` or ``memmap``; shards of another store are re-encoded. That of the datasets by default.
        codec: such as ``zstd-dict``; shards of another codec are re-encoded. That of the datasets by default.
        jobs: worker processes; one per core by default.
        overwrite: start afresh instead of resuming.
        progress: reports ``bytes`` of linked shards, ``shards`` and ``steps`` of re-encoded ones.

    Raises:
        DatasetNotFoundError: a dataset does not exist.
        DatasetError: a dataset is given twice, or the datasets differ in store or codec.
        SchemaMismatchError: the datasets have different fields.
        DatasetExistsError: output is one of the datasets, or holds another dataset.
        CorruptDatasetError: a dataset is damaged.
        OptionError, CodecError: datasets is not a list of at least one, or another argument is unknown.

    Example:
        >>> first, second = rlx.split("cartpole", [0.5, 0.5], output=["first", "second"])
        >>> rlx.merge(["first", "second"], "both").steps == first.steps + second.steps
        True
    """
    if isinstance(datasets, str | os.PathLike):
        raise OptionError(f"one dataset given, {os.fspath(datasets)!r}: expected a list")
    datasets = list(datasets)
    if not datasets:
        raise OptionError("no dataset given: expected a list of at least one")
    chosen = {"to": to, "codec": chosen_codec(codec)}
    options = write_options(
        store=to or "zarr",
        codec=codec,
        jobs=jobs,
        overwrite=overwrite,
        command=command_line("merge", [os.fspath(dataset) for dataset in datasets], chosen),
    )
    return merge_datasets(
        [locate(dataset) for dataset in datasets],
        Path(output),
        options,
        encode=to is not None or codec is not None,
        progress=progress or Silent(),
    )
