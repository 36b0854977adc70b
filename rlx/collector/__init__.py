"""Environments, policies and the loop that drives them: experience in the making."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rlx.errors import MissingExtraError

if find_spec("gymnasium") is None:
    raise MissingExtraError("collecting needs gymnasium, which is not installed", hint="pip install 'rlx[gym]'")

if TYPE_CHECKING:
    from rlx.collector.collector import BaseCollector as BaseCollector
    from rlx.collector.collector import Collector as Collector
    from rlx.collector.collector import DataCollectorBase as DataCollectorBase
    from rlx.collector.collector import SyncDataCollector as SyncDataCollector
    from rlx.collector.opening import GymEnv as GymEnv
    from rlx.collector.opening import ParallelEnv as ParallelEnv
    from rlx.collector.opening import SerialEnv as SerialEnv

__all__ = [
    "BaseCollector",
    "Collector",
    "DataCollectorBase",
    "GymEnv",
    "ParallelEnv",
    "SerialEnv",
    "SyncDataCollector",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'rlx.collector' has no attribute {name!r}")
    # Imported when first asked for: torch takes seconds.
    home = "rlx.collector.opening" if name.endswith("Env") else "rlx.collector.collector"
    return getattr(import_module(home), name)
