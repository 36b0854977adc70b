"""Batches of steps for a learner, collected in this process, under the names that TorchRL's users know."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from tensordict import NestedKey
from tensordict.nn import InteractionType

from rlx.collector.base_collector import BaseCollector
from rlx.collector.batch_delivery import BatchDelivery, Device, Postproc
from rlx.collector.environment.opening import EnvSource, with_options
from rlx.collector.plan import Plan, TrajFormat
from rlx.collector.policy.spec import instance, is_module
from rlx.collector.rollout.infos import flat_keys
from rlx.collector.worker.step_worker import WorkerConfig
from rlx.engine.inline_actors import InlineActors
from rlx.errors import CollectError
from rlx.schema import name_of


class Collector(BaseCollector):
    """Iterator over batches of steps as TED TensorDicts, of shape [T], or [n, T] of n environments.

    Trajectories continue from batch to batch. ``("collector", "traj_ids")`` are unique and increase.

    Args:
        create_env_fn: an environment, a gymnasium id, or what makes one.
        policy: a TensorDictModule, or a function of a TensorDict, that writes ``action``; a module or function that
            returns actions [n, ...] for observations [n, ...], or actions and a dict of more; random if not given.
            Batches hold all its outputs. Keys that it writes under ``next`` and reads at the root are its state, which
            is carried from step to step and reset in every episode; see ``docs/collecting.md``.
        frames_per_batch: steps of all environments a batch, rounded down to as many in each.
        total_frames: steps of all batches, exactly: the last batches are smaller. -1: no limit.
        max_frames_per_traj: where a trajectory is truncated, and a new one begun, if it lasts so long; nowhere if it is
            none, or less than 1.
        init_random_frames: the number of first steps with random actions; other outputs of the policy are kept, but
            ``*log_prob`` is NaN.
        reset_at_each_iter: whether every batch begins with new episodes; those left are flagged truncated.
        split_trajs: whether batches are [N, T_max], a row a trajectory, with ``("collector", "mask")``.
        trajs_per_batch: whole episodes per batch, exactly; frames_per_batch, if given, is then the number of steps that
            environments make at once.
        traj_format: of such batches: "padded", [N, T_max] as with split_trajs; "cat", [S] episodes concatenated.
        postproc: is applied to every batch: a function, or a transform of ``rlx.buffer``; what of these looks at other
            steps sees those of the batch alone, so whole trajectories with trajs_per_batch.
        replay_buffer: is extended by every batch, and None is yielded. A storage of one dimension takes the steps of an
            environment one by one, and of a vectorised one a row of steps for each of its environments; of trajectories
            the real steps only. One of more dimensions takes batches as they are.
        device: of policy and batches, if nothing else is said of these.
        storing_device: where batches are put.
        policy_device: where the policy runs.
        exploration_type: how a distribution in the policy is sampled: ``InteractionType`` of tensordict, which TorchRL
            calls ExplorationType, or its name: "random", "deterministic", "mode", "mean" or "median".
        set_truncated: whether the last step of every batch is flagged truncated, without ending its trajectory.
        seed: of environments and random actions.
        track_policy_version: whether every step has the number of the policy that chose it, ``policy_version``.
        drop: keys that the policy writes and batches shall not have: ``["logits", ("next", "value")]``.
        info_keys: entries of the environment's ``info`` that batches have under ``("next", "info", KEY)``: numbers,
            arrays and texts; or "all" of the first batch. Where a step has no such entry, it is NaN, 0, False or "".
        create_env_kwargs: keyword arguments of the function in ``create_env_fn``; of an id, those of gymnasium.make.
        policy_factory: a function that makes the policy, instead of ``policy``.

    Raises:
        CollectError: the environment cannot be had, fails, or does not fit the policy; or sizes make no sense.

    Example:
        >>> with Collector("CartPole-v1", frames_per_batch=20, total_frames=50) as collector:
        ...     [batch.shape[0] for batch in collector]
        [20, 20, 10]
    """

    def __init__(
        self,
        create_env_fn: EnvSource,
        policy: Any = None,
        *,
        frames_per_batch: int | None = None,
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
        track_policy_version: bool = False,
        drop: Sequence[NestedKey] = (),
        info_keys: Sequence[NestedKey] | Literal["all"] | None = None,
        create_env_kwargs: Mapping[str, Any] | None = None,
        policy_factory: Callable[[], Any] | None = None,
    ) -> None:
        if policy_factory is not None:
            policy = made_by(policy_factory, policy)
        policy, runs_on = instance(policy), policy_device or device
        config = WorkerConfig(
            with_options(create_env_fn, create_env_kwargs),
            policy,
            None if runs_on is None else str(runs_on),
            seed,
            none_below_1(max_frames_per_traj),
            exploration(exploration_type),
            drop=names_of(drop),
            info_keys=flat_keys(info_keys),
        )
        plan = Plan(
            None if frames_per_batch is None else [frames_per_batch],
            total_frames,
            trajs_per_batch,
            traj_format,
            init_random_frames or 0,
            reset_at_each_iter,
            set_truncated,
            track_policy_version,
        )
        delivery = BatchDelivery(
            split_trajs and trajs_per_batch is None, storing_device or device, postproc, replay_buffer
        )
        module = policy if is_module(policy) else None
        super().__init__(InlineActors(), [config], module, plan, delivery, has_copies=False)


def names_of(keys: Sequence[NestedKey]) -> list[str]:
    """Return keys of a TensorDict as names of fields.

    Example:
        >>> names_of(["logits", ("next", "value")])
        ['logits', 'next/value']
    """
    if isinstance(keys, str):
        raise CollectError(f"drop {keys!r}: expected a list of keys")
    return [name_of(key) for key in keys]


def made_by(factory: Callable[[], Any], policy: Any) -> Any:
    """Return the policy that a factory makes.

    Raises:
        CollectError: there is a policy already.
    """
    if policy is not None:
        raise CollectError("policy and policy_factory: expected only one of them")
    return factory()


def none_below_1(limit: int | None) -> int | None:
    """Return a limit, or none where it is 0 or less, as TorchRL has it."""
    return None if limit is None or limit < 1 else limit


def exploration(given: InteractionType | str) -> str:
    """Return name of the ``InteractionType`` that is meant.

    Example:
        >>> exploration("deterministic"), exploration(InteractionType.RANDOM)
        ('DETERMINISTIC', 'RANDOM')
    """
    name = given.name if isinstance(given, InteractionType) else str(given).upper()
    if name not in InteractionType.__members__:
        names = ", ".join(sorted(InteractionType.__members__)).lower()
        raise CollectError(f"exploration_type {given!r}: expected one of {names}")
    return name


# Name of TorchRL before 0.13.
SyncDataCollector = Collector
