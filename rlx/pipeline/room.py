"""Check of the free disk space before writing."""

import shutil
from pathlib import Path

from rlx.errors import DiskFullError


def check_room(destination: Path, needed: int, *, remedy: str = "choose another directory with -o") -> None:
    """Raise DiskFullError unless the destination's disk has ``needed`` bytes free.

    Args:
        destination: a directory, existing or to be.
        needed: an estimate in bytes.
        remedy: what helps but to free some room.
    """
    existing = next(parent for parent in (destination.absolute(), *destination.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise DiskFullError(
            f"no room for {destination}: expected about {needed:,} bytes free, found {free:,}",
            hint=f"free some room, or {remedy}",
        )
