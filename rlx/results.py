"""Results of the functions of ``rlx``, for annotations; ``to_json()`` returns what ``--json`` prints."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlx.api.inspecting import Inspection as Inspection
    from rlx.api.inspecting import TrajectoryTable as TrajectoryTable
    from rlx.api.sampling import Sample as Sample
    from rlx.api.viewing import Viewer as Viewer
    from rlx.checks.check import Finding as Finding
    from rlx.pipeline.catalog import CatalogEntry as CatalogEntry
    from rlx.pipeline.diff import Comparison as Comparison
    from rlx.pipeline.diff import Difference as Difference
    from rlx.pipeline.doctor import Checkup as Checkup
    from rlx.pipeline.download import DownloadPlan as DownloadPlan
    from rlx.pipeline.download import PlannedFile as PlannedFile
    from rlx.pipeline.export import ExportReport as ExportReport
    from rlx.pipeline.preprocess import Preview as Preview
    from rlx.pipeline.report import Report as Report
    from rlx.pipeline.transfers import TransferReport as TransferReport
    from rlx.store.repair import Repair as Repair
    from rlx.store.verification import Problem as Problem
    from rlx.store.verification import Verification as Verification
    from rlx.viewer.files import ViewFile as ViewFile

# Imported on first use, so that ``import rlx.results`` stays fast.
_HOME = {
    "CatalogEntry": "rlx.pipeline.catalog",
    "Checkup": "rlx.pipeline.doctor",
    "Comparison": "rlx.pipeline.diff",
    "Difference": "rlx.pipeline.diff",
    "DownloadPlan": "rlx.pipeline.download",
    "ExportReport": "rlx.pipeline.export",
    "Finding": "rlx.checks.check",
    "Inspection": "rlx.api.inspecting",
    "PlannedFile": "rlx.pipeline.download",
    "Preview": "rlx.pipeline.preprocess",
    "Problem": "rlx.store.verification",
    "Repair": "rlx.store.repair",
    "Report": "rlx.pipeline.report",
    "Sample": "rlx.api.sampling",
    "TrajectoryTable": "rlx.api.inspecting",
    "TransferReport": "rlx.pipeline.transfers",
    "Verification": "rlx.store.verification",
    "ViewFile": "rlx.viewer.files",
    "Viewer": "rlx.api.viewing",
}
__all__ = [
    "CatalogEntry",
    "Checkup",
    "Comparison",
    "Difference",
    "DownloadPlan",
    "ExportReport",
    "Finding",
    "Inspection",
    "PlannedFile",
    "Preview",
    "Problem",
    "Repair",
    "Report",
    "Sample",
    "TrajectoryTable",
    "TransferReport",
    "Verification",
    "ViewFile",
    "Viewer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(_HOME)
