"""Names inside a dataset directory, and the stores that rlx knows."""

from pathlib import Path
from types import MappingProxyType

from rlx.errors import CorruptDatasetError
from rlx.files.remote_files import OnePath
from rlx.store.array import Store
from rlx.store.memmap_store import MemmapStore
from rlx.store.text import WithText
from rlx.store.zarr_store import ZarrStore

SHARDS = "shards"
DAMAGED = "rlx.json.damaged"  # a damaged manifest, put aside by repair
ASIDE = ".damaged"  # shards and files that repair moved out of the way
STORES: MappingProxyType[str, Store] = MappingProxyType(
    {"zarr": WithText(ZarrStore()), "memmap": WithText(MemmapStore())}
)


def store_named(name: str) -> Store:
    """Return the store that a manifest names.

    Raises:
        CorruptDatasetError: the store is unknown.
    """
    try:
        return STORES[name]
    except KeyError as exc:
        raise CorruptDatasetError(f"store {name!r:.80} is unknown: expected one of {', '.join(STORES)}") from exc


def shard_name(number: int) -> str:
    """Return name of a numbered shard: ``00007``."""
    return f"{number:05d}"


def shard_directory(dataset: OnePath, name: str) -> OnePath:
    """Return where a listed shard lies."""
    return dataset / SHARDS / name


def partial_directory(dataset: Path, name: str, writer: int) -> Path:
    """Return where a shard lies while the writer of this number writes it."""
    return dataset / SHARDS / f"{name}.{writer}.partial"
