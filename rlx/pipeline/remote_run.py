"""A run whose files lie on a server: which layout they have, and what is known of them before they are fetched."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rlx.errors import DownloadError, ForbiddenError, SourceNotFoundError
from rlx.progress import Progress
from rlx.source.base import Base, FileStat
from rlx.source.dopamine import DopamineLayout
from rlx.source.protocol import Layout
from rlx.source.rl_unplugged import RLUnpluggedLayout

_REQUESTS = 8


@dataclass(frozen=True, slots=True)
class RemoteRun:
    """One run on a server.

    Args:
        base: where its files lie.
        layout: how they are named.
        growth: bytes of a dataset in the default codec for each byte of the files, rounded up from what was measured.
    """

    base: Base
    layout: Layout
    growth: float

    def fetch_index(self, directory: Path, progress: Progress) -> list[str]:
        """Fetches the small files that the run is planned from; returns the names of those that there are."""

        def fetch(name: str) -> str | None:
            try:
                self.base.fetch(name, directory, progress)
            except SourceNotFoundError:
                return None
            return name

        with ThreadPoolExecutor(_REQUESTS) as requests:
            return [name for name in requests.map(fetch, self.layout.index_files()) if name is not None]

    def stats(self, names: Sequence[str]) -> dict[str, FileStat]:
        """What the server says of files; those that it fails to tell of are left out.

        Raises:
            SourceNotFoundError: it has none of them.
            ForbiddenError: it refuses.
        """

        def ask(name: str) -> FileStat | SourceNotFoundError | DownloadError:
            try:
                return self.base.stat(name)
            except (SourceNotFoundError, DownloadError) as exc:
                return exc

        with ThreadPoolExecutor(_REQUESTS) as requests:
            answers = dict(zip(names, requests.map(ask, names), strict=True))
        missing = [answer for answer in answers.values() if isinstance(answer, SourceNotFoundError)]
        if missing and len(missing) == len(answers):
            raise missing[0]
        return {name: answer for name, answer in answers.items() if isinstance(answer, FileStat)}


def find_remote(base: Base, game: str, run: int, layout: str | None) -> RemoteRun:
    """The run on a server, whose layout is found out where it is not given.

    Raises:
        SourceNotFoundError: the layout is RL Unplugged's, and has no such run.
    """
    if layout != "rlu":
        for prefix in ("", "dqn/"):
            dopamine = DopamineLayout(game, run, prefix)
            if _answers(base, dopamine.index_files()[0]):
                return RemoteRun(base, dopamine, 2.5)
        if layout == "dopamine":
            return RemoteRun(base, DopamineLayout(game, run), 2.5)
    return RemoteRun(base, RLUnpluggedLayout(game, run), 0.5)


def _answers(base: Base, name: str) -> bool:
    """Whether the server has a file. One that forbids to list may forbid what it lacks."""
    try:
        base.stat(name)
    except (SourceNotFoundError, ForbiddenError):
        return False
    return True
