"""The one place that prints: results to stdout, everything else to stderr, without secrets and control characters."""

import io
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self, TextIO, Union
from urllib.parse import parse_qsl, unquote, urlsplit

from rlx.errors import RlxError
from rlx.wording import HIDDEN, without_secrets
from rlx_cli.rows import JsonRows, Listing, write_document

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

# What a result is shown as: a line, or a table.
Part = Union[str, "Table", Listing]
# Control characters except tab and line feed, direction marks, line separators, and lone surrogates, which stand for
# bytes of a file name that are not UTF-8.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_LINES = re.compile("[\t\n]")
_ARGUMENT = re.compile(r"`([a-z_]+?)_?`")
_MESSAGES = ("message", "hint", "remedy")  # keys whose texts name arguments
_SHORTEST = 4  # a shorter secret may be part of ordinary words
_UNLIMITED = 10_000
_MOST_FOLDED = 500  # rows of a table
_SEVERITIES = {"warning": "yellow", "error": "red"}


def printable(text: str) -> str:
    """Return text with control characters, except tabs and line feeds, escaped.

    Example:
        >>> printable("a\x1b[31mred\\u202e")
        'a\\\\x1b[31mred\\\\u202e'
    """
    return _CONTROL.sub(_escape, text)


def one_line(text: str) -> str:
    """Return text with control characters, including tabs and line feeds, escaped.

    Example:
        >>> one_line("a\\nerror: b")
        'a\\\\nerror: b'
    """
    return _LINES.sub(_escape, printable(text))


def as_options(message: str) -> str:
    """Return a message of the library with the command's options in place of arguments.

    Example:
        >>> as_options("`reward_dtype` float16 is unknown; `from_` gives a diagnosis")
        '--reward-dtype float16 is unknown; --from gives a diagnosis'
    """
    return _ARGUMENT.sub(lambda found: "--" + found[1].replace("_", "-"), message)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


class Secrets:
    """Passwords and signatures in the URLs of a command line, to be hidden.

    Example:
        >>> secrets = Secrets(["--source", "https://me:pass%20word@host/set?sig=a1b2c3"])
        >>> secrets.hidden("no /set?sig=a1b2c3 for pass word at https://you@other/x?y=z")
        'no /set?sig=*** for *** at https://other/x'
    """

    def __init__(self, arguments: Iterable[str]) -> None:
        found: set[str] = set()
        for argument in arguments:
            _, separator, rest = argument.partition("://")
            if separator:
                found.update(_secrets_of(f"x://{rest}"))
        self._found = sorted((secret for secret in found if len(secret) >= _SHORTEST), key=len, reverse=True)

    def hidden(self, text: str) -> str:
        """Return text with the secrets hidden, and URLs without credentials and queries."""
        text = without_secrets(text)
        for secret in self._found:
            text = text.replace(secret, HIDDEN)
        return text

    def hidden_in(self, document: Any) -> Any:
        """Return a JSON document with the secrets hidden in every text."""
        if isinstance(document, str):
            return self.hidden(document)
        if isinstance(document, dict):
            return {self.hidden_in(key): self.hidden_in(value) for key, value in document.items()}
        return [self.hidden_in(value) for value in document] if isinstance(document, list | tuple) else document


def _secrets_of(url: str) -> set[str]:
    try:
        parts = urlsplit(url)
        password = parts.password or ""
    except ValueError:
        return set()
    values = [value for _, value in parse_qsl(parts.query)]
    return {password, unquote(password), parts.query, parts.fragment, *values}


