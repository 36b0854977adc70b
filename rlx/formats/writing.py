"""How the files of an export come to be: in full, or not at all."""

import logging
from collections.abc import Iterable
from pathlib import Path

from rlx.errors import DatasetExistsError, ExportError
from rlx.files.atomic import whole
from rlx.files.disk import is_there
from rlx.formats.common.exporter import Columns, DatasetExporter, DirectoryExporter, Experience, Exporter
from rlx.progress import Progress
from rlx.schema import Schema, is_action

logger = logging.getLogger(__name__)


def export(batches: Iterable[Columns], path: Path, exporter: Exporter | DirectoryExporter) -> None:
    """Write batches to a file or directory atomically; an existing one is replaced."""
    is_directory = isinstance(exporter, DirectoryExporter)
    if path.is_dir() and not (is_directory and (path / "zarr.json").is_file()):
        raise DatasetExistsError(f"{path} is a directory; expected a new name, or a file to replace")
    with whole(path) as partial:
        _write(batches, partial, exporter)


def _write(batches: Iterable[Columns], path: Path, exporter: Exporter | DirectoryExporter) -> None:
    if isinstance(exporter, DirectoryExporter):
        exporter.write_directory(batches, path)
        return
    with path.open("w+b") as file:
        exporter.write(batches, file)


def export_dataset(
    experience: Experience, destination: Path, exporter: DatasetExporter, *, overwrite: bool = False, progress: Progress
) -> list[str]:
    """Write a dataset in another project's format; it is there when all of it is.

    Losses of the format are logged as a warning before anything is written.

    Args:
        exporter: ``datasets`` of the format.

    Returns:
        what the format could not hold.
    """

    def check() -> None:
        _check_free(destination, exporter, overwrite=overwrite)

    with whole(destination, check) as partial:
        _check_actions(experience.schema, exporter)
        losses = list(exporter.losses(experience))
        for loss in losses:
            logger.warning("%s cannot hold %s", exporter.title, loss)
        progress.expect("steps", int(experience.trajectories.length.sum()))
        exporter.write(experience, partial, destination, progress)
    return losses


def _check_actions(schema: Schema, exporter: DatasetExporter) -> None:
    if not any(map(is_action, schema)):
        raise ExportError(
            f"{exporter.title} holds an action per step, found only {', '.join(schema)}",
            hint="`to` zarr keeps steps without actions",
        )


def _check_free(destination: Path, exporter: DatasetExporter, *, overwrite: bool) -> None:
    if not is_there(destination) and not destination.is_symlink():
        return
    if not overwrite:
        raise DatasetExistsError(f"{destination} already exists", hint="`overwrite` replaces it")
    if not exporter.owns(destination):
        raise DatasetExistsError(
            f"{destination} is not of {exporter.title}; expected a new name, or one of that format to replace"
        )
