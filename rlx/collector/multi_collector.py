"""Collectors with several workers: in processes of this machine, or on the machines of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any, ClassVar, Literal

import torch
from tensordict import NestedKey
from tensordict.nn import InteractionType

from rlx.collector.base_collector import BaseCollector
from rlx.collector.collector import exploration, made_by, names_of, none_below_1
from rlx.collector.environment.gym_env import EnvSource, with_options
from rlx.collector.environment.vector import Autoreset
from rlx.collector.policy.spec import instance, is_module
from rlx.collector.rollout.infos import flat_keys
from rlx.collector.step_source import BatchPlan, TrajFormat
from rlx.collector.ted import BatchDelivery, CatResults, Device, Postproc
from rlx.collector.worker.step_pool import PolicyFactory, WorkerConfig
from rlx.engine.actor import Actors
from rlx.engine.engines import cores
from rlx.engine.local_actors import LocalActors
from rlx.engine.ray_engine import RayActors
from rlx.errors import CollectError
from rlx.numbers import check_flag, check_real, check_whole

_BACKENDS = ("ray", "rpc", "distributed")


class MultiCollector(BaseCollector):
    """Iterator over batches of steps as TED TensorDicts, collected by B workers, each in its own process.

    With ``sync``, every batch has a part from each worker, and workers wait until the next batch is requested: the same
    seed gives the same batches. Their shape is [B, P, T] with P environments per worker, or [B, T] with single ones.
    Without ``sync``, each batch comes from one worker, [P, T] or [T], in the order in which they finish, and all
    workers continue: at most two batches ahead of the learner.

    A worker whose process dies, or hangs for longer than ``step_timeout``, is replaced, with other seeds, and its
    unfinished trajectories end there: a warning reports it, and ``lost_episodes`` counts them. A worker that dies
    three times without progress ends the run. Observations pass through shared memory.

    Args:
        create_env_fn: one environment per worker, as in ``Collector``; it is sent to the worker, so cloudpickle must
            support it.
        policy: as in ``Collector``; every worker has a copy, which ``update_policy_weights_`` updates.
        sync: whether workers wait for each other; ``MultiSyncCollector`` and ``MultiAsyncCollector`` fix it.
        frames_per_batch: steps per batch: of all workers with ``sync``, of one without; or a list, one per worker.
        total_frames, max_frames_per_traj, init_random_frames, reset_at_each_iter: as in ``Collector``.
        split_trajs, trajs_per_batch, traj_format, postproc, replay_buffer: as in ``Collector``.
        device, storing_device, policy_device, exploration_type, set_truncated, seed: as in ``Collector``.
        drop, info_keys, autoreset: as in ``Collector``.
        track_policy_version: as in ``Collector``; by default, true without ``sync``.
        cat_results: "stack" for the shapes above; 0 joins workers along the environments, [B * P, T] or [B * T]; -1
            joins them along time, [P, B * T] or [B * T].
        preemptive_threshold: fraction of the workers; once this fraction has finished a batch, the others stop at their
            next step. Batches have ``("collector", "mask")``, False for missing steps, whose trajectory id is -1.
        num_threads: number of torch threads in a worker.
        create_env_kwargs: as in ``Collector``, or a list with one dict per worker.
        policy_factory: a function that returns the policy in every worker. It is also called in this process: if it
            returns a module, all workers get the weights of that module. Or a list of functions, one per worker: these
            are not called in this process, and weights cannot be updated.
        step_timeout: seconds that make, reset, step or close may take, without limit by default; a worker that
            exceeds them is killed.
        actors: where workers run; in processes of this machine by default. The collector opens and closes it.

    Raises:
        CollectError: an environment cannot be created or sent, fails, or does not fit the policy; or a size is invalid.
        WorkerLostError: a worker died three times without progress.

    Example:
        >>> with MultiCollector(["CartPole-v1"] * 2, frames_per_batch=20, total_frames=50) as collector:
        ...     [list(batch.shape) for batch in collector]
        [[2, 10], [2, 10], [2, 5]]
    """

    _is_sync: ClassVar[bool | None] = None

    def __init__(
        self,
        create_env_fn: Sequence[EnvSource],
        policy: Any = None,
        *,
        sync: bool = True,
        frames_per_batch: int | Sequence[int] | None = None,
        total_frames: int = -1,
        max_frames_per_traj: int | None = None,
        init_random_frames: int | None = 0,
        reset_at_each_iter: bool = False,
        split_trajs: bool | None = False,
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
        autoreset: Autoreset | None = None,
        cat_results: CatResults = "stack",
        preemptive_threshold: float | None = None,
        num_threads: int = 1,
        create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        policy_factory: Callable[[], Any] | Sequence[Callable[[], Any]] | None = None,
        step_timeout: float | None = None,
        actors: Actors | None = None,
    ) -> None:
        if isinstance(create_env_fn, str) or not isinstance(create_env_fn, Sequence) or not create_env_fn:
            raise CollectError(f"create_env_fn {create_env_fn!r}: expected a list, an environment for every worker")
        if cat_results not in ("stack", 0, -1):
            raise CollectError(f"cat_results {cat_results!r}: expected 'stack', 0 or -1")
        sync = check_flag("sync", sync, error=CollectError) if self._is_sync is None else self._is_sync
        module, policies = _policies(policy, policy_factory, len(create_env_fn))
        kwargs = _each(create_env_kwargs, len(create_env_fn), "create_env_kwargs")
        runs_on = policy_device or device
        actors = _actors(actors, step_timeout)
        _check_preemption(preemptive_threshold, actors, replay_buffer, sync=sync)
        configs = [
            WorkerConfig(
                with_options(source, options),
                chosen,
                None if runs_on is None else str(runs_on),
                seed,
                none_below_1(max_frames_per_traj),
                exploration(exploration_type),
                num_threads,
                names_of(drop),
                flat_keys(info_keys),
                autoreset,
            )
            for source, options, chosen in zip(create_env_fn, kwargs, policies, strict=True)
        ]
        plan = BatchPlan(
            _frames(frames_per_batch, len(configs), sync=sync),
            total_frames,
            trajs_per_batch,
            traj_format,
            init_random_frames or 0,
            reset_at_each_iter,
            set_truncated,
            not sync if track_policy_version is None else track_policy_version,
            cat_results if sync else 0,
            sync,
            preemptive_threshold,
        )
        delivery = BatchDelivery(
            check_flag("split_trajs", split_trajs or False, error=CollectError) and trajs_per_batch is None,
            storing_device or device,
            postproc,
            replay_buffer,
        )
        super().__init__(actors, configs, module, plan, delivery, has_copies=True)


def _actors(actors: Actors | None, step_timeout: float | None) -> Actors:
    if step_timeout is not None:
        check_real("step_timeout", step_timeout, above=0, error=CollectError)
    if actors is None:
        return LocalActors(step_timeout)
    if step_timeout is not None:
        raise CollectError("step_timeout: expected no actors", hint="actors=LocalActors(step_timeout=SECONDS)")
    return actors


def _policies(
    policy: Any, factory: Callable[[], Any] | Sequence[Callable[[], Any]] | None, workers: int
) -> tuple[torch.nn.Module | None, Sequence[Any]]:
    if factory is None:
        policy = instance(policy)
        return policy if is_module(policy) else None, [policy] * workers
    if isinstance(factory, Sequence):
        if policy is not None:
            raise CollectError("policy and policy_factory: expected only one of them")
        makes: Sequence[Callable[[], Any]] = _each(factory, workers, "policy_factory")
        return None, [PolicyFactory(make) for make in makes]
    made = made_by(factory, policy)
    return made if is_module(made) else None, [PolicyFactory(factory)] * workers


def _each(given: Any, workers: int, name: str) -> Sequence[Any]:
    if isinstance(given, Mapping) or not isinstance(given, Sequence):
        return [given] * workers
    if len(given) != workers:
        raise CollectError(f"{name} has {len(given)} entries, expected one for each of {workers} workers")
    return given


def _frames(frames: int | Sequence[int] | None, workers: int, *, sync: bool) -> Sequence[int] | None:
    if frames is None:
        return None
    if isinstance(frames, Sequence) and not isinstance(frames, str):
        return _each(frames, workers, "frames_per_batch")
    frames = check_whole("frames_per_batch", frames, error=CollectError)
    return [frames // workers if sync else frames] * workers


def _check_preemption(threshold: float | None, actors: Actors, replay_buffer: Any, *, sync: bool) -> None:
    if threshold is None:
        return
    check_real("preemptive_threshold", threshold, 0, 1, above=0, error=CollectError)
    if not sync or not actors.shares_memory:
        raise CollectError(
            "preemptive_threshold: expected workers of this machine that wait for each other (sync=True)"
        )
    if replay_buffer is not None and replay_buffer.storage.ndim > 1:
        raise CollectError(
            f"preemptive_threshold leaves holes: expected a replay buffer of ndim=1, found {replay_buffer.storage.ndim}"
        )


class MultiSyncCollector(MultiCollector):
    """``MultiCollector(sync=True)``.

    Example:
        >>> make = ["CartPole-v1", "CartPole-v1"]
        >>> with rlx.collector.MultiSyncCollector(make, frames_per_batch=20, total_frames=40) as collector:
        ...     sum(batch.numel() for batch in collector)
        40
    """

    _is_sync = True


class MultiAsyncCollector(MultiCollector):
    """``MultiCollector(sync=False)``.

    Example:
        >>> make = ["CartPole-v1", "CartPole-v1"]
        >>> with rlx.collector.MultiAsyncCollector(make, frames_per_batch=20, total_frames=40) as collector:
        ...     sum(batch.numel() for batch in collector)
        40
    """

    _is_sync = False


# By their names in TorchRL before 0.13.
MultiSyncDataCollector = MultiSyncCollector
MultiaSyncDataCollector = MultiAsyncCollector


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
        options: the other arguments of ``MultiCollector``, but ``actors``, ``step_timeout`` and
            ``preemptive_threshold``. A ``replay_buffer`` is written in this process.

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
        **options: Any,
    ) -> None:
        if backend not in _BACKENDS:
            raise CollectError(f"backend {backend!r}: expected one of {', '.join(_BACKENDS)}, which all run on Ray")
        sources = _for_each(create_env_fn, num_collectors)
        if refused := sorted({"actors", "step_timeout", "preemptive_threshold"} & options.keys()):
            raise CollectError(f"{refused[0]}: a DistributedCollector does not support it")
        actors = _ray_actors(len(sources), ray_init_config, remote_configs)
        super().__init__(sources, policy, sync=sync, **options, actors=actors)


def _for_each(create_env_fn: EnvSource | Sequence[EnvSource], workers: int | None) -> Sequence[EnvSource]:
    if isinstance(create_env_fn, str) or not isinstance(create_env_fn, Sequence):
        return [create_env_fn] * (1 if workers is None else check_whole("num_collectors", workers, error=CollectError))
    if workers not in (None, len(create_env_fn)):
        raise CollectError(f"num_collectors={workers}: expected as many environments, found {len(create_env_fn)}")
    return create_env_fn


def _ray_actors(
    workers: int,
    init: Mapping[str, Any] | None,
    options: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
) -> RayActors:
    config = {name: value for name, value in (init or {}).items() if value is not None}
    each = _each({} if options is None else options, workers, "remote_configs")
    needed = ceil(sum(float(one.get("num_cpus", 1)) for one in each))
    return RayActors(config.pop("address", None), cpus=max(needed, cores()), config=config, options=each)


# Names of TorchRL for its backends.
RayCollector = DistributedCollector
RPCCollector = DistributedCollector
