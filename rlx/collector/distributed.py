"""DistributedCollector: batches of steps for a learner, collected on the machines of a Ray cluster."""

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any, Literal

from tensordict import NestedKey
from tensordict.nn import InteractionType

from rlx.collector.batch_delivery import Device, Postproc
from rlx.collector.environment.opening import EnvSource
from rlx.collector.multi_collector import MultiCollector
from rlx.collector.plan import TrajFormat
from rlx.collector.ted import CatResults
from rlx.engine.engines import cores
from rlx.engine.ray_actors import RayActors
from rlx.errors import CollectError

_BACKENDS = ("ray", "rpc", "distributed")


class DistributedCollector(MultiCollector):
    """MultiCollector whose workers are Ray actors, on any machine of the cluster.

    Batches and new weights are sent by value, and a worker that has begun a batch cannot be stopped:
    ``preemptive_threshold`` is not supported. Otherwise it behaves like a MultiCollector. A lost worker is replaced,
    even if its machine is lost. To collect whole datasets without a learner, use ``rlx collect --engine ray``: every
    worker then writes its own shards.

    Args:
        create_env_fn: one environment per worker, or one for all ``num_collectors`` workers; as in ``MultiCollector``.
        policy: as in ``MultiCollector``; it is sent to every worker.
        backend: "ray"; TorchRL's "rpc" and "distributed" are accepted as other names for it.
        num_collectors: number of workers, if all have the same environment.
        ray_init_config: arguments of ``ray.init``, such as ``address``. Without an address and ``$RAY_ADDRESS``, and if
            this process is not connected to Ray, a cluster with one CPU per worker starts on this machine, and stops
            with the collector.
        remote_configs: resources of a worker, as for ``ray.remote``: ``num_cpus`` (1 by default), ``num_gpus``,
            ``memory``, ``resources``; or a list with one dict per worker.
        sync: as in ``MultiCollector``; False by default, as in TorchRL.
        frames_per_batch: as in ``MultiCollector``.
        total_frames: as in ``MultiCollector``.
        max_frames_per_traj: as in ``MultiCollector``.
        init_random_frames: as in ``MultiCollector``.
        reset_at_each_iter: as in ``MultiCollector``.
        split_trajs: as in ``MultiCollector``.
        trajs_per_batch: as in ``MultiCollector``.
        traj_format: as in ``MultiCollector``.
        postproc: as in ``MultiCollector``.
        replay_buffer: as in ``MultiCollector``; batches are sent to this process and written here.
        device: as in ``MultiCollector``.
        storing_device: as in ``MultiCollector``.
        policy_device: as in ``MultiCollector``.
        exploration_type: as in ``MultiCollector``.
        set_truncated: as in ``MultiCollector``.
        seed: as in ``MultiCollector``; with ``sync`` the batches are the same too.
        track_policy_version: as in ``Collector``; by default, true without ``sync``.
        drop: as in ``MultiCollector``.
        info_keys: as in ``MultiCollector``.
        cat_results: as in ``MultiCollector``.
        num_threads: as in ``MultiCollector``.
        create_env_kwargs: as in ``MultiCollector``.
        policy_factory: as in ``MultiCollector``.

    Raises:
        CollectError: as in ``MultiCollector``; or the backend is unknown.
        MissingExtraError: Ray is not installed.
        EngineError: no cluster answers at the address.

    Example:
        >>> collector = DistributedCollector(  # doctest: +SKIP
        ...     ["CartPole-v1"] * 4, policy, sync=True, frames_per_batch=400, total_frames=100_000,
        ...     ray_init_config={"address": "auto"},
        ... )
        >>> for batch in collector:  # doctest: +SKIP
        ...     loss(batch).backward()  # batch is [4, 100]
        ...     optimizer.step()
        ...     collector.update_policy_weights_()
        >>> collector.shutdown()  # doctest: +SKIP
    """

    def __init__(
        self,
        create_env_fn: EnvSource | Sequence[EnvSource],
        policy: Any = None,
        *,
        backend: str = "ray",
        num_collectors: int | None = None,
        ray_init_config: Mapping[str, Any] | None = None,
        remote_configs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        sync: bool = False,
        frames_per_batch: int | Sequence[int] | None = None,
        total_frames: int = -1,
        max_frames_per_traj: int | None = None,
        init_random_frames: int | None = 0,
        reset_at_each_iter: bool = False,
        split_trajs: bool = False,
        trajs_per_batch: int | None = None,
        traj_format: TrajFormat = "padded",
        postproc: Postproc | None = None,
        replay_buffer: Any = None,
        device: Device | None = None,
        storing_device: Device | None = None,
        policy_device: Device | None = None,
        exploration_type: InteractionType | str = InteractionType.RANDOM,
        set_truncated: bool = False,
        seed: int = 0,
        track_policy_version: bool | None = None,
        drop: Sequence[NestedKey] = (),
        info_keys: Sequence[NestedKey] | Literal["all"] | None = None,
        cat_results: CatResults = "stack",
        num_threads: int = 1,
        create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        policy_factory: Callable[[], Any] | Sequence[Callable[[], Any]] | None = None,
    ) -> None:
        if backend not in _BACKENDS:
            raise CollectError(f"backend {backend!r}: expected one of {', '.join(_BACKENDS)}, which all run on Ray")
        sources = _for_each(create_env_fn, num_collectors)
        super().__init__(
            sources,
            policy,
            sync=sync,
            frames_per_batch=frames_per_batch,
            total_frames=total_frames,
            max_frames_per_traj=max_frames_per_traj,
            init_random_frames=init_random_frames,
            reset_at_each_iter=reset_at_each_iter,
            split_trajs=split_trajs,
            trajs_per_batch=trajs_per_batch,
            traj_format=traj_format,
            postproc=postproc,
            replay_buffer=replay_buffer,
            device=device,
            storing_device=storing_device,
            policy_device=policy_device,
            exploration_type=exploration_type,
            set_truncated=set_truncated,
            seed=seed,
            track_policy_version=track_policy_version,
            drop=drop,
            info_keys=info_keys,
            cat_results=cat_results,
            num_threads=num_threads,
            create_env_kwargs=create_env_kwargs,
            policy_factory=policy_factory,
            actors=_actors(len(sources), ray_init_config, remote_configs),
        )


def _for_each(create_env_fn: EnvSource | Sequence[EnvSource], workers: int | None) -> Sequence[EnvSource]:
    if isinstance(create_env_fn, str) or not isinstance(create_env_fn, Sequence):
        return [create_env_fn] * (1 if workers is None else workers)
    if workers not in (None, len(create_env_fn)):
        raise CollectError(f"num_collectors={workers}: expected as many environments, found {len(create_env_fn)}")
    return create_env_fn


def _actors(
    workers: int,
    init: Mapping[str, Any] | None,
    options: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
) -> RayActors:
    config = {name: value for name, value in (init or {}).items() if value is not None}
    if options is not None and not isinstance(options, Mapping) and len(options) != workers:
        raise CollectError(f"remote_configs: expected one for each of {workers} workers, found {len(options)}")
    each = [options or {}] * workers if options is None or isinstance(options, Mapping) else options
    needed = ceil(sum(float(one.get("num_cpus", 1)) for one in each))
    return RayActors(config.pop("address", None), cpus=max(needed, cores()), config=config, options=options)


# Names of TorchRL for its backends.
RayCollector = DistributedCollector
RPCCollector = DistributedCollector
