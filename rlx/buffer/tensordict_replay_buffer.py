"""Replay buffers whose batches have their rows as ``index``, and prioritized ones."""

from collections.abc import Mapping
from typing import Any, SupportsFloat, Unpack

import torch
from tensordict import NestedKey, TensorDictBase

from rlx.buffer.batch import GENERATION, TENSORDICT, Form
from rlx.buffer.prefetch import Draw
from rlx.buffer.protocol import Rows, Steps, Storage
from rlx.buffer.replay_buffer import BatchOptions, BufferOptions, ReplayBuffer
from rlx.buffer.sampler.prioritized import PrioritizedSampler, Reduction
from rlx.buffer.storage.dataset import as_storage
from rlx.buffer.storage.lists import ListStorage
from rlx.errors import SchemaMismatchError
from rlx.store.dataset import Dataset
from rlx.transform.protocol import as_path


class TensorDictReplayBuffer(ReplayBuffer):
    """``ReplayBuffer`` of TensorDicts that adds ``index`` (int64 [n], the rows) to every batch.

    Args:
        priority_key: key from which ``update_tensordict_priority`` reads priorities, and ``extend`` those of new steps,
            if present.
        options: the arguments of ``ReplayBuffer``.

    Example:
        >>> from tensordict import TensorDict
        >>> buffer = TensorDictReplayBuffer(batch_size=4)
        >>> rows = buffer.extend(TensorDict({"observation": torch.arange(10, 13)}, [3]))
        >>> batch = buffer.sample()
        >>> bool((batch["observation"] == batch["index"] + 10).all())
        True
    """

    def __init__(self, *, priority_key: NestedKey = "td_error", **options: Unpack[BufferOptions]) -> None:
        super().__init__(**options)
        self.priority_key = priority_key

    def update_tensordict_priority(self, batch: TensorDictBase) -> None:
        """Update priorities from a batch: by its ``index``, the values [n] or [n, ...] of its priority key.

        Those of steps that were overwritten since are left out, and counted by ``stale_priorities``. Several numbers of
        a step are reduced as the sampler's ``reduction`` says: to the largest by default. With a sampler without
        priorities, a batch may lack them.

        Raises:
            KeyError: the batch has no index, or no priorities.
        """
        is_prioritized = isinstance(self.sampler, PrioritizedSampler)
        if (told := named_priorities(batch, self.priority_key, required=is_prioritized)) is not None:
            self.update_priority(*told)

    def _check_form(self, form: Form) -> None:
        super()._check_form(form)
        if form != TENSORDICT:
            raise SchemaMismatchError(
                f"{type(self).__name__}: expected a TensorDict, found a {form.name}", hint="use ReplayBuffer"
            )

    def _extended(self, rows: Rows, steps: Steps) -> None:
        key: Any = self.priority_key if isinstance(steps, TensorDictBase) else as_path(self.priority_key)
        priority = steps.get(key, None)
        if priority is not None:
            self._set_priority(rows, priority)

    def _marks(self, draw: Draw) -> Mapping[Any, Any]:
        return self._info(draw)


def named_priorities(
    batch: TensorDictBase, key: NestedKey, *, required: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] | None:
    """Return the arguments of ``update_priority`` that a batch has; None if it lacks priorities that are not required.

    Raises:
        KeyError: the batch has no index, or no priorities that are required.
    """
    if not required and batch.get(key, None) is None:
        return None
    rows, generation = _named_rows(batch)
    return rows, batch[key], generation


def _named_rows(batch: TensorDictBase) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the rows that the ``index`` [n, ...] of a batch names, and their generations, if it has them.

    [n] where a row is a whole trajectory.
    """
    index, generation = batch["index"], batch.get(GENERATION, None)
    first = (slice(None), *[0] * (index.ndim - 1))
    if index.ndim < 2 or not bool((index == index[(slice(None), *[slice(1)] * (index.ndim - 1))]).all()):
        return index, generation
    return index[first], None if generation is None else generation[first]


class PrioritizedReplayBuffer(ReplayBuffer):
    """``ReplayBuffer`` that samples by priority.

    Args:
        alpha: exponent of priorities; 0 samples uniformly.
        beta: exponent of the importance-sampling weights; 1 corrects all of the bias.
        eps: added to every priority.
        storage: stores the steps; a ``ListStorage`` of 1,000 steps by default.
        reduction: how several priorities of one step are reduced to one.
        generator: seeds the sampler.
        options: ``transform``, ``batch_size``, ``prefetch``, ``pin_memory``, ``collate_fn`` and ``dim_extend`` of
            ``ReplayBuffer``.

    Example:
        >>> from tensordict import TensorDict
        >>> buffer = PrioritizedReplayBuffer(alpha=1.0, beta=1.0, batch_size=4)
        >>> rows = buffer.extend(TensorDict({"observation": torch.arange(3)}, [3]))
        >>> buffer.update_priority(rows, torch.tensor([0.0, 0.0, 1.0]))
        >>> buffer.sample()["observation"]
        tensor([2, 2, 2, 2])
    """

    def __init__(
        self,
        *,
        alpha: SupportsFloat,
        beta: SupportsFloat,
        eps: float = 1e-8,
        storage: Storage | Dataset | None = None,
        reduction: Reduction = "max",
        generator: torch.Generator | None = None,
        **options: Unpack[BatchOptions],
    ) -> None:
        steps, sampler = _by_priority(alpha, beta, eps, storage, reduction, generator)
        super().__init__(storage=steps, sampler=sampler, **options)


class TensorDictPrioritizedReplayBuffer(TensorDictReplayBuffer):
    """``TensorDictReplayBuffer`` that samples by priority.

    Args:
        alpha: exponent of priorities; 0 samples uniformly.
        beta: exponent of the importance-sampling weights; 1 corrects all of the bias.
        priority_key: key from which ``update_tensordict_priority`` reads priorities.
        eps, storage, reduction, generator, options: as in ``PrioritizedReplayBuffer``.

    Example:
        >>> from tensordict import TensorDict
        >>> buffer = TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=1.0, batch_size=2)
        >>> rows = buffer.extend(TensorDict({"observation": torch.arange(3)}, [3]))
        >>> batch = buffer.sample(3).set("td_error", torch.zeros(3, 1))
        >>> buffer.update_tensordict_priority(batch)
    """

    def __init__(
        self,
        *,
        alpha: SupportsFloat,
        beta: SupportsFloat,
        priority_key: NestedKey = "td_error",
        eps: float = 1e-8,
        storage: Storage | Dataset | None = None,
        reduction: Reduction = "max",
        generator: torch.Generator | None = None,
        **options: Unpack[BatchOptions],
    ) -> None:
        steps, sampler = _by_priority(alpha, beta, eps, storage, reduction, generator)
        super().__init__(priority_key=priority_key, storage=steps, sampler=sampler, **options)


def _by_priority(
    alpha: SupportsFloat,
    beta: SupportsFloat,
    eps: float,
    storage: Storage | Dataset | None,
    reduction: Reduction,
    generator: torch.Generator | None,
) -> tuple[Storage, PrioritizedSampler]:
    steps = ListStorage(1_000) if storage is None else as_storage(storage)
    return steps, PrioritizedSampler(steps.max_size, alpha, beta, eps, reduction=reduction, generator=generator)
