"""What the options of a command that writes datasets mean to the library."""

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlx.pipeline.options import Options
    from rlx.store.codec import Codec


def write_options(
    *,
    store: str,
    codec: "Codec | None",
    shards: "Sequence[int] | None",
    jobs: int | None,
    overwrite: bool,
    keep_source: bool = False,
    command: str = "",
) -> "Options":
    """The library's options; where no number of jobs is given, its own."""
    from rlx.pipeline.options import Options

    options = Options(
        store=store, codec=codec, shards=shards, overwrite=overwrite, keep_source=keep_source, command=command
    )
    return options if jobs is None else replace(options, jobs=jobs)
