"""The one place that prints: results to stdout, everything else to stderr."""

import json
import logging
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from rlx.errors import RlxError
from rlx_cli.printable import Secrets, one_line, printable
from rlx_cli.rows import Listing, Rows, write_document
from rlx_cli.streams import abandon

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

_UNLIMITED = 10_000
_SEVERITIES = {"warning": "yellow", "error": "red"}


@dataclass
class Output:
    """Destination and form of a command's result, warnings and errors.

    Args:
        json: whether to print the result as one JSON document.
        quiet: whether to hide progress.
        debug: whether to show tracebacks of errors and the library's log.
        secrets: texts to hide.
    """

    json: bool = False
    quiet: bool = False
    debug: bool = False
    secrets: Secrets = field(default_factory=lambda: Secrets([]))

    @classmethod
    def of(cls, arguments: Sequence[str]) -> Self:
        """Return the output that the raw arguments select; parsing them may fail later."""
        return cls(
            json="--json" in arguments,
            quiet="--quiet" in arguments,
            debug="--debug" in arguments,
            secrets=Secrets(arguments),
        )

    @cached_property
    def stdout(self) -> "Console":
        """Console of results; unlimited width unless it is a terminal."""
        return _console(self.secrets, width=None if sys.stdout.isatty() else _UNLIMITED, highlight=False)

    @cached_property
    def stderr(self) -> "Console":
        """Console of progress, warnings and errors."""
        return _console(self.secrets, stderr=True, highlight=False)

    def shown(self, text: str) -> str:
        """Text that may be anybody's as one line, without secrets and control characters."""
        return one_line(self.secrets.hidden(text))

    def show(self, document: Any, *parts: "str | Table | Listing") -> None:
        """Print a command's result: the document with ``--json``, otherwise the parts, each text on one line."""
        if not self.json:
            for part in parts:
                self._show_part(part)
        elif isinstance(document, dict) and any(isinstance(value, Rows) for value in document.values()):
            write_document(document, sys.stdout, self.secrets.hidden_in)
        else:
            sys.stdout.write(json.dumps(self.secrets.hidden_in(document), indent=2, allow_nan=False) + "\n")

    def _show_part(self, part: "str | Table | Listing") -> None:
        if isinstance(part, Listing):
            sys.stdout.writelines(f"{self.shown(line)}\n" for line in part.lines())
            return
        shown = self.shown(part) if isinstance(part, str) else part
        with self.stdout.capture() as printed:
            self.stdout.print(shown, markup=False, soft_wrap=isinstance(part, str))
        # Strip the padding of the last column.
        sys.stdout.writelines(f"{line.rstrip()}\n" for line in printed.get().splitlines())

    def fail(self, error: RlxError) -> None:
        """Print the error that ends the command."""
        if self.json:
            self.show({"error": error.to_json()})
        self.complain(error)

    def complain(self, error: RlxError) -> None:
        """Print an error and its hint to stderr."""
        if self.debug:
            self.trace(error)
        self.say("error", str(error))
        if error.hint:
            self.say("hint", error.hint)

    def trace(self, error: BaseException) -> None:
        """Print the traceback of an error."""
        self._print("".join(traceback.format_exception(error)).rstrip())

    def say(self, word: str, message: str) -> None:
        """Print one line to stderr: ``warning: ...``."""
        from rich.text import Text

        label = Text(f"{word}:", style=f"bold {_SEVERITIES.get(word, 'cyan')}")
        self._print(Text.assemble(label, " ", self.shown(message)))

    def _print(self, line: "str | Text") -> None:
        try:
            self.stderr.print(line, soft_wrap=True, markup=False)
        except OSError:  # stderr itself fails
            abandon(sys.stderr.fileno())

    @contextmanager
    def logging(self) -> Iterator[None]:
        """Show the library's log: warnings, and everything with ``--debug``."""
        logger, handler = logging.getLogger("rlx"), _LogHandler(self)
        level = logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG if self.debug else logging.WARNING)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)


class _LogHandler(logging.Handler):
    def __init__(self, output: Output) -> None:
        super().__init__()
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        self._output.say(record.levelname.lower(), record.getMessage())


def _console(secrets: Secrets, **options: Any) -> "Console":
    """Return a console that hides secrets and escapes control characters."""
    from rich.console import Console
    from rich.segment import Segment

    class Guarded(Console):
        def _render_buffer(self, buffer: "Iterable[Segment]") -> str:
            shown = [
                part if part.control else Segment(printable(secrets.hidden(part.text)), part.style) for part in buffer
            ]
            return super()._render_buffer(shown)

    return Guarded(**options)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> "Table":
    """Return a table without rules.

    Args:
        columns: the headers; a leading ``>`` aligns a column of numbers to the right.
        rows: the cells.
    """
    drawn = _grid(show_header=True)
    for column in columns:
        is_number = column.startswith(">")
        drawn.add_column(
            column.removeprefix(">"),
            justify="right" if is_number else "left",
            no_wrap=is_number,
            overflow="fold",
        )
    for row in rows:
        drawn.add_row(*map(_plain, row))
    return drawn


def facts(named: Iterable[tuple[str, str]]) -> "Table":
    """Return a table of names and values, one per line."""
    drawn = _grid(show_header=False)
    drawn.add_column(no_wrap=True, style="bold")
    drawn.add_column(overflow="fold")
    for name, fact in named:
        drawn.add_row(_plain(name), _plain(fact))
    return drawn


def _grid(*, show_header: bool) -> "Table":
    from rich.table import Table

    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=show_header, header_style="bold")


def _plain(text: str) -> "Any":
    # Rich would parse brackets in a file name as markup.
    from rich.text import Text

    return Text(one_line(text))
