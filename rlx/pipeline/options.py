"""What a user may choose of how a dataset is written."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from rlx.errors import CodecError
from rlx.store.codec import DEFAULT, NONE, Codec


def _cores() -> int:
    """How many this process may use, where the system tells, or else how many there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Options:
    """How a dataset is written.

    Args:
        store: ``zarr`` or ``memmap``.
        codec: how pictures are compressed; where not given, what suits the store.
        shards: numbers of the source's shards to take; where not given, all of them.
        jobs: worker processes.
        overwrite: whether to start afresh where the dataset exists.
        keep_source: whether to keep downloaded files once their shard is written.
        command: what the lineage says made the dataset.

    Raises:
        CodecError: the store cannot hold the codec.
    """

    store: str = "zarr"
    codec: Codec | None = None
    shards: Sequence[int] | None = None
    jobs: int = field(default_factory=_cores)
    overwrite: bool = False
    keep_source: bool = False
    command: str = ""

    def __post_init__(self) -> None:
        if self.store == "memmap" and self.codec not in (None, NONE):
            raise CodecError(f"store memmap cannot hold codec {self.codec}: expected none", hint="take store zarr")

    @property
    def effective_codec(self) -> Codec:
        """The codec asked for, or the store's own."""
        if self.codec is not None:
            return self.codec
        return NONE if self.store == "memmap" else DEFAULT
