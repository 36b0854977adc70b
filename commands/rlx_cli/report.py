"""Reports of commands that write datasets, exit codes of errors, and the errors of the command line itself."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import typer

from rlx.errors import (
    CodecError,
    CorruptDatasetError,
    CorruptShardError,
    DatasetError,
    DatasetLockedError,
    DatasetNotFoundError,
    FileAccessError,
    ForbiddenError,
    OptionError,
    PartialError,
    PolicyNotFoundError,
    RlxError,
    SourceNotFoundError,
    UnknownFormatError,
)
from rlx.wording import RESUME, duration, plural, size
from rlx_cli.output import Output

if TYPE_CHECKING:
    from rlx.store.verification import Problem
    from rlx.verbs.export import ExportReport
    from rlx.verbs.report import Report
    from rlx.verbs.transfers import TransferReport


ERROR = 1
USAGE = 2
CORRUPT = 3
FORBIDDEN = 4
NOT_FOUND = 5
PARTIAL = 6
LOCKED = 75  # EX_TEMPFAIL: the same command works later
INTERRUPTED = 130
PIPE_CLOSED = 141  # 128 + SIGPIPE, as shells report it


class UsageError(RlxError):
    """The command's arguments are invalid."""


class InterruptedWorkError(RlxError):
    """Ctrl-C stopped a command that can be resumed."""


_CODES: Mapping[type[RlxError], int] = MappingProxyType(
    {
        UsageError: USAGE,
        CodecError: USAGE,
        OptionError: USAGE,
        UnknownFormatError: USAGE,
        CorruptShardError: CORRUPT,
        CorruptDatasetError: CORRUPT,
        ForbiddenError: FORBIDDEN,
        SourceNotFoundError: NOT_FOUND,
        PolicyNotFoundError: NOT_FOUND,
        DatasetNotFoundError: NOT_FOUND,
        PartialError: PARTIAL,
        DatasetLockedError: LOCKED,
        InterruptedWorkError: INTERRUPTED,
    }
)


def exit_code(error: RlxError) -> int:
    """Return the exit code of an error; 1 for errors without their own code.

    Example:
        >>> exit_code(ForbiddenError("no")), exit_code(RlxError("else"))
        (4, 1)
    """
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), ERROR)


def show_reports(output: Output, reports: "Sequence[Report]", *, as_list: bool) -> None:
    """Print the reports, and exit with the code of the first that has failed shards.

    Args:
        as_list: whether the JSON document is a list, because several datasets were requested.
    """
    documents = [report.to_json() for report in reports]
    output.show(documents if as_list else documents[0], *(line for report in reports for line in _summary(report)))
    errors = [error for report in reports if (error := report.error) is not None]
    for error in errors:
        output.complain(error)
    if errors:
        raise typer.Exit(exit_code(errors[0]))


def show_export(output: Output, report: "ExportReport") -> None:
    """Print the report of an export."""
    complete = ", already complete" if report.skipped_shards else ""
    said = (
        f"{report.id}: {plural(report.steps, 'step')} in {plural(report.trajectories, 'trajectory')}{complete}, "
        f"{size(report.bytes)} ({report.format}) in {duration(report.seconds)}"
    )
    output.show(report.to_json(), said, str(report.dataset))


def show_transfer(output: Output, transferred: "TransferReport", verb: str) -> None:
    """Print the report of a push or pull, and exit with the code of its failure, if any.

    Args:
        verb: past participle for the summary: ``sent``.
    """
    direction = "to" if verb == "sent" else "from"
    moved = f"{plural(transferred.transferred_files, 'file')} ({size(transferred.transferred_bytes)}) {direction}"
    output.show(
        transferred.to_json(),
        *_summary(transferred),
        f"{verb} {moved} {transferred.url}",
    )
    if (error := transferred.error) is not None:
        output.complain(error)
        raise typer.Exit(exit_code(error))


def unreadable_error(dataset: str, problems: "Sequence[Problem]") -> FileAccessError:
    """Return the error for files of a dataset that cannot be read."""
    first = problems[0]
    name = "/".join(part for part in ("shards" if first.shard else None, first.shard, first.file) if part)
    return FileAccessError(
        f"{plural(len(problems), 'file')} of {dataset} cannot be checked: {name} {first.problem}",
        hint=f"{shlex.join(['ls', '-l', f'{dataset}/{name}'])} shows who may read it; check the disk or the mount",
    )


def _summary(report: "Report") -> tuple[str, ...]:
    skipped = f", {report.skipped_shards:,} of them already complete" if report.skipped_shards else ""
    said = (
        f"{report.id}: {plural(report.steps, 'step')} in {plural(report.trajectories, 'trajectory')}, "
        f"{plural(report.shards, 'shard')}{skipped}, {size(report.bytes)} ({report.store}) "
        f"in {duration(report.seconds)}"
    )
    remarks = (f"{remark} in {plural(steps, 'step')}" for remark, steps in report.remarks.items())
    return said, *remarks, str(report.dataset)


@contextmanager
def resumable(destination: Path, *, overwrite: bool = False, hint: str = RESUME) -> Iterator[None]:
    """Turn Ctrl-C into an error that names the finished shards and how to resume."""
    replaces = overwrite and (destination / "rlx.json").exists()
    try:
        yield
    except KeyboardInterrupt as exc:
        if replaces:
            hint = "run the same command again to start afresh"
            raise InterruptedWorkError(f"interrupted; {_unchanged(destination)}", hint=hint) from exc
        if overwrite:
            hint = f"{hint}, without --overwrite"
        raise InterruptedWorkError(f"interrupted; {_finished(destination)}", hint=hint) from exc


@contextmanager
def interruptible(kept: str) -> Iterator[None]:
    """Turn Ctrl-C into an error that says what is kept and how to resume."""
    try:
        yield
    except KeyboardInterrupt as exc:
        raise InterruptedWorkError(f"interrupted; {kept}", hint=RESUME) from exc


def _unchanged(destination: Path) -> str:
    new = destination / ".new"
    return f"{destination} is unchanged" + (f"; {_finished(new)}" if new.exists() else "")


def _finished(destination: Path) -> str:
    from rlx.manifest import Manifest

    try:
        manifest = Manifest.load(destination)
    except DatasetError:
        return "no shard is finished yet"
    return f"{len(manifest.shards)} of {plural(len(manifest.planned), 'shard')} are finished and kept in {destination}"
