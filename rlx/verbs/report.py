"""The destination of a command that writes: the check before, and the report after."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from rlx import manifest
from rlx.errors import (
    DatasetExistsError,
    DatasetNotFoundError,
    IncompleteDatasetError,
    PartialError,
    RlxError,
    SourceError,
)
from rlx.formats.common.fields import not_taken
from rlx.formats.common.skipping import HINT, LeftOut
from rlx.manifest import Manifest
from rlx.store.layout import NEW
from rlx.wording import RESUME, plural

FROM = "from"  # the URL that a command's files came from; the files themselves are compared, not the URL
RECIPE = "recipe"  # the entry of a lineage for transforms


class Counted:
    """A report of something written, with its counts."""

    __slots__ = ()
    shards: int
    steps: int
    trajectories: int
    bytes: int
    seconds: float
    skipped_shards: int

    @property
    def steps_per_second(self) -> float:
        """Steps written by this call, per second."""
        written: int = getattr(self, "steps_written", self.steps)
        return round(written / self.seconds, 1) if self.seconds else 0.0

    def _counts(self) -> dict[str, Any]:
        names = ("shards", "steps", "trajectories", "bytes", "seconds", "steps_per_second", "skipped_shards")
        return {name: getattr(self, name) for name in names} | {"seconds": round(self.seconds, 3)}


@dataclass(frozen=True, slots=True)
class Report(Counted):
    """The dataset that a function has written.

    Args:
        dataset: directory of the dataset.
        id: name of the dataset.
        store: ``zarr`` or ``memmap``.
        shards: number of complete shards.
        steps: steps of all complete shards.
        trajectories: trajectories of all complete shards.
        bytes: bytes of all complete shards.
        seconds: duration of the call.
        steps_written: steps that this call has written.
        skipped_shards: number of shards that were complete before.
        failures: error of each shard that failed, by its name.
        not_taken: reason for each entry of the source's files that is not in the dataset.
        remarks: number of steps by remark on what an environment gave, such as ``observation: outside its space``.
        left_out: the episodes of the source's files that could not be read, with ``on_error="skip"``.
    """

    dataset: Path
    id: str
    store: str
    shards: int
    steps: int
    trajectories: int
    bytes: int
    seconds: float
    steps_written: int
    skipped_shards: int = 0
    failures: Mapping[str, SourceError] = field(default_factory=dict)
    not_taken: Mapping[str, str] = field(default_factory=dict)
    remarks: Mapping[str, int] = field(default_factory=dict)
    left_out: LeftOut = field(default_factory=LeftOut)

    @classmethod
    def of(
        cls,
        dataset: Path,
        listed: Manifest,
        seconds: float,
        steps_written: int,
        *,
        skipped_shards: int = 0,
        failures: Mapping[str, SourceError] | None = None,
        remarks: Mapping[str, int] | None = None,
    ) -> Self:
        """Return the report of a dataset whose manifest is now ``listed``."""
        return cls(
            dataset,
            listed.id,
            listed.store,
            len(listed.shards),
            listed.steps,
            listed.trajectories,
            listed.bytes,
            seconds,
            steps_written,
            skipped_shards,
            failures or {},
            not_taken(listed.notes),
            remarks or {},
            LeftOut.noted(listed.notes),
        )

    @property
    def failed_shards(self) -> list[str]:
        """Names of the shards that failed, in order."""
        return sorted(self.failures)

    @property
    def error(self) -> RlxError | None:
        """The error of the shards that failed; None if none did.

        A ``PartialError`` if some shards are complete, otherwise the error of the first shard.
        """
        if not self.failures:
            return None
        if not self.shards:
            return self.failures[self.failed_shards[0]]
        failed = f"{plural(len(self.failures), 'shard')} failed: {', '.join(self.failed_shards)}"
        return PartialError(f"{self.id}: {failed}", hint=self.remedy)

    @property
    def remedy(self) -> str:
        """The hint for shards that failed."""
        if self.dataset.name == NEW:  # which was to replace the dataset around it
            return f"{self.dataset.parent} is unchanged; run the same command again to replace it"
        return f"{RESUME}; {HINT}" if any(error.hint == HINT for error in self.failures.values()) else RESUME

    def raise_for_failures(self) -> Self:
        """Return the report itself, or raise its ``error`` if shards failed."""
        if (error := self.error) is not None:
            raise error
        return self

    def to_json(self) -> dict[str, Any]:
        """Return the keys that scripts rely on."""
        return {
            "dataset": str(self.dataset),
            "id": self.id,
            "store": self.store,
            **self._counts(),
            "failed_shards": self.failed_shards,
            "not_taken": dict(self.not_taken),
            **({"remarks": dict(self.remarks)} if self.remarks else {}),
            **self.left_out.note(),
            **({} if self.error is None else {"error": self.error.to_json()}),
        }


def check_apart(source: Path, destination: Path) -> None:
    """Raise DatasetExistsError if writing the destination could remove or change the source.

    A destination below a directory of raw files is fine, one inside another dataset is not.
    """
    holds_source, is_held = holds(destination, source), holds(source, destination)
    if holds_source and is_held:
        raise DatasetExistsError(f"{destination} is the source itself; expected another directory")
    if holds_source:
        raise DatasetExistsError(f"{destination} contains the source, {source}; expected another directory")
    if is_held and (source / manifest.FILE_NAME).exists():
        raise DatasetExistsError(f"{destination} is inside the source, {source}; expected another directory")


def bytes_at(path: Path) -> int:
    """Return the size of a file, or of all files below a directory."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def manifest_at(destination: Path) -> Manifest | None:
    """Return the manifest of the dataset at a destination; None if no dataset was begun there."""
    try:
        return Manifest.load(destination)
    except (DatasetNotFoundError, IncompleteDatasetError):
        return None


