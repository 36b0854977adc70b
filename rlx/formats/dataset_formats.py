"""The formats of other projects that whole datasets are written in."""

import logging
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from rlx.errors import DatasetExistsError, ExportError
from rlx.files.atomic import whole
from rlx.formats.common.exporter import DatasetExporter, Experience
from rlx.formats.d3rlpy.writer import D3rlpyExporter
from rlx.formats.d4rl.writer import D4RLExporter
from rlx.formats.dopamine.writer import DopamineExporter
from rlx.formats.lerobot.writer import LeRobotExporter
from rlx.formats.minari.writer import MinariExporter
from rlx.formats.npz.writer import NpzDatasetExporter
from rlx.formats.parquet.writer import ParquetDatasetExporter
from rlx.formats.rlds.writer import RLDSExporter
from rlx.formats.robomimic.writer import RobomimicExporter
from rlx.formats.torchrl.writer import TorchRLExporter
from rlx.progress import Progress
from rlx.schema import Schema, is_action

logger = logging.getLogger(__name__)
DATASET_EXPORTERS: Mapping[str, DatasetExporter] = MappingProxyType(
    {
        "minari": MinariExporter(),
        "d4rl": D4RLExporter(),
        "robomimic": RobomimicExporter(),
        "d3rlpy": D3rlpyExporter(),
        "dopamine": DopamineExporter(),
        "lerobot": LeRobotExporter(),
        "rlds": RLDSExporter(),
        "torchrl": TorchRLExporter(),
        "parquet": ParquetDatasetExporter(),
        "npz": NpzDatasetExporter(),
    }
)


def export_dataset(
    experience: Experience, destination: Path, exporter: DatasetExporter, *, overwrite: bool = False, progress: Progress
) -> list[str]:
    """Write a dataset in another project's format; it is there when all of it is.

    Losses of the format are logged as a warning before anything is written.

    Args:
        experience: what to write.
        destination: the file or directory to be.
        exporter: one of ``DATASET_EXPORTERS``.
        overwrite: whether to replace an existing export of the same format.
        progress: receives ``steps``.

    Returns:
        what the format could not hold.

    Raises:
        ExportError: the format cannot hold the experience at all.
        DatasetExistsError: something is there already.
        DatasetLockedError: another process is writing the same destination.
        DiskFullError: no space is left; partial output is removed.
        CorruptDatasetError: a shard is damaged; partial output is removed.
        MissingExtraError: the format needs a package that is not installed.
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
            hint="--to zarr keeps steps without actions",
        )


def _check_free(destination: Path, exporter: DatasetExporter, *, overwrite: bool) -> None:
    if not destination.exists() and not destination.is_symlink():
        return
    if not overwrite:
        raise DatasetExistsError(f"{destination} is there already", hint="--overwrite replaces it")
    if not exporter.owns(destination):
        raise DatasetExistsError(
            f"{destination} is not of {exporter.title}; expected a new name, or one of that format to replace"
        )
