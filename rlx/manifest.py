"""The manifest, ``rlx.json``: all metadata of a dataset, readable without opening a shard.

A dataset exists when its manifest does. It is replaced atomically and ends in a crc32c of everything before, so that a
damaged one is always detected. docs/format.md specifies every key.
"""

import builtins
import gc
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from rlx.errors import (
    CorruptDatasetError,
    DatasetNotFoundError,
    FormatVersionError,
    IncompleteDatasetError,
    RlxError,
    SchemaMismatchError,
)
from rlx.files.atomic import PARTIAL, write_file
from rlx.files.checksum import Digests
from rlx.files.disk import at_once, file_error
from rlx.files.remote_files import AnyPath, pieces_of
from rlx.files.sealed import SealError, check_seal, sealed
from rlx.manifest_values import (
    check_counts,
    check_id,
    check_json,
    check_lineage,
    check_statistics,
    indented,
    is_count,
)
from rlx.schema import Schema
from rlx.wording import command

FILE_NAME = "rlx.json"
FORMAT_VERSION = 1
MAX_BYTES = 256 * 2**20
MAX_STEPS = 2**40  # of a shard: sums of it stay far below 2**63
_SHARD_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
_MAX_SHOWN = 160  # characters of an untrusted value
_CRC32CS = re.compile(r"[0-9a-f]*")
_NO_SHARDS = "[]\n}"
VERSION = "version"  # name of the note with a dataset's version
_SHARD_KEYS = ("name", "steps", "trajectories", "files", "statistics", "origin", "dropped")
# Names of files are the same in all shards of a dataset: each is checked once.
_checked_names: set[str] = set()
_MOST_CHECKED = 10_000


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of a shard: its length in bytes and its crc32c as eight hex digits."""

    bytes: int
    crc32c: str

    @classmethod
    def of(cls, path: AnyPath) -> Self:
        """Return the record of a file, all of which is read."""
        digests = Digests()
        for piece in pieces_of(path):
            digests.update(piece)
        return cls(digests.bytes, digests.crc32c)


class FileRecords(Mapping[str, FileRecord]):
    """The files of a shard in a manifest, checked together, as there may be very many.

    Args:
        described: ``bytes`` and ``crc32c`` by name.

    Raises:
        ValueError, TypeError, KeyError: a file is described wrongly.
    """

    def __init__(self, described: Mapping[str, Mapping[str, Any]]) -> None:
        self._described = described
        values = described.values()
        sizes, checksums = [file["bytes"] for file in values], [file["crc32c"] for file in values]
        are_counts = set(map(type, sizes)) <= {int} and (not sizes or 0 <= min(sizes) <= max(sizes) < 2**63)
        if set(map(len, values)) - {2} or not are_counts:
            raise ValueError(f"files {dict(described)!r:.200}")
        if set(map(len, checksums)) - {8} or not _CRC32CS.fullmatch("".join(checksums)):
            raise ValueError(f"checksums {checksums!r:.200}")

    def sizes(self) -> list[tuple[str, int]]:
        """Return name and bytes of every file."""
        return [(name, file["bytes"]) for name, file in self._described.items()]

    def __getitem__(self, name: str) -> FileRecord:
        return FileRecord(**self._described[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._described)

    def __len__(self) -> int:
        return len(self._described)

    def __contains__(self, name: object) -> bool:
        return name in self._described

    def __repr__(self) -> str:
        return repr(dict(self))


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """One shard, as the manifest lists it.

    Args:
        name: its directory below ``shards/``.
        steps: S, steps in the shard.
        trajectories: N, trajectories in the shard.
        files: every file in its directory, by its path below it.
        statistics: returns, lengths, rewards, actions and observations; see ``rlx.store.statistics``.
        origin: source files with their checksums, or the environment and seed.
        dropped: rows of the source that were left out, by reason.
    """

    name: str
    steps: int
    trajectories: int
    files: Mapping[str, FileRecord]
    statistics: Mapping[str, Any] = field(default_factory=dict)
    origin: Mapping[str, Any] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    _encoded: str = field(default="", init=False, repr=False, compare=False)

    @property
    def bytes(self) -> int:
        """Bytes of all its files."""
        return sum(size for _, size in self.sizes())

    def sizes(self) -> list[tuple[str, int]]:
        """Return name and bytes of every file."""
        if isinstance(self.files, FileRecords):
            return self.files.sizes()
        return [(name, file.bytes) for name, file in self.files.items()]

    def encode(self) -> str:
        """Return the shard's record in ``rlx.json``; it is encoded only once."""
        if not self._encoded:
            files = {name: {"bytes": file.bytes, "crc32c": file.crc32c} for name, file in self.files.items()}
            described = {key: getattr(self, key) for key in _SHARD_KEYS}
            object.__setattr__(self, "_encoded", indented({**described, "files": files}, "\n  "))
        return self._encoded

    @classmethod
    def from_json(cls, described: Mapping[str, Any]) -> Self:
        """Return the shard that a manifest describes."""
        files = FileRecords(described["files"])
        if not _checked_names.issuperset(files):
            if bad := [name for name in files if not _FILE_NAME.fullmatch(name)]:
                raise ValueError(f"file name {bad[0]!r}")
            if len(_checked_names) < _MOST_CHECKED:
                _checked_names.update(files)
        _check_shard_name(described["name"])
        steps, trajectories = described["steps"], described["trajectories"]
        if not (is_count(steps) and is_count(trajectories) and trajectories <= steps <= MAX_STEPS):
            raise ValueError(f"{steps} steps in {trajectories} trajectories")
        check_statistics(described.get("statistics", {}))
        check_counts(described.get("dropped", {}), "dropped")
        if not isinstance(origin := described.get("origin", {}), dict):
            raise TypeError(f"origin is {origin!r:.80}")
        check_json(origin, "origin")
        return cls(**{**described, "files": files})


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of one dataset directory.

    Args:
        id: name of the dataset: ``Pong/5``.
        store: ``zarr`` or ``memmap``.
        codec: codec of the fields, as ``rlx.store.codec.Codec.to_json`` writes it.
        schema: schema of a step.
        shards: the shards, in the order of their steps.
        planned: names of all requested shards; those not in ``shards`` are still missing.
        notes: facts about the data that the steps do not show.
        lineage: the commands that made it, oldest first: command, rlx version, parents, seed.
    """

    id: str
    store: str
    codec: Mapping[str, Any]
    schema: Schema
    shards: Sequence[ShardRecord] = ()
    planned: Sequence[str] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)
    lineage: Sequence[Mapping[str, Any]] = ()
    format_version: int = FORMAT_VERSION

    @property
    def version(self) -> str | None:
        """The version that ``rlx push --version`` gave it, such as ``v2``; None without one."""
        version = self.notes.get(VERSION)
        return version if isinstance(version, str) else None

    @property
    def inherited_notes(self) -> Mapping[str, Any]:
        """The notes that hold for datasets made of this one too: all but its version."""
        return {key: note for key, note in self.notes.items() if key != VERSION}

    @property
    def steps(self) -> int:
        """Steps of all shards."""
        return sum(shard.steps for shard in self.shards)

    @property
    def trajectories(self) -> int:
        """Trajectories of all shards."""
        return sum(shard.trajectories for shard in self.shards)

    @property
    def bytes(self) -> int:
        """Bytes of all shards' files."""
        return sum(shard.bytes for shard in self.shards)

    @property
    def listed(self) -> set[str]:
        """Names of the complete shards."""
        return {shard.name for shard in self.shards}

    @property
    def by_name(self) -> dict[str, ShardRecord]:
        """The complete shards, by name."""
        return {shard.name: shard for shard in self.shards}

    @property
    def missing(self) -> list[str]:
        """Names of the planned shards that are not complete."""
        listed = self.listed
        return [name for name in self.planned if name not in listed]

    def with_shards(self, records: Sequence[ShardRecord]) -> Self:
        """Return the manifest with shards added or replaced, in the order of their names.

        The dataset has changed, so its version is no longer noted.
        """
        shards = {**self.by_name, **{record.name: record for record in records}}
        return replace(self, shards=[shards[name] for name in sorted(shards)], notes=self.inherited_notes)

    def without_shards(self, names: set[str]) -> Self:
        """Return the manifest without some shards; they stay planned."""
        return replace(self, shards=[shard for shard in self.shards if shard.name not in names])

    def difference(self, other: "Manifest") -> str | None:
        """Return why a shard of this dataset cannot join another one, in words; None if it can."""
        for key in ("id", "store", "codec"):
            there, wanted = getattr(self, key), getattr(other, key)
            if there != wanted:
                if key == "codec":
                    there, wanted = _codec_in_words(there), _codec_in_words(wanted)
                return f"its {key} is {_short(there)}, expected {_short(wanted)}"
        different = self.schema.difference(other.schema)
        return f"its {different}" if different else None

    def encode(self) -> builtins.bytes:
        """Return the content of ``rlx.json``: the same manifest always gives the same bytes."""
        described = {"format": "rlx", **{key: getattr(self, key) for key in _KEYS}}
        described["schema"] = self.schema.to_json()
        described["shards"] = []
        text = indented(described)
        if self.shards:
            shards = ",\n  ".join(shard.encode() for shard in self.shards)
            text = f"{text.removesuffix(_NO_SHARDS)}[\n  {shards}\n ]\n}}"
        return sealed(text)

    def save(self, dataset: Path) -> None:
        """Write ``rlx.json`` atomically."""
        write_file(dataset / FILE_NAME, [self.encode()])

    @classmethod
    def load(cls, dataset: Path) -> Self:
        """Read ``rlx.json``.

        Raises:
            DatasetNotFoundError: the directory does not exist, or is not a dataset.
            IncompleteDatasetError: it has shards, but no manifest yet.
            FormatVersionError: a newer rlx wrote it.
            CorruptDatasetError: it is damaged.
            FileAccessError: it cannot be read.
        """
        return cls.parse(read_file(dataset), dataset / FILE_NAME, hint=_repair(dataset))

    @classmethod
    def parse(cls, raw: builtins.bytes, path: Path | str, *, hint: str | None = None) -> Self:
        """Parse a manifest.

        Args:
            raw: content of the file.
            path: its name in messages.
            hint: how to fix a damaged one.

        Raises:
            FormatVersionError: a newer rlx wrote it.
            CorruptDatasetError: it is damaged.
        """
        try:
            with _no_collections():
                check_seal(raw)
                return cls.from_json(json.loads(raw), path)
        except SchemaMismatchError as exc:
            raise _damaged(path, "a schema", str(exc), hint) from exc
        except SealError as exc:
            raise _damaged(path, exc.expected, exc.found, hint) from exc
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
            raise _damaged(path, "a manifest", f"{type(exc).__name__}: {exc}", hint) from exc

    @classmethod
    def from_json(cls, described: Mapping[str, Any], path: Path | str) -> Self:
        """Return the manifest of parsed JSON; a wrong type or value raises an arbitrary exception."""
        version = described["format_version"]
        if version != FORMAT_VERSION:
            raise FormatVersionError(
                f"{path}: format version {version!r:.40}, expected {FORMAT_VERSION}", hint="pip install --upgrade rlx"
            )
        values = {key: described[key] for key in _KEYS}
        for key, kind in _TYPES.items():
            if not isinstance(values[key], kind):
                raise TypeError(f"{key} is {values[key]!r:.80}")
        check_id(values["id"])
        check_json(values["notes"], "notes")
        check_lineage(values["lineage"])
        shards = [ShardRecord.from_json(shard) for shard in described["shards"]]
        for name in described["planned"]:
            _check_shard_name(name)
        names = [shard.name for shard in shards]
        if names != sorted(set(names)):
            raise ValueError(f"shards {names}: expected each once, in order")
        return cls(**{**values, "shards": shards, "schema": Schema.from_json(described["schema"])})


