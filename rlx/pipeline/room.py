"""Whether the disk has room for what is to come."""

import shutil
from pathlib import Path

from rlx.errors import DiskFullError


def check_room(destination: Path, needed: int) -> None:
    """Raises DiskFullError unless the destination's disk has so many bytes free.

    Args:
        destination: a directory, existing or to be.
        needed: an estimate in bytes.
    """
    existing = next(parent for parent in (destination.absolute(), *destination.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise DiskFullError(
            f"no room for {destination}: expected about {needed:,} bytes free, found {free:,}",
            hint="free some room, choose another directory with -o, or take fewer shards with --shards",
        )
