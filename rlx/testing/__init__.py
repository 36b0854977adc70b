"""Test suites that the formats, transforms, storages and samplers of any package keep to; pytest runs them.

Subclass ``source.SourceContract`` for a reader, ``dataset_exporter.DatasetExporterContract`` and
``exporter.ExporterContract`` for writers, ``transform.TransformContract`` for a transform, ``storage.StorageContract``
and ``sampler.SamplerContract`` for those of buffers. ``factories`` makes the data.
"""

from typing import TYPE_CHECKING

from rlx.errors import imported
from rlx.lazy_imports import lazily

if TYPE_CHECKING:
    from rlx.testing.dataset_exporter import DatasetExporterContract as DatasetExporterContract
    from rlx.testing.exporter import ExporterContract as ExporterContract
    from rlx.testing.factories import make_block as make_block
    from rlx.testing.factories import write_dataset as write_dataset
    from rlx.testing.round_trip import check_there_and_back as check_there_and_back
    from rlx.testing.sampler import SamplerContract as SamplerContract
    from rlx.testing.source import FileContract as FileContract
    from rlx.testing.source import SourceContract as SourceContract
    from rlx.testing.source import Trajectory as Trajectory
    from rlx.testing.storage import StorageContract as StorageContract
    from rlx.testing.transform import TransformContract as TransformContract

__all__, __getattr__, __dir__ = lazily(__name__)

_SUITES = ("dataset_exporter", "exporter", "round_trip", "sampler", "source", "storage", "transform")
# Before they are imported: what an assertion compared is in its message then.
_pytest = imported("pytest", "rlx.testing needs pytest", "testing")
_pytest.register_assert_rewrite(*(f"{__name__}.{suite}" for suite in _SUITES))
