"""Progress on stderr: bars on a terminal, a plain line every few seconds elsewhere."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from rlx.progress import Progress, Silent
from rlx.wording import duration, size
from rlx_cli.output import Output

if TYPE_CHECKING:
    from rich.console import Console

LINE_EVERY_S = 5.0


@contextmanager
def showing(output: Output, title: str) -> Iterator[Progress]:
    """Show progress on stderr until the context ends.

    Args:
        title: label of the progress: ``download Pong/5``.
    """
    title = output.shown(title)
    if output.quiet:
        yield Silent()
    elif sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        from rlx_cli.bars import Bars

        with Bars(title, output.stderr) as bars:
            yield bars
    else:
        with Lines(title, output.stderr) as lines:
            yield lines


class Lines:
    """Progress as one plain line every few seconds, also while nothing moves."""

    def __init__(self, title: str, console: "Console", every_s: float = LINE_EVERY_S) -> None:
        self._title = title
        self._console = console
        self._every_s = every_s
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._done: dict[str, int] = {}
        self._total: dict[str, int] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._print, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def expect(self, unit: str, amount: int) -> None:
        """Add to the total of a unit."""
        with self._lock:
            self._total[unit] = self._total.get(unit, 0) + amount

    def advance(self, unit: str, amount: int) -> None:
        """Add to the completed amount of a unit."""
        with self._lock:
            self._done[unit] = self._done.get(unit, 0) + amount

    def _print(self) -> None:
        while not self._ended.wait(self._every_s):
            self._console.print(self.line(time.monotonic() - self._started), markup=False, soft_wrap=True)

    def line(self, seconds: float) -> str:
        """Return the line to print after this number of seconds."""
        with self._lock:
            done, total = dict(self._done), dict(self._total)
        parts = [amount(unit, done.get(unit, 0), total.get(unit)) for unit in dict.fromkeys([*total, *done])]
        if not parts:
            parts = ["starting"]
        moving = next((unit for unit in total if done.get(unit)), None)
        if moving in ("bytes", "steps"):
            parts.append(f"{amount(moving, done[moving] / seconds, None)}/s")
        if moving and done[moving] < total[moving]:
            parts.append(f"{duration((total[moving] - done[moving]) * seconds / done[moving])} left")
        return f"{self._title}: {', '.join(parts)}"


def amount(unit: str, done: float, total: float | None) -> str:
    """Return the completed amount of a unit as text.

    Example:
        >>> amount("bytes", 1500, 2_000_000), amount("shards", 3, 50), amount("bytes written", 12_000, None)
        ('1.50 kB of 2.00 MB', '3 of 50 shards', '12.0 kB written')
    """
    kind, _, what = unit.partition(" ")
    if kind == "bytes":
        return " ".join(filter(None, [size(done) if total is None else f"{size(done)} of {size(total)}", what]))
    return f"{done:,.0f} {unit}" if total is None else f"{done:,.0f} of {total:,.0f} {unit}"