@dataclass
class Output:
    """Destination and form of a command's result, warnings and errors.

    Args:
        results: where the result goes; while a command runs, ``sys.stdout`` is stderr (see ``results_apart``).
    """

    json: bool = False
    quiet: bool = False
    debug: bool = False
    secrets: Secrets = field(default_factory=lambda: Secrets([]))
    results: TextIO = field(default_factory=lambda: sys.stdout)

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
        return _console(
            self.secrets, file=self.results, width=None if self.results.isatty() else _UNLIMITED, highlight=False
        )

    @cached_property
    def stderr(self) -> "Console":
        """Console of progress, warnings and errors."""
        return _console(self.secrets, stderr=True, highlight=False)

    def shown(self, text: str) -> str:
        """Return untrusted text as one line, without secrets and control characters."""
        return one_line(self.secrets.hidden(text))

    def show(self, document: Any, *parts: "Part") -> None:
        """Print a command's result: the document with ``--json``, otherwise the parts, each text on one line."""
        if not self.json:
            for part in parts:
                self._show_part(part)
        elif isinstance(document, dict) and any(isinstance(value, JsonRows) for value in document.values()):
            write_document(document, self.results, self.secrets.hidden_in)
        else:
            shown = self.secrets.hidden_in(_with_options(document))
            self.results.write(json.dumps(shown, indent=2, allow_nan=False) + "\n")

    def _show_part(self, part: "Part") -> None:
        if isinstance(part, Listing):
            self.results.writelines(f"{self.shown(line)}\n" for line in part.lines())
            return
        shown = self.shown(part) if isinstance(part, str) else part
        with self.stdout.capture() as printed:
            self.stdout.print(shown, markup=False, soft_wrap=isinstance(part, str))
        # Strip the padding of the last column.
        self.results.writelines(f"{line.rstrip()}\n" for line in printed.get().splitlines())

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
        try:
            from rich.text import Text

            label = Text(f"{word}:", style=f"bold {_SEVERITIES.get(word, 'cyan')}")
            self._print(Text.assemble(label, " ", self.shown(as_options(message))))
        except (ImportError, MemoryError, OSError):  # little memory is left
            os.write(2, f"{word}: {self.shown(as_options(message))}\n".encode(errors="backslashreplace"))

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


def _with_options(document: Any) -> Any:
    """Return a JSON document that names options where the library names arguments."""
    if isinstance(document, dict):
        return {
            key: as_options(value) if key in _MESSAGES and isinstance(value, str) else _with_options(value)
            for key, value in document.items()
        }
    return [_with_options(value) for value in document] if isinstance(document, list | tuple) else document


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Part:
    """Return a table without rules.

    Args:
        columns: the headers; a leading ``>`` aligns a column of numbers to the right.
        rows: the cells. Of very many, a terminal folds none: rich lays out only two thousand in a second.
    """
    if len(rows) > _MOST_FOLDED:
        return Listing(columns, lambda: rows)
    drawn = _grid(show_header=True)
    for column in columns:
        # Without ``no_wrap``: rich would cut numbers on a narrow terminal, and not say so.
        justify: Literal["left", "right"] = "right" if column.startswith(">") else "left"
        drawn.add_column(column.removeprefix(">"), justify=justify, overflow="fold")
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


def secure() -> None:
    """Open closed streams, so that no later file becomes one of them, and make them accept every name.

    A closed stdout refuses what is written to it; a closed stderr swallows it.
    """
    modes = (os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)
    for descriptor, mode in enumerate(modes):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest number that is free
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def results_apart() -> Iterator[None]:
    """Keep stdout for results: ``sys.stdout`` writes to it, and what else is written there goes to stderr.

    That is what environments, policies and the user's functions print, their code in C and their processes included.
    """
    stdout = sys.stdout
    try:
        number, kept = stdout.fileno(), os.dup(1)
    except OSError:  # captured in memory; or too many files are open, as whatever the command does will say
        yield
        return
    stdout.flush()
    os.dup2(2, 1)
    if number == 1:
        sys.stdout = open(kept, "w", encoding=stdout.encoding, errors=stdout.errors, closefd=False)  # noqa: SIM115
    results = sys.stdout
    try:
        yield
    finally:
        with suppress(OSError):
            results.flush()
        sys.stdout = stdout
        os.dup2(kept, 1)
        os.close(kept)


def abandon(descriptor: int) -> None:
    """Discard further output to a failed stream, which Python would otherwise flush at exit and report."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def abandon_if_failed() -> None:
    """Discard further output to stdout if it fails, as it would fail again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        abandon(sys.stdout.fileno())
