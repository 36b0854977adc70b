"""The name of a codec and its settings, as a user writes them: ``zstd:level=3,chunk=8``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from rlx.errors import CodecError, CorruptDatasetError
from rlx.numbers import check_whole
from rlx.wording import did_you_mean

# Smaller rows are stored uncompressed: they hardly compress, and are read straight from memory.
MIN_ROW_BYTES = 1024
_DEFAULTS = {"zstd-dict": (6, 1), "zstd": (3, 8), "lz4": (1, 8), "none": (0, 1)}
MAX_LEVELS = {"zstd-dict": 22, "zstd": 22, "lz4": 65537, "none": 0}
MAX_CHUNK = 4096


@dataclass(frozen=True, slots=True)
class Codec:
    """How fields of ``MIN_ROW_BYTES`` or more a row are compressed.

    Args:
        name: ``zstd-dict`` (frames against a dictionary of reference frames), ``zstd``, ``lz4`` or ``none``.
        chunk: rows a chunk; 1 with ``zstd-dict``, whose frames stay independent.

    Example:
        >>> Codec.parse("zstd:chunk=32")
        Codec(name='zstd', level=3, chunk=32)
    """

    name: str
    level: int
    chunk: int

    def __post_init__(self) -> None:
        if self.name not in _DEFAULTS:
            raise CodecError(
                f"codec {self.name!r} is unknown: expected one of {', '.join(_DEFAULTS)}",
                hint=did_you_mean(str(self.name), _DEFAULTS),  # a damaged manifest may have anything
            )
        check_whole(f"codec {self.name}: level", self.level, 0, MAX_LEVELS[self.name], error=CodecError)
        most = 1 if self.name == "zstd-dict" else MAX_CHUNK
        check_whole(f"codec {self.name}: chunk", self.chunk, 1, most, error=CodecError)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the codec of a user: a name, then ``level`` and ``chunk`` where they differ from the defaults."""
        name, _, settings = text.partition(":")
        level, chunk = _DEFAULTS.get(name, (0, 1))
        values = {"level": level, "chunk": chunk}
        for setting in filter(None, settings.split(",")):
            key, _, value = setting.partition("=")
            if key not in values or not value.isdecimal():
                raise CodecError(f"codec {text!r}: option {setting!r} is invalid, expected level=N or chunk=N")
            values[key] = int(value)
        return cls(name, **values)

    def to_json(self) -> dict[str, Any]:
        """Return the codec as it stands in the manifest."""
        return {"name": self.name, "level": self.level, "chunk": self.chunk}

    @classmethod
    def from_json(cls, described: Mapping[str, Any]) -> Self:
        """Return the codec that a manifest describes."""
        try:
            return cls(described["name"], described["level"], described["chunk"])
        except (KeyError, TypeError, CodecError) as exc:
            raise CorruptDatasetError(f"the manifest's codec is damaged: {dict(described)!r:.200}") from exc

    def __str__(self) -> str:
        return self.name if self.name == "none" else f"{self.name}:level={self.level},chunk={self.chunk}"


DEFAULT = Codec.parse("zstd-dict")
NONE = Codec.parse("none")


def codec_of(store: str, codec: Codec | None) -> Codec:
    """Return the codec that a store is written with.

    Args:
        store: ``zarr`` or ``memmap``.
        codec: the one asked for; what suits the store by default.

    Example:
        >>> str(codec_of("memmap", None)), codec_of("zarr", None).name
        ('none', 'zstd-dict')
    """
    if store == "memmap" and codec not in (None, NONE):
        raise CodecError(f"store memmap does not support codec {codec}", hint="take store zarr")
    if codec is not None:
        return codec
    return NONE if store == "memmap" else DEFAULT