def read_file(dataset: Path) -> bytes:
    """Return the content of ``rlx.json``; raises as ``Manifest.load``."""
    path = f"{dataset}/{FILE_NAME}"
    try:
        # Unbuffered: a list reads thousands of small files.
        with open(path, "rb", buffering=0, opener=at_once) as file:
            if (size := os.fstat(file.fileno()).st_size) > MAX_BYTES:
                raise _damaged(path, f"at most {MAX_BYTES:,} bytes", f"{size:,}", _repair(dataset))
            return file.readall()
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise _absent(dataset) from exc
    except IsADirectoryError as exc:
        raise _damaged(path, "a file", "a directory", _repair(dataset)) from exc
    except OSError as exc:
        raise file_error(exc, path) from exc


def _repair(dataset: Path) -> str:
    return command("rlx", "repair", dataset)


def _check_shard_name(name: str) -> None:
    if not _SHARD_NAME.fullmatch(name):
        raise ValueError(f"shard name {name!r}")


@contextmanager
def _no_collections() -> Iterator[None]:
    """Pause garbage collection: it takes half the time of reading thousands of shards, and frees nothing."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()


_TYPES = {"id": str, "store": str, "codec": dict, "notes": dict, "lineage": list, "planned": list}
_KEYS = ("format_version", "id", "store", "codec", "schema", "notes", "lineage", "planned", "shards")


def _codec_in_words(codec: Mapping[str, Any]) -> str:
    options = ",".join(f"{key}={value}" for key, value in codec.items() if key != "name")
    return f"{codec.get('name')}:{options}"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def _damaged(path: Path | str, expected: str, found: str, hint: str | None) -> CorruptDatasetError:
    return CorruptDatasetError(f"{path} is damaged: expected {expected}, found {_short(found)}", hint=hint)


# Suffixes of single files of other projects that rlx reads.
_CONVERTIBLE = frozenset({".npz", ".parquet", ".h5", ".hdf5", ".array_record"})


def _absent(dataset: Path) -> RlxError:
    if (dataset / "shards").is_dir() or (dataset / f"{FILE_NAME}{PARTIAL}").exists():
        return IncompleteDatasetError(
            f"{dataset} has no {FILE_NAME} yet: it is still being written, or its writing was interrupted",
            hint="run the interrupted command again to resume",
        )
    if dataset.is_file():
        is_convertible = dataset.suffix.lower() in _CONVERTIBLE
        return DatasetNotFoundError(
            f"no dataset at {dataset}: it is a file, and a dataset is a directory",
            hint=command("rlx", "convert", dataset, "DATASET") if is_convertible else "rlx list --local",
        )
    return DatasetNotFoundError(f"no dataset at {dataset}: expected {FILE_NAME} in it", hint="rlx list --local")
