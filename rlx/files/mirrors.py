"""The same files at several locations: each file comes from the first that has it unchanged."""

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rlx.errors import CorruptShardError, DownloadError, SourceError
from rlx.files.beneath import beneath
from rlx.files.checksum import FetchedFile, FileStat
from rlx.files.location import Location, checked_name
from rlx.files.partial import Partial
from rlx.files.retry import Cancel
from rlx.progress import Progress

logger = logging.getLogger(__name__)
_CHECKSUMS = ("crc32c", "md5", "sha256")


class Mirrors:
    """Several locations of the same files, tried in order.

    A location is passed over for a file that it lacks, refuses, or has in another version than the others. The right
    version is that of the first location that states a checksum, ``trusted`` ones first. A location that stops
    answering is tried last from then on.

    Args:
        locations: at least one, in the order of preference.
        trusted: of these, those whose checksums decide.
    """

    def __init__(self, locations: Sequence[Location], *, trusted: Sequence[Location] = ()) -> None:
        self._locations = list(locations)
        self._trusted = list(trusted)
        self._lock = threading.Lock()
        self._silent: list[Location] = []
        self._answers: dict[str, list[tuple[Location, FileStat | SourceError]]] = {}
        self._served: dict[str, Location] = {}
        self._refused: dict[str, list[Location]] = {}

    def __repr__(self) -> str:
        return f"Mirrors({self._locations!r})"

    @property
    def url(self) -> str:
        """URL of the first location."""
        return self._locations[0].url

    def stat(self, name: str, *, cancel: Cancel | None = None) -> FileStat:
        """Return the metadata of a file, of the first location that has it unchanged."""
        if len(self._locations) == 1:
            return self._locations[0].stat(name, cancel=cancel)
        answers = self._asked(name, cancel)
        expected = self._expected(answers)
        for _, answer in answers:
            if isinstance(answer, FileStat) and (expected is None or not _difference(answer, expected)):
                return answer
        raise next(answer for _, answer in answers if isinstance(answer, SourceError))

    def fetch(self, name: str, directory: Path, progress: Progress, *, cancel: Cancel | None = None) -> FetchedFile:
        """Copy a file below a directory, from the first location that delivers it unchanged; see ``Location.fetch``."""
        if len(self._locations) == 1:  # nothing to compare, so one request suffices
            return self._locations[0].fetch(name, directory, progress, cancel=cancel)
        answers = self._asked(name, cancel)
        refused = self._refused.get(name, [])
        # The checksum of a file that turned out to be damaged says nothing of the others.
        expected = self._expected([answer for answer in answers if answer[0] not in refused])
        errors: list[SourceError] = []
        for location, answer in answers:
            if location in refused:
                continue
            try:
                if isinstance(answer, SourceError):
                    raise answer
                if expected is not None and (different := _difference(answer, expected)):
                    raise CorruptShardError(f"{answer.url} has changed: {different} as at {expected.url}")
                fetched = self._fetch(location, name, directory, progress, answer, expected, cancel)
            except SourceError as exc:
                errors.append(exc)
                if isinstance(exc, DownloadError):
                    self._demote(location)
                logger.warning("%s", exc)
            else:
                self._served[name] = location
                if errors:
                    logger.warning("%s comes from %s instead", name, location.url)
                return fetched
        raise errors[0]

    def served(self, name: str) -> str:
        """Return the URL of the location that a fetched file came from."""
        return self._served.get(name, self._locations[0]).url

    def refuse(self, name: str) -> bool:
        """Note that a fetched file turned out to be damaged; return whether another location may have it intact."""
        if name not in self._served:  # there is one location, or the file was here before
            return False
        refused = self._refused.setdefault(name, [])
        refused.append(self._served.pop(name))
        # Of those that were asked: no other is asked for this file again.
        return any(location not in refused for location, _ in self._answers.get(name, ()))

    def _fetch(
        self,
        location: Location,
        name: str,
        directory: Path,
        progress: Progress,
        found: FileStat,
        expected: FileStat | None,
        cancel: Cancel | None,
    ) -> FetchedFile:
        with Partial(beneath(directory, checked_name(name))) as partial:
            begun = partial.expected
            # The beginning of another location's file: without a checksum, a difference would not be noticed.
            if begun is not None and begun.url != found.url and not begun.has_checksum:
                partial.discard()
        if expected is None or not expected.has_checksum or _share_a_checksum(found, expected):
            return location.fetch(name, directory, progress, cancel=cancel)
        wanted = replace(expected, url=found.url, etag=None, version=None, modified=None)
        return location.fetch(name, directory, progress, expected=wanted, cancel=cancel)

    def _asked(self, name: str, cancel: Cancel | None) -> list[tuple[Location, FileStat | SourceError]]:
        """Return each location's metadata of a file, in the order to try them."""
        with self._lock:
            known = self._answers.get(name)
            order = [*(one for one in self._locations if one not in self._silent), *self._silent]
        if known is None:
            known = []
            for location in order:
                # Whoever has stopped answering is asked again only where nobody else has the file.
                if location in self._silent and any(isinstance(answer, FileStat) for _, answer in known):
                    continue
                try:
                    known.append((location, location.stat(name, cancel=cancel)))
                except SourceError as exc:
                    # Without its frames, which lead back to this object.
                    known.append((location, exc.with_traceback(None)))
                    if isinstance(exc, DownloadError):
                        self._demote(location)
            with self._lock:
                self._answers[name] = known
        return sorted(known, key=lambda answer: answer[0] in self._silent)

    def _expected(self, answers: Sequence[tuple[Location, FileStat | SourceError]]) -> FileStat | None:
        stats = [(location, answer) for location, answer in answers if isinstance(answer, FileStat)]
        stats.sort(key=lambda answer: (answer[0] not in self._trusted, not answer[1].has_checksum))
        checked = [stat for _, stat in stats if stat.has_checksum]
        return next(iter(checked or [stat for _, stat in stats]), None)

    def _demote(self, location: Location) -> None:
        with self._lock:
            if location not in self._silent:
                self._silent.append(location)


def _difference(found: FileStat, expected: FileStat) -> str | None:
    """Return how the bytes at two locations differ; their etags and versions are their own affair."""
    for key in ("bytes", *_CHECKSUMS):
        mine, theirs = getattr(found, key), getattr(expected, key)
        if mine is not None and theirs is not None and mine != theirs:
            return f"{key} {mine}, expected {theirs}"
    return None


def _share_a_checksum(found: FileStat, expected: FileStat) -> bool:
    """Return whether both have a checksum of the same kind, so that they were compared by it."""
    return any(getattr(found, key) and getattr(expected, key) for key in _CHECKSUMS)
