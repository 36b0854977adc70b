"""Download, collect, inspect, transform and sample reinforcement-learning experience.

``rlx.open`` reads a dataset. ``rlx.buffer`` has the replay buffers, ``rlx.collector`` the collectors, ``rlx.datasets``
the dataset classes with TorchRL's names, ``rlx.results`` the results of functions, and ``rlx.errors`` the errors.
"""

from typing import TYPE_CHECKING, Any

from rlx.lazy_imports import lazily
from rlx.missing_torch import explain

explain()

if TYPE_CHECKING:
    from rlx import buffer as buffer
    from rlx import collector as collector
    from rlx import datasets as datasets
    from rlx import errors as errors
    from rlx import results as results
    from rlx.buffer import RayReplayBuffer as RayReplayBuffer
    from rlx.buffer import ReplayBuffer as ReplayBuffer
    from rlx.buffer.loader import loader as loader
    from rlx.buffer.run_checkpoint import Checkpoint as Checkpoint
    from rlx.collector import Collector as Collector
    from rlx.verbs.catalog import list_runs as list_runs
    from rlx.verbs.collect import collect as collect
    from rlx.verbs.convert import convert as convert
    from rlx.verbs.dataset import Dataset as Dataset
    from rlx.verbs.dataset import open as open
    from rlx.verbs.doctor import diff as diff
    from rlx.verbs.doctor import doctor as doctor
    from rlx.verbs.download import download as download
    from rlx.verbs.inspect import cite as cite
    from rlx.verbs.inspect import inspect as inspect
    from rlx.verbs.merge import merge as merge
    from rlx.verbs.merge import split as split
    from rlx.verbs.preprocess import preprocess as preprocess
    from rlx.verbs.pull import pull as pull
    from rlx.verbs.push import push as push
    from rlx.verbs.sample import sample as sample
    from rlx.verbs.verify import repair as repair
    from rlx.verbs.verify import verify as verify
    from rlx.verbs.view import view as view

    __version__: str

# `open` is left out because it would hide the builtin, `Collector` and `collector` because they need an extra.
__all__ = [
    "Checkpoint",
    "Dataset",
    "RayReplayBuffer",
    "ReplayBuffer",
    "__version__",
    "buffer",
    "cite",
    "collect",
    "convert",
    "datasets",
    "diff",
    "doctor",
    "download",
    "errors",
    "inspect",
    "list_runs",
    "loader",
    "merge",
    "preprocess",
    "pull",
    "push",
    "repair",
    "results",
    "sample",
    "split",
    "verify",
    "view",
]

# Imported on first use, so that `import rlx` stays fast. A function may not have the name of a subpackage:
# importing the subpackage would replace it.
_NAMES, _attribute, _ = lazily(__name__)


def __getattr__(name: str) -> Any:
    if name != "__version__":
        return _attribute(name)
    from rlx.distribution import version

    return version()


def __dir__() -> list[str]:
    return sorted([*_NAMES, "__version__"])