def other_work(there: Manifest, described: Manifest, *, of_parents: bool) -> str | None:
    """Return how the last command of a dataset's lineage differs from the one that is to resume it, in words."""
    made, wanted = there.lineage[-1] if there.lineage else {}, described.lineage[-1]
    if made.keys() - wanted.keys() - {FROM}:
        return f"by {made.get('command') or 'another function'}"
    pairs = [("source", made.get("parents"), wanted["parents"])] if of_parents else []
    for key in wanted.keys() - {"command", "rlx", "parents", FROM}:
        found, expected = made.get(key), wanted[key]
        if isinstance(found, dict) and key == RECIPE:
            pairs += [(part, found.get(part), expected.get(part)) for part in {**found, **expected}]
        else:
            pairs.append((key, found, expected))
    return next((f"its {key} is {found}, expected {wanted}" for key, found, wanted in pairs if found != wanted), None)


def clash(one: Path, other: Path) -> bool:
    """Return whether a directory is another one or inside it, also if they do not exist yet."""
    if holds(one, other) or holds(other, one):
        return True
    first, second = (Path(str(path.resolve()).casefold()) for path in (one, other))
    if not (first.is_relative_to(second) or second.is_relative_to(first)):
        return False
    # Only the file system knows whether it ignores case: created for a moment, they show.
    absent = [path for path in (one, *one.parents) if not path.exists()]
    try:
        one.mkdir(parents=True, exist_ok=True)
        return holds(one, other) or holds(other, one)
    finally:
        for path in absent:
            with suppress(OSError):  # another process writes there now
                path.rmdir()


def holds(directory: Path, path: Path) -> bool:
    """Return whether a path is a directory, or below it.

    Names are not enough: a file system may ignore the case of letters, or have a directory in two places.
    """
    place, root = path.resolve(), directory.resolve()
    if place.is_relative_to(root) or any(_is_same(root, parent) for parent in (place, *place.parents)):
        return True
    if not Path(str(place).casefold()).is_relative_to(str(root).casefold()):
        return False
    # Some file systems that ignore case give a directory another number for each spelling.
    return _as_listed(place).is_relative_to(_as_listed(root))


def _is_same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them is not there, or nobody may look
        return False


def _as_listed(path: Path) -> Path:
    """Return a path as its directories spell it, where they list it in another case only."""
    listed = Path(path.anchor)
    for part in path.parts[1:]:
        try:
            names = os.listdir(listed)
        except OSError:  # it is not there, or nobody may look
            names = []
        alike = [name for name in names if name.casefold() == part.casefold()]
        listed /= part if part in names or len(alike) != 1 or not (listed / part).exists() else alike[0]
    return listed
