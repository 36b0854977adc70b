"""User options for how a dataset is written."""

from collections.abc import Sequence
from dataclasses import dataclass

from rlx.store.codec import Codec, codec_of


@dataclass(frozen=True, slots=True)
class Options:
    """How a dataset is written, as ``rlx.convert`` has it."""

    store: str = "zarr"
    codec: Codec | None = None
    shards: Sequence[int] | None = None
    jobs: int | None = None
    overwrite: bool = False
    keep_source: bool = False
    command: str = ""
    engine: str = "local"
    ray_address: str | None = None
    on_error: str | None = None

    def __post_init__(self) -> None:
        codec_of(self.store, self.codec)

    @property
    def skips(self) -> bool | None:
        """Whether episodes that cannot be read are left out; None if the function does not offer it."""
        return None if self.on_error is None else self.on_error == "skip"

    @property
    def effective_codec(self) -> Codec:
        """The codec asked for, or the store's own."""
        return codec_of(self.store, self.codec)
