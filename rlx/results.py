"""Results of the functions of ``rlx``, for annotations; ``to_json()`` returns what ``--json`` prints."""

from typing import TYPE_CHECKING

from rlx.lazy_imports import lazily

if TYPE_CHECKING:
    from rlx.checks.check import Finding as Finding
    from rlx.store.repair import Repair as Repair
    from rlx.store.verification import Problem as Problem
    from rlx.store.verification import Verification as Verification
    from rlx.verbs.checkup import Checkup as Checkup
    from rlx.verbs.comparison import Comparison as Comparison
    from rlx.verbs.comparison import Difference as Difference
    from rlx.verbs.export import ExportReport as ExportReport
    from rlx.verbs.fetching import DownloadPlan as DownloadPlan
    from rlx.verbs.fetching import PlannedFile as PlannedFile
    from rlx.verbs.inspection import Inspection as Inspection
    from rlx.verbs.inspection import TrajectoryTable as TrajectoryTable
    from rlx.verbs.recipe import Preview as Preview
    from rlx.verbs.report import Report as Report
    from rlx.verbs.runs import CatalogEntry as CatalogEntry
    from rlx.verbs.sampling import Sample as Sample
    from rlx.verbs.sources import SourceStatus as SourceStatus
    from rlx.verbs.transfers import PlannedTransfer as PlannedTransfer
    from rlx.verbs.transfers import TransferPlan as TransferPlan
    from rlx.verbs.transfers import TransferReport as TransferReport
    from rlx.verbs.view import Viewer as Viewer
    from rlx.viewer.files import ViewFile as ViewFile

__all__, __getattr__, __dir__ = lazily(__name__)
