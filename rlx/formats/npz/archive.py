"""An archive of numpy's arrays, read array by array and row by row; nothing of it is unpickled."""

import math
import struct
import zipfile
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from rlx.errors import CorruptShardError
from rlx.files.disk import check_readable
from rlx.formats.common.fields import RowType
from rlx.formats.common.npy import NpyStream
from rlx.formats.common.provenance import read_notes
from rlx.formats.common.rows.episodes import Batch
from rlx.formats.common.source import MalformedError, damage

SUFFIX = ".npy"
GROUP = "trajectories/"
FINAL = f"{GROUP}final/"
# Columns of the table of trajectories, each with the kinds of numbers it may have.
TABLE: Mapping[str, str] = {"length": "iu", "episode": "iu", "from_reset": "b", "final_recorded": "b", "cut": "b"}
LAYOUT = (
    "expected arrays of one row per step: observation [S, ...], action [S, ...], next/reward [S], next/terminated [S], "
    f"next/truncated [S]; and perhaps of one row per trajectory: trajectories/{', trajectories/'.join(TABLE)}"
)


_MAX_MEMBERS = 1000
_MAX_BATCH_BYTES = 2**24
_FAILURES = (zipfile.BadZipFile, OSError, EOFError, RuntimeError, ValueError, KeyError, zlib.error, struct.error)


class Archive:
    """An open archive; every failure names it."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path = path
        self._archive = archive
        infos = archive.infolist()
        if len(infos) > _MAX_MEMBERS:
            raise CorruptShardError(f"{path}: expected at most {_MAX_MEMBERS:,} arrays, found {len(infos):,}")
        self._infos = {info.filename.removesuffix(SUFFIX): info for info in infos if info.filename.endswith(SUFFIX)}
        self._bytes = path.stat().st_size
        self.others = [info.filename for info in infos if not info.filename.endswith(SUFFIX)]

    @property
    def names(self) -> Sequence[str]:
        """Names of its arrays."""
        return list(self._infos)

    def type_of(self, name: str) -> tuple[RowType | None, tuple[int, ...]]:
        """Return dtype and shape of an array; no dtype where its values are neither numbers nor text."""
        try:
            with self.member(name) as member:
                return member.kind, member.shape
        except CorruptShardError as exc:
            if isinstance(exc.__cause__, MalformedError):
                return None, ()
            raise

    def member(self, name: str) -> NpyStream:
        """Return an array, to be read from its first row on."""
        info = self._infos[name]
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise self.wrong(name, "an array that is stored or deflated", f"compression {info.compress_type}")
        with damage(f"{self.path}: {name}", *_FAILURES):
            file = self._archive.open(info)
        return NpyStream(f"{self.path}: {name}", file, self._bytes, text=True)

    def whole(self, name: str) -> NDArray[Any]:
        """Return a small array."""
        with self.member(name) as member:
            rows = member.read(member.count)
            member.finish()
            return rows

    def batches(self, names: Sequence[str], size: int) -> Generator[Batch, None, None]:
        """Yield rows of several arrays, at most ``size`` of each at a time."""
        with ExitStack() as stack:
            members = {name: stack.enter_context(self.member(name)) for name in dict.fromkeys(names)}
            rows = next(iter(members.values())).count
            # Texts may be long, and a schema does not say how long.
            widest = max(member.dtype.itemsize * math.prod(member.shape[1:]) for member in members.values())
            size = max(1, min(size, _MAX_BATCH_BYTES // max(1, widest)))
            for start in range(0, rows, size):
                yield {name: member.read(min(size, rows - start)) for name, member in members.items()}
            for member in members.values():
                member.finish()

    def notes(self) -> Mapping[str, Any]:
        """Return the notes that rlx wrote."""
        return read_notes(self._archive.comment)

    def wrong(self, name: str, expected: str, found: str) -> CorruptShardError:
        """Return the error that an array is not as it should be."""
        return CorruptShardError(f"{self.path}: {name}: expected {expected}, found {found}")


@contextmanager
def opened(path: Path) -> Iterator[Archive]:
    """Yield the open archive."""
    check_readable(path)
    with damage(str(path), *_FAILURES):
        archive = zipfile.ZipFile(path)
    with archive:
        yield Archive(path, archive)
