"""Replacement of a dataset: the new one is written into ``.new`` and takes the place of the old one when complete.

Shards of both have the same names. So the new ones first move below ``shards/`` under other names, and one replacement
of the manifest switches to them; then they get their own names by hard links, and a second replacement of the manifest
lists these. Whoever reads the directory, at any moment, finds the old dataset or the new one.
"""

import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path

from rlx import manifest
from rlx.errors import DatasetError
from rlx.files.atomic import remove, sync, sync_tree
from rlx.files.disk import is_there
from rlx.manifest import Manifest
from rlx.store.layout import NEW, SHARDS, SWEPT

logger = logging.getLogger(__name__)


def discard(path: Path) -> None:
    """Remove what an interrupted replacement of a dataset left."""
    swept = path / SWEPT
    remove(swept)
    if is_there(path / NEW):
        # Renamed first: a worker that outlives its killed writer for a moment could add a file meanwhile.
        shutil.rmtree((path / NEW).rename(swept))


def abandon(path: Path) -> None:
    """Remove what there is of a new dataset, unless shards of it are listed; those are kept, and named."""
    place = path / NEW
    if not is_there(place / manifest.FILE_NAME):
        discard(path)
    elif not _is_listed(path, _renamed(Manifest.load(place))):
        logger.warning("%s is unchanged; finished shards of the new dataset are in %s", path, place)


def take_place(path: Path) -> None:
    """Replace a dataset, which the caller has claimed, by the complete one in its ``.new``."""
    listed = Manifest.load(path / NEW)
    under_other_names = _renamed(listed)
    (path / SHARDS).mkdir(exist_ok=True)
    try:
        for record, renamed in zip(listed.shards, under_other_names.shards, strict=True):
            (path / NEW / SHARDS / record.name).rename(path / SHARDS / renamed.name)
        sync(path / SHARDS)
        under_other_names.save(path)
    except BaseException:
        settle(path)
        raise
    _name(path, listed)


def settle(path: Path) -> None:
    """Finish, or undo, the last step of a replacement that was interrupted in it."""
    if not is_there(path / NEW / manifest.FILE_NAME):
        return
    listed = Manifest.load(path / NEW)
    under_other_names = _renamed(listed)
    if listed.shards and _is_listed(path, under_other_names):
        _name(path, listed)
        return
    if _is_listed(path, listed):
        _keep(path / SHARDS, listed)
        discard(path)
        return
    for record, renamed in zip(listed.shards, under_other_names.shards, strict=True):
        if is_there(moved := path / SHARDS / renamed.name):
            moved.rename(path / NEW / SHARDS / record.name)


def _renamed(listed: Manifest) -> Manifest:
    """Return the manifest with names that no command gives to shards, in the same order."""
    names = {record.name: f"new-{number:08d}" for number, record in enumerate(listed.shards)}
    shards = [replace(record, name=names[record.name]) for record in listed.shards]
    return replace(listed, shards=shards, planned=[names.get(name, name) for name in listed.planned])


def _is_listed(path: Path, wanted: Manifest) -> bool:
    try:
        return list(Manifest.load(path).shards) == list(wanted.shards)
    except DatasetError:
        return False  # a damaged manifest, which is not the new one's


def _name(path: Path, listed: Manifest) -> None:
    """Give the shards of a new dataset, which is in its place, their own names."""
    under_other_names = _renamed(listed)
    _keep(path / SHARDS, under_other_names)
    for record, renamed in zip(listed.shards, under_other_names.shards, strict=True):
        linked = path / SHARDS / f"{record.name}.partial"
        shutil.copytree(path / SHARDS / renamed.name, linked, copy_function=_link)
        sync_tree(linked)
        linked.rename(path / SHARDS / record.name)
    sync(path / SHARDS)
    listed.save(path)
    _keep(path / SHARDS, listed)
    discard(path)


def _link(file: str, name: str) -> None:
    try:
        os.link(file, name)
    except OSError:  # a file system without hard links
        shutil.copyfile(file, name)


def _keep(shards: Path, listed: Manifest) -> None:
    """Remove the shards that a manifest does not list."""
    names = listed.listed
    for entry in shards.iterdir():
        if entry.is_dir() and entry.name not in names:
            # Renamed first: NFS and FUSE keep directories whose files somebody reads, and others need the name.
            swept = entry if entry.suffix == ".swept" else entry.with_name(f"{entry.name}.{os.getpid()}.swept")
            shutil.rmtree(entry.rename(swept), ignore_errors=True)
