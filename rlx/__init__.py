"""rlx: reinforcement-learning experience as files: get it, make it, look at it, change it, feed it to a learner."""

from importlib import import_module
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlx.pipeline.dataset import Dataset as Dataset
    from rlx.pipeline.dataset import Dataset as open

__all__ = ["Dataset", "__version__", "open"]

# Imported when first asked for, so that `import rlx` costs nothing.
_HOME = {"Dataset": ("rlx.pipeline.dataset", "Dataset"), "open": ("rlx.pipeline.dataset", "Dataset")}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version("rlx")
    if name not in _HOME:
        raise AttributeError(f"module 'rlx' has no attribute {name!r}")
    module, attribute = _HOME[name]
    return getattr(import_module(module), attribute)
