"""Bringing a damaged dataset back to a whole one: what is broken is dropped, what is whole is kept."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlx import manifest
from rlx.errors import CorruptDatasetError
from rlx.home import locate
from rlx.manifest import Manifest
from rlx.progress import Progress
from rlx.store import lock
from rlx.store.layout import DAMAGED, SHARDS, shard_directory
from rlx.store.verification import UNLISTED, verify


@dataclass(frozen=True, slots=True)
class Repair:
    """What a repair did.

    Args:
        kept: names of the shards that are whole.
        dropped: names of the shards that were not, and are gone; they stay planned.
        removed: paths of the other files and directories that were removed, below the dataset's directory.
        lost_steps: steps of the dropped shards; none where the manifest was damaged, and nobody knows.
        hint: how to get back what was lost; none where nothing was.
    """

    kept: Sequence[str]
    dropped: Sequence[str]
    removed: Sequence[str]
    lost_steps: int | None
    hint: str | None


def repair(path: str | Path, *, progress: Progress | None = None) -> Repair:
    """Drops the shards that are not whole and removes what the manifest does not list.

    Without a manifest that can be believed nothing says what the shards hold and where they came from. So a damaged
    one is put aside as ``rlx.json.damaged``, and the command that wrote the dataset has to start afresh.

    Args:
        path: the dataset's directory, or its id.
        progress: is told of ``bytes``.

    Raises:
        DatasetNotFoundError: there is no dataset.
        IncompleteDatasetError: its writing has not come as far as a manifest.
        FormatVersionError: a newer rlx wrote it.
        DatasetLockedError: another process is writing it.
    """
    dataset = locate(path)
    if not (dataset / manifest.FILE_NAME).exists():
        Manifest.load(dataset)  # says what is missing, before a lock file is made where there is no dataset
    with lock.writing(dataset):
        try:
            listed = Manifest.load(dataset)
        except CorruptDatasetError:
            return _put_aside(dataset)
        problems = verify(dataset, progress=progress).problems
        broken = {problem.shard for problem in problems if problem.shard and problem.problem != UNLISTED}
        if broken:
            # The manifest first: a shard that it lists must never be missing.
            listed.without_shards(broken).save(dataset)
        for name in broken:
            _remove(shard_directory(dataset, name))
        unlisted = [found for found in problems if found.problem == UNLISTED and found.shard not in broken]
        removed = [f"{SHARDS}/{found.shard}/{found.file}" if found.shard else str(found.file) for found in unlisted]
        for name in removed:
            _remove(dataset / name)
    lost = sum(record.steps for record in listed.shards if record.name in broken)
    kept = [record.name for record in listed.shards if record.name not in broken]
    return Repair(kept, sorted(broken), removed, lost, _how_to_go_on(listed) if broken else None)


def _put_aside(dataset: Path) -> Repair:
    """Takes the damaged manifest's name away; its shards go when the dataset is written again."""
    (dataset / manifest.FILE_NAME).replace(dataset / DAMAGED)
    manifest.sync_directory(dataset)
    shards = dataset / SHARDS
    dropped = sorted(entry.name for entry in shards.iterdir()) if shards.is_dir() else []
    hint = f"run the command that wrote the dataset again; {dataset / DAMAGED} may still show it under lineage"
    return Repair([], dropped, [], None, hint)


def _how_to_go_on(listed: Manifest) -> str:
    commands = [made["command"] for made in listed.lineage if isinstance(made.get("command"), str)]
    return commands[-1] if commands else "run the command that wrote the dataset again; it does what is missing"


def _remove(path: Path) -> None:
    """Removes a file, a link or a whole directory."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
