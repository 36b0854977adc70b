"""What a command that writes datasets tells when it is done, and when it is interrupted."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rlx.errors import DatasetError, DownloadError, FileAccessError, PartialError, RlxError
from rlx.quantities import duration, plural, size
from rlx_cli.exit_codes import InterruptedWorkError, exit_code
from rlx_cli.output import Output, describe

if TYPE_CHECKING:
    from rlx.pipeline.export import ExportReport
    from rlx.pipeline.report import Report
    from rlx.pipeline.transfers import TransferReport
    from rlx.store.verification import Problem

_RESUME_HINT = "run the same command again: it goes on from there"


def show_reports(output: Output, reports: "Sequence[Report]", *, as_list: bool) -> None:
    """Prints the reports, and exits with the code of the first that tells of failed shards.

    Args:
        output: where to.
        reports: one a dataset.
        as_list: whether the JSON document is a list, because several datasets were asked for.
    """
    documents = [_document(report) for report in reports]
    output.show(documents if as_list else documents[0], *map(_summary, reports))
    errors = [error for report in reports if (error := _error(report)) is not None]
    for error in errors:
        output.complain(error)
    if errors:
        raise typer.Exit(exit_code(errors[0]))


def show_export(output: Output, report: "ExportReport") -> None:
    """Prints what became of a dataset in another project's format."""
    said = (
        f"{report.id}: {plural(report.steps, 'step')} in {plural(report.trajectories, 'trajectory')}, "
        f"{size(report.bytes)} ({report.format}) in {duration(report.seconds)}\n{report.dataset}"
    )
    output.show(report.to_json(), said)


def show_transfer(output: Output, transferred: "TransferReport", verb: str) -> None:
    """Prints what became of a dataset that was copied, and exits with the code of what failed.

    Args:
        output: where to.
        transferred: what the library tells of it.
        verb: what was done to the files: ``sent``.
    """
    report, failures = transferred.report, transferred.report.failures.values()
    # What is damaged or gone where it lies is so the next time.
    lasting = failures and not any(isinstance(failure, DownloadError) for failure in failures)
    hint = mend_hint(transferred.url) if lasting else _RESUME_HINT
    error = _error(report, hint=hint)
    said = f"{verb} {plural(transferred.files, 'file')}, {size(transferred.bytes)}; {transferred.url}"
    output.show({**transferred.to_json(), **(describe(error) if error else {})}, _summary(report), said)
    if error is not None:
        output.complain(error)
        raise typer.Exit(exit_code(error))


def mend_hint(location: str) -> str:
    """What mends a dataset that is damaged at a location, where it cannot be mended from itself.

    Args:
        location: a URL, or a directory that others read from.
    """
    if location.startswith(("http://", "https://")):
        return "whoever can write there mends it with rlx push --overwrite"
    return shlex.join(["rlx", "push", "--overwrite", "COPY", location])


def unreadable_error(dataset: str, problems: "Sequence[Problem]") -> FileAccessError:
    """The error that some files of a dataset cannot be read.

    Args:
        dataset: its directory.
        problems: one for each of the files.
    """
    first = problems[0]
    name = "/".join(part for part in ("shards" if first.shard else None, first.shard, first.file) if part)
    return FileAccessError(
        f"{plural(len(problems), 'file')} of {dataset} cannot be checked: {name} {first.problem}",
        hint=f"{shlex.join(['ls', '-l', f'{dataset}/{name}'])} shows who may read it; check the disk or the mount",
    )


def _document(report: "Report") -> dict[str, Any]:
    error = _error(report)
    return {**report.to_json(), **(describe(error) if error else {})}


def _error(report: "Report", *, hint: str = _RESUME_HINT) -> RlxError | None:
    if not report.failures:
        return None
    if not report.shards:
        # Nothing is safe, so nothing is partial: what went wrong is the whole story.
        return report.failures[report.failed_shards[0]]
    failed = ", ".join(report.failed_shards)
    return PartialError(f"{report.id}: {plural(len(report.failures), 'shard')} failed: {failed}", hint=hint)


def _summary(report: "Report") -> str:
    skipped = f", {report.skipped_shards:,} of them were there already" if report.skipped_shards else ""
    return (
        f"{report.id}: {plural(report.steps, 'step')} in {plural(report.trajectories, 'trajectory')}, "
        f"{plural(report.shards, 'shard')}{skipped}, {size(report.bytes)} ({report.store}) "
        f"in {duration(report.seconds)}\n{report.dataset}"
    )


@contextmanager
def resumable(destination: Path, *, hint: str = _RESUME_HINT) -> Iterator[None]:
    """Turns Ctrl-C into an error that says what is finished and how to go on."""
    try:
        yield
    except KeyboardInterrupt as exc:
        raise InterruptedWorkError(f"interrupted; {_finished(destination)}", hint=hint) from exc


@contextmanager
def interruptible(kept: str) -> Iterator[None]:
    """Turns Ctrl-C into an error that says what is kept and how to go on."""
    try:
        yield
    except KeyboardInterrupt as exc:
        raise InterruptedWorkError(f"interrupted; {kept}", hint=_RESUME_HINT) from exc


def _finished(destination: Path) -> str:
    from rlx.manifest import Manifest

    try:
        manifest = Manifest.load(destination)
    except DatasetError:
        return "no shard is finished yet"
    return f"{len(manifest.shards)} of {plural(len(manifest.planned), 'shard')} are finished and kept in {destination}"
