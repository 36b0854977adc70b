"""Replay buffers over datasets on disk, under TorchRL's names.

``atari_dqn.AtariDQNExperienceReplay`` downloads a run, ``minari.MinariExperienceReplay`` converts a local Minari
dataset.
"""

from typing import TYPE_CHECKING

from rlx.lazy_imports import lazily

if TYPE_CHECKING:
    from rlx.datasets.atari_dqn import AtariDQNExperienceReplay as AtariDQNExperienceReplay
    from rlx.datasets.minari import MinariExperienceReplay as MinariExperienceReplay

__all__, __getattr__, __dir__ = lazily(__name__)
