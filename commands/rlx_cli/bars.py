"""Progress bars on a terminal: one per unit with a known total, its rate, and the remaining time."""

import threading
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.progress_bar import ProgressBar
from rich.table import Column
from rich.text import Text

from rlx.wording import size, sizes

_TITLE_WIDTH = 24
# What stands beside title and bar: 123,456,789 steps, 123 MB/s, 00:00. A line must not reach the terminal's edge: the
# ^C that it echoes would begin another, and the bars would be wiped away one line too low.
_FIGURES_WIDTH = 38


class Bars:
    """Draws the progress below whatever else is printed, and removes it at the end."""

    def __init__(self, title: str, console: Console) -> None:
        self._lock = threading.Lock()
        self._tasks: dict[str, TaskID] = {}
        self._totals: dict[str, int] = {}
        self._bars = RichProgress(
            TextColumn("{task.description}", markup=False, table_column=_column(max_width=_TITLE_WIDTH)),
            _Bar(bar_width=max(5, min(40, console.width - min(len(title), _TITLE_WIDTH) - _FIGURES_WIDTH))),
            _Amount(_column()),
            _Rate(_column()),
            TimeRemainingColumn(compact=True, table_column=_column()),
            console=console,
            transient=True,
        )
        self._title = title

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def expect(self, unit: str, amount: int) -> None:
        """Add to the total of a unit."""
        with self._lock:
            self._totals[unit] = self._totals.get(unit, 0) + amount
            self._bars.update(self._task(unit), total=self._totals[unit])

    def advance(self, unit: str, amount: int) -> None:
        """Add to the completed amount of a unit."""
        with self._lock:
            self._bars.advance(self._task(unit), amount)

    def _task(self, unit: str) -> TaskID:
        if unit not in self._tasks:
            # The title stands on the first line, the others are below it.
            title = "" if self._tasks else self._title
            self._tasks[unit] = self._bars.add_task(title, total=None, unit=unit)
        return self._tasks[unit]


def _column(max_width: int | None = None) -> Column:
    return Column(no_wrap=True, overflow="ellipsis", max_width=max_width)


class _Bar(BarColumn):
    def render(self, task: Task) -> ProgressBar | Text:  # type: ignore[override]
        # Without a total a bar could only pulse, which says nothing.
        return Text() if task.total is None else super().render(task)


class _Amount(ProgressColumn):
    def render(self, task: Task) -> Text:
        unit, done, total = task.fields["unit"], task.completed, task.total
        kind, _, what = unit.partition(" ")
        if kind == "bytes":
            amount = size(done) if total is None else sizes(done, total)
            return Text(f"{amount} {what}".rstrip(), justify="right")
        return Text(f"{done:,.0f} {unit}" if total is None else f"{done:,.0f}/{total:,.0f} {unit}", justify="right")


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed, unit = task.finished_speed or task.speed, task.fields["unit"]
        if speed is None or unit == "shards":
            return Text()
        return Text(f"{size(speed)}/s" if unit.startswith("bytes") else f"{speed:,.0f}/s", justify="right")
