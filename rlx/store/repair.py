"""Repair: drops the damaged shards of a dataset and keeps the intact ones."""

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlx import manifest
from rlx.errors import CorruptDatasetError
from rlx.files import lock
from rlx.files.beneath import beneath, remove
from rlx.files.disk import disk_errors
from rlx.files.durable import sync
from rlx.home import locate
from rlx.manifest import Manifest
from rlx.progress import Progress
from rlx.store.layout import ASIDE, DAMAGED, SHARDS, settle
from rlx.store.verification import Kind, Problem, verify


@dataclass(frozen=True, slots=True)
class Repair:
    """The result of a repair.

    Args:
        dataset: its directory.
        kept: names of the shards that are still listed: complete ones, and those that cannot be read.
        dropped: names of the damaged shards, which are no longer listed, but still planned.
        removed: paths of the other files and directories that were removed, below the dataset's directory.
        lost_steps: steps of the dropped shards; None if unknown, because the manifest was damaged.
        hint: how to restore the lost steps; None if no steps were lost.
        aside: the directory of moved files: damaged shards, and files that are not part of the dataset; None where they
            were deleted, or none were found.
        unreadable: files that cannot be read, and may be damaged; they are unchanged.
    """

    dataset: Path
    kept: Sequence[str]
    dropped: Sequence[str]
    removed: Sequence[str]
    lost_steps: int | None
    hint: str | None
    aside: Path | None = None
    unreadable: Sequence[Problem] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the keys that scripts rely on."""
        aside = None if self.aside is None else str(self.aside)
        return {**asdict(self), "dataset": str(self.dataset), "aside": aside}


def repair(path: str | Path, *, delete: bool = False, progress: Progress | None = None) -> Repair:
    """Drop damaged shards, and move aside or delete unlisted files.

    Only shards with damage that was read are dropped: one with an unreadable file stays. Dropped shards are moved to
    ``.damaged/`` in the dataset's directory; partial output of interrupted commands is removed.

    Without an intact manifest it is unknown what the shards hold and where they came from. So a damaged one is put
    aside as ``rlx.json.damaged``, and the command that wrote the dataset has to start afresh.

    Args:
        delete: whether to delete dropped files instead of moving them.
    """
    dataset = locate(path)
    if not (dataset / manifest.FILE_NAME).exists():
        Manifest.load(dataset)  # raises before a lock file is created where no dataset exists
    with lock.writing(dataset), disk_errors(dataset):
        settle(dataset)
        try:
            listed = Manifest.load(dataset)
        except CorruptDatasetError:
            return _put_aside(dataset, delete=delete)
        found = verify(dataset, progress=progress)
        unreadable = {problem.shard for problem in found.unreadable}
        damaged = {problem.shard for problem in found.problems if problem.kind is Kind.DAMAGED}
        dropped = sorted(name for name in damaged - unreadable if name is not None)
        if dropped:
            # The manifest first: a shard that it lists must never be missing.
            listed.without_shards(set(dropped)).save(dataset)
        cleared = _clear(dataset, [f"{SHARDS}/{name}" for name in dropped], delete=delete)
        foreign = [
            f"{SHARDS}/{problem.shard}/{problem.file}" if problem.shard else str(problem.file)
            for problem in found.problems
            if problem.kind is Kind.UNLISTED
        ]
        leftovers = _clear(dataset, found.leftovers, delete=True)
        foreign = _clear(dataset, foreign, delete=delete)
    return Repair(
        dataset,
        kept=[record.name for record in listed.shards if record.name not in dropped],
        dropped=dropped,
        removed=[*leftovers, *foreign],
        lost_steps=sum(record.steps for record in listed.shards if record.name in dropped),
        hint=_how_to_go_on(listed) if dropped else None,
        aside=dataset / ASIDE if (cleared or foreign) and not delete else None,
        unreadable=found.unreadable,
    )


def _put_aside(dataset: Path, *, delete: bool) -> Repair:
    (dataset / manifest.FILE_NAME).replace(dataset / DAMAGED)
    sync(dataset)
    shards = dataset / SHARDS
    dropped = sorted(entry.name for entry in shards.iterdir()) if shards.is_dir() else []
    cleared = _clear(dataset, [f"{SHARDS}/{name}" for name in dropped], delete=delete)
    hint = f"run the command that wrote the dataset again; {dataset / DAMAGED} may still show it under lineage"
    return Repair(dataset, [], dropped, [], None, hint, dataset / ASIDE if cleared and not delete else None)


def _how_to_go_on(listed: Manifest) -> str:
    commands = [made["command"] for made in listed.lineage if str(made.get("command")).startswith("rlx ")]
    if commands and commands[-1].startswith("rlx collect ") and "--resume" not in commands[-1].split():
        return f"{commands[-1]} --resume"  # without it, collect refuses to write to what is there
    return commands[-1] if commands else "run the command that wrote the dataset again; it does what is missing"


def _clear(dataset: Path, names: Sequence[str], *, delete: bool) -> list[str]:
    """Delete files and directories, or move them below ``.damaged/``; return those that were there."""
    there = [name for name in names if _exists(beneath(dataset, name))]
    for name in there:
        path = beneath(dataset, name)
        if delete:
            remove(path)
        else:
            path.rename(_free(beneath(dataset, f"{ASIDE}/{name}")))
    return there


def _free(wanted: Path) -> Path:
    wanted.parent.mkdir(parents=True, exist_ok=True)
    numbered = (wanted.with_name(f"{wanted.name}.{number}") for number in itertools.count(1))
    return next(path for path in itertools.chain([wanted], numbered) if not _exists(path))


def _exists(path: Path) -> bool:
    return path.exists() or path.is_symlink()
