"""Environments, policies, and the collectors that step them and return batches.

Start at ``collector.Collector`` in this process and ``multi_collector.MultiCollector`` in several; both are a
``base_collector.BaseCollector``.
"""

from typing import TYPE_CHECKING

from rlx.errors import check_installed
from rlx.lazy_imports import lazily

check_installed("gymnasium", "collecting needs gymnasium", "gym")

if TYPE_CHECKING:
    from rlx.collector.base_collector import BaseCollector as BaseCollector
    from rlx.collector.base_collector import DataCollectorBase as DataCollectorBase
    from rlx.collector.collector import Collector as Collector
    from rlx.collector.collector import SyncDataCollector as SyncDataCollector
    from rlx.collector.environment.gym_env import GymEnv as GymEnv
    from rlx.collector.environment.gym_env import ParallelEnv as ParallelEnv
    from rlx.collector.environment.gym_env import SerialEnv as SerialEnv
    from rlx.collector.multi_collector import DistributedCollector as DistributedCollector
    from rlx.collector.multi_collector import MultiAsyncCollector as MultiAsyncCollector
    from rlx.collector.multi_collector import MultiaSyncDataCollector as MultiaSyncDataCollector
    from rlx.collector.multi_collector import MultiCollector as MultiCollector
    from rlx.collector.multi_collector import MultiSyncCollector as MultiSyncCollector
    from rlx.collector.multi_collector import MultiSyncDataCollector as MultiSyncDataCollector
    from rlx.collector.multi_collector import RayCollector as RayCollector
    from rlx.collector.multi_collector import RPCCollector as RPCCollector

__all__, __getattr__, __dir__ = lazily(__name__)
