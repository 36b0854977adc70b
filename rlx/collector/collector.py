"""Collector: batches of steps for a learner, collected in this process, under TorchRL's names."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from tensordict import NestedKey
from tensordict.nn import InteractionType

from rlx.collector.base_collector import BaseCollector
from rlx.collector.environment.gym_env import EnvSource, with_options
from rlx.collector.environment.vector import Autoreset
from rlx.collector.policy.spec import instance, is_module
from rlx.collector.rollout.infos import flat_keys
from rlx.collector.step_source import BatchPlan, TrajFormat
from rlx.collector.ted import BatchDelivery, Device, Postproc
from rlx.collector.worker.step_pool import WorkerConfig
from rlx.engine.local_actors import InlineActors
from rlx.errors import CollectError
from rlx.numbers import check_flag, check_whole
from rlx.schema import name_of


class Collector(BaseCollector):
    """Iterator over batches of steps as TED TensorDicts, of shape [T], or [n, T] of n environments.

    Trajectories continue from batch to batch. ``("collector", "traj_ids")`` are unique and increase.

    Args:
        create_env_fn: an environment, a gymnasium id, or a function that returns an environment.
        policy: a TensorDictModule, or a function of a TensorDict, that writes ``action``; a module or function that
            returns actions [n, ...] for observations [n, ...], or a pair of actions and a dict of other outputs; random
            actions by default. Batches hold all its outputs. Keys that it writes under ``next`` and reads at the root
            are its state, which is carried from step to step and reset in every episode; see ``docs/collecting.md``.
        frames_per_batch: steps per batch over all environments, rounded down to a multiple of their number.
        total_frames: exact number of steps of all batches together: the last batches are smaller. -1: no limit.
        max_frames_per_traj: number of steps after which a trajectory is truncated and a new one begins; no limit if it
            is None or less than 1.
        init_random_frames: number of steps with random actions at the start; other outputs of the policy are kept, but
            ``*log_prob`` is NaN.
        reset_at_each_iter: whether every batch begins with new episodes; unfinished ones are flagged truncated.
        split_trajs: whether batches are [N, T_max], one row per trajectory, with ``("collector", "mask")``.
        trajs_per_batch: exact number of whole episodes per batch; frames_per_batch, if given, is then the number of
            steps that environments take at once.
        traj_format: layout with trajs_per_batch: "padded", [N, T_max] as with split_trajs; "cat", [S], concatenated.
        postproc: function or transform of ``rlx.buffer``, applied to every batch. Transforms that need other steps,
            such as ``NStep``, see only those of the batch: whole trajectories with trajs_per_batch.
        replay_buffer: buffer to extend with every batch; None is then yielded instead. A storage with one dimension
            takes single steps of one environment, or one row of steps for each of several environments; padding is
            left out. A storage with more dimensions takes batches unchanged.
        device: device of policy and batches, unless policy_device or storing_device is given.
        storing_device: device of batches.
        policy_device: device on which the policy runs.
        exploration_type: how a distribution in the policy is sampled: ``InteractionType`` of tensordict, which TorchRL
            calls ExplorationType, or its name: "random", "deterministic", "mode", "mean" or "median".
        set_truncated: whether the last step of every batch is flagged truncated, without ending its trajectory.
        seed: random seed of environments and random actions.
        track_policy_version: whether steps have ``policy_version``, the number of the policy that chose the action.
        drop: outputs of the policy to leave out of batches, such as ``["logits", ("next", "value")]``.
        info_keys: entries of ``info`` to keep under ``("next", "info", KEY)``: numbers, arrays and texts; or "all", the
            entries of the first batch. A step without the entry gets NaN or "".
        autoreset: autoreset mode of a vector environment that declares none: "next-step", "same-step" or "disabled".
        create_env_kwargs: keyword arguments of the function in ``create_env_fn``, or of gymnasium.make for an id.
        policy_factory: a function that returns the policy, instead of ``policy``.

    Raises:
        CollectError: the environment cannot be created, fails, or does not fit the policy; or a size is invalid.

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
        track_policy_version: bool = False,
        drop: Sequence[NestedKey] = (),
        info_keys: Sequence[NestedKey] | Literal["all"] | None = None,
        autoreset: Autoreset | None = None,
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
            autoreset=autoreset,
        )
        plan = BatchPlan(
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
            check_flag("split_trajs", split_trajs or False, error=CollectError) and trajs_per_batch is None,
            storing_device or device,
            postproc,
            replay_buffer,
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
    """Return the policy that a factory returns."""
    if policy is not None:
        raise CollectError("policy and policy_factory: expected only one of them")
    return factory()


def none_below_1(limit: int | None) -> int | None:
    """Return a limit, or None if it is below 1, as in TorchRL."""
    if limit is None:
        return None
    limit = check_whole("max_frames_per_traj", limit, None, error=CollectError)
    return None if limit < 1 else limit


def exploration(given: InteractionType | str) -> str:
    """Return the name of an ``InteractionType``, given as a member or by name.

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
