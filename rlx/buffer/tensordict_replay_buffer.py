"""Replay buffers whose batches name their rows and take priorities back, and those that sample by priority."""

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import NestedKey, TensorDictBase

from rlx.buffer.batch import TENSORDICT, Form
from rlx.buffer.prefetch import Draw
from rlx.buffer.protocol import Rows, Sampler, Storage, Writer
from rlx.buffer.replay_buffer import Collate, ReplayBuffer
from rlx.buffer.sampler.prioritized import PrioritizedSampler, Reduction
from rlx.buffer.storage.dataset import as_storage
from rlx.buffer.storage.lists import ListStorage
from rlx.buffer.transform.compose import Transform
from rlx.errors import SchemaMismatchError
from rlx.store.dataset import Dataset


class TensorDictReplayBuffer(ReplayBuffer):
    """A ``ReplayBuffer`` of TensorDicts that puts ``index`` (int64 [n], the rows) into every batch.

    Args:
        priority_key: where ``update_tensordict_priority`` finds priorities, and ``extend`` those of new steps, if they
            have any; all else as for ``ReplayBuffer``.

    Example:
        >>> from tensordict import TensorDict
        >>> buffer = TensorDictReplayBuffer(batch_size=4)
        >>> rows = buffer.extend(TensorDict({"observation": torch.arange(10, 13)}, [3]))
        >>> batch = buffer.sample()
        >>> bool((batch["observation"] == batch["index"] + 10).all())
        True
    """

    def __init__(
        self,
        *,
        storage: Storage | Dataset | None = None,
        sampler: Sampler | None = None,
        writer: Writer | None = None,
        transform: Transform | None = None,
        batch_size: int | None = None,
        prefetch: int | None = None,
        pin_memory: bool = False,
        collate_fn: Collate | None = None,
        generator: torch.Generator | None = None,
        dim_extend: int | None = None,
        priority_key: NestedKey = "td_error",
    ) -> None:
        super().__init__(
            storage=storage,
            sampler=sampler,
            writer=writer,
            transform=transform,
            batch_size=batch_size,
            prefetch=prefetch,
            pin_memory=pin_memory,
            collate_fn=collate_fn,
            generator=generator,
            dim_extend=dim_extend,
        )
        self._priority_key = priority_key

    def update_tensordict_priority(self, batch: TensorDictBase) -> None:
        """Take the priorities of a batch, by its ``index`` and what stands at the priority key, [n] or [n, ...].

        Several numbers per step are reduced as the sampler's ``reduction`` says: to the largest by default.

        Raises:
            KeyError: the batch has no index, or no priorities.
        """
        rows, priority = batch["index"], batch[self._priority_key]
        if rows.ndim > 1:  # of rows that are trajectories
            rows = rows.reshape(len(rows), -1)[:, 0]
        self.update_priority(rows, priority)

    def _check_form(self, form: Form) -> None:
        super()._check_form(form)
        if form != TENSORDICT:
            raise SchemaMismatchError(
                f"{type(self).__name__}: expected a TensorDict, found a {form.name}", hint="use ReplayBuffer"
            )

    def _extended(self, rows: Rows, steps: TensorDictBase) -> None:
        priority = steps.get(self._priority_key, None)
        if priority is not None:
            self._set_priority(rows, priority)

    def _marks(self, draw: Draw) -> Mapping[Any, Any]:
        return self._info(draw)


class PrioritizedReplayBuffer(ReplayBuffer):
    """A ``ReplayBuffer`` that samples by priority.

    Args:
        alpha: how much priorities count; 0: not at all.
        beta: how much of the bias is undone; 1: all of it.
        eps: added to every priority.
        storage: where steps are kept; 1,000 of them in a list by default.
        reduction: the priority of a step that is given several.
        generator: seeds the sampler.
        transform: as for ``ReplayBuffer``, and so are those that follow.
        batch_size: as there.
        prefetch: as there.
        pin_memory: as there.
        collate_fn: as there.
        dim_extend: as there.

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
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        storage: Storage | Dataset | None = None,
        reduction: Reduction = "max",
        generator: torch.Generator | None = None,
        transform: Transform | None = None,
        batch_size: int | None = None,
        prefetch: int | None = None,
        pin_memory: bool = False,
        collate_fn: Collate | None = None,
        dim_extend: int | None = None,
    ) -> None:
        steps = ListStorage(1_000) if storage is None else as_storage(storage)
        super().__init__(
            storage=steps,
            sampler=PrioritizedSampler(steps.max_size, alpha, beta, eps, reduction=reduction, generator=generator),
            transform=transform,
            batch_size=batch_size,
            prefetch=prefetch,
            pin_memory=pin_memory,
            collate_fn=collate_fn,
            dim_extend=dim_extend,
        )


class TensorDictPrioritizedReplayBuffer(TensorDictReplayBuffer):
    """A ``TensorDictReplayBuffer`` that samples by priority.

    Args:
        alpha: how much priorities count; 0: not at all.
        beta: how much of the bias is undone; 1: all of it.
        priority_key: where ``update_tensordict_priority`` finds priorities.
        eps: as for ``PrioritizedReplayBuffer``, and so are those that follow.
        storage: as there.
        reduction: as there.
        generator: as there.
        transform: as there.
        batch_size: as there.
        prefetch: as there.
        pin_memory: as there.
        collate_fn: as there.
        dim_extend: as there.

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
        alpha: float,
        beta: float,
        priority_key: NestedKey = "td_error",
        eps: float = 1e-8,
        storage: Storage | Dataset | None = None,
        reduction: Reduction = "max",
        generator: torch.Generator | None = None,
        transform: Transform | None = None,
        batch_size: int | None = None,
        prefetch: int | None = None,
        pin_memory: bool = False,
        collate_fn: Collate | None = None,
        dim_extend: int | None = None,
    ) -> None:
        steps = ListStorage(1_000) if storage is None else as_storage(storage)
        super().__init__(
            storage=steps,
            sampler=PrioritizedSampler(steps.max_size, alpha, beta, eps, reduction=reduction, generator=generator),
            transform=transform,
            batch_size=batch_size,
            prefetch=prefetch,
            pin_memory=pin_memory,
            collate_fn=collate_fn,
            dim_extend=dim_extend,
            priority_key=priority_key,
        )
