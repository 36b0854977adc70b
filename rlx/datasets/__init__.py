"""Replay buffers over datasets on disk, under TorchRL's names.

``atari_dqn.AtariDQNExperienceReplay`` downloads a run, ``minari.MinariExperienceReplay`` converts a local Minari
dataset.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rlx.package_names import lazy_names, no_such_name

if TYPE_CHECKING:
    from rlx.datasets.atari_dqn import AtariDQNExperienceReplay as AtariDQNExperienceReplay
    from rlx.datasets.minari import MinariExperienceReplay as MinariExperienceReplay

_HOME = lazy_names(__name__)
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise no_such_name(__name__, name)
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
