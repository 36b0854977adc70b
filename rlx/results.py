"""Results of the functions of ``rlx``, for annotations; ``to_json()`` returns what ``--json`` prints."""

from typing import TYPE_CHECKING

from rlx.lazy_imports import lazily

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
    from rlx.pipeline.sources import SourceStatus as SourceStatus
    from rlx.pipeline.transfers import PlannedTransfer as PlannedTransfer
    from rlx.pipeline.transfers import TransferPlan as TransferPlan
    from rlx.pipeline.transfers import TransferReport as TransferReport
    from rlx.store.repair import Repair as Repair
    from rlx.store.verification import Problem as Problem
    from rlx.store.verification import Verification as Verification
    from rlx.viewer.files import ViewFile as ViewFile

__all__, __getattr__, __dir__ = lazily(__name__)
