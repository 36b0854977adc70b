"""What a power cut leaves of a directory, by the record of every change of it that ``calls.c`` writes.

The disk has of a file what was last synced, and of a directory the names that were last synced; anything later may be
there or not. ``states`` gives, after every change, what is left if nothing later is there, if all names are there but
no later bytes, and, at random, if names are there as they were at a moment and bytes as far as some other.
"""

import random
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_HEADER = struct.Struct("<QQQIII")


@dataclass(slots=True)
class _File:
    """A file: its bytes, those that are synced, and its later states."""

    now: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    later: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class _Directory:
    """A directory: what its names mean, the same as it was synced, and later, each with the number of the change."""

    now: dict[str, int] = field(default_factory=dict)
    synced: dict[str, int] = field(default_factory=dict)
    later: list[tuple[int, dict[str, int]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Change:
    """One record.

    Args:
        kind: C: create a file; M: make a directory; W: write; T: truncate; S: sync; U: remove; R: rename; L: link.
        inode: of what is created, made, written, cut or synced.
        other: the new name of what is renamed or linked.
        offset: where it is written, or the new length.
    """

    kind: str
    inode: int
    path: str
    other: str
    offset: int
    data: bytes


def changes(recorded: Path) -> Iterator[Change]:
    """The changes of a record."""
    raw, at = recorded.read_bytes(), 0
    while at < len(raw):
        inode, offset, length, kind, path, other = _HEADER.unpack_from(raw, at)
        at += _HEADER.size
        names = raw[at : at + path].decode(), raw[at + path : at + path + other].decode()
        at += path + other
        stored = length if chr(kind) == "W" else 0
        yield Change(chr(kind), inode, *names, offset, raw[at : at + stored])
        at += stored


class Disk:
    """A directory, empty at first and on the disk, to which changes are applied."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._number = 0
        self._top = root.stat().st_ino
        self._nodes: dict[int, _File | _Directory] = {self._top: _Directory()}

    def _directory(self, path: str) -> tuple[_Directory, str]:
        """The directory that has a name, and the name in it."""
        *parts, name = Path(path).relative_to(self._root).parts
        node = self._nodes[self._top]
        for part in parts:
            assert isinstance(node, _Directory)
            node = self._nodes[node.now[part]]
        assert isinstance(node, _Directory)
        return node, name

    def apply(self, change: Change) -> None:
        """Apply a change; those of files elsewhere are left out."""
        self._number += 1
        match change.kind:
            case "C" | "M":
                self._nodes[change.inode] = _File() if change.kind == "C" else _Directory()
                self._rename(change.path, change.inode)
            case "U":
                self._rename(change.path, None)
            case "R":
                directory, name = self._directory(change.path)
                inode = directory.now[name]
                self._rename(change.path, None)
                self._rename(change.other, inode)
            case "L":
                self._rename(change.other, self._linked(Path(change.path)))
            case "S":
                node = self._nodes.get(change.inode)
                if isinstance(node, _File):
                    node.synced, node.later = bytes(node.now), []
                elif node is not None:
                    node.synced, node.later = dict(node.now), []
            case "W" | "T":
                node = self._nodes.get(change.inode)
                if isinstance(node, _File):
                    end = change.offset + len(change.data)
                    if change.kind == "T":
                        del node.now[change.offset :]
                    node.now.extend(bytes(max(0, end - len(node.now))))
                    node.now[change.offset : end] = change.data
                    node.later.append(bytes(node.now))

    def _linked(self, path: Path) -> int:
        """The inode of a file to link, which is on the disk if it is elsewhere."""
        if path.is_relative_to(self._root):
            directory, name = self._directory(str(path))
            return directory.now[name]
        content, inode = path.read_bytes(), path.stat().st_ino
        self._nodes.setdefault(inode, _File(bytearray(content), content))
        return inode

    def _rename(self, path: str, inode: int | None) -> None:
        directory, name = self._directory(path)
        if inode is None:
            del directory.now[name]
        else:
            directory.now[name] = inode
        directory.later.append((self._number, dict(directory.now)))

    def left(self, place: Path, kind: str, dice: random.Random) -> None:
        """Write what a power cut now leaves: ``nothing`` later, all ``names``, or ``some`` of both."""
        moment = dice.randint(0, self._number)
        shutil.rmtree(place, ignore_errors=True)
        self._write(place, self._top, kind, moment, dice)

    def _write(self, place: Path, inode: int, kind: str, moment: int, dice: random.Random) -> None:
        node = self._nodes[inode]
        if isinstance(node, _File):
            is_later = kind == "some" and node.later and dice.random() < 0.5
            place.write_bytes(dice.choice(node.later) if is_later else node.synced)
            return
        place.mkdir()
        names = node.synced
        if kind == "names":
            names = node.now
        elif kind == "some":
            names = next((then for number, then in reversed(node.later) if number <= moment), node.synced)
        for name, each in names.items():
            self._write(place / name, each, kind, moment, dice)


KINDS = ("nothing", "names", "some")
