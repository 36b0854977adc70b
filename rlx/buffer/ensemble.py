"""Several replay buffers sampled as one."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self, overload

import torch
from tensordict import TensorDictBase, is_leaf_nontensor

from rlx.buffer.ensemble_parts import (
    BufferChoice,
    SamplerEnsemble,
    StorageEnsemble,
    WriterEnsemble,
    first_and_rest,
    positions,
)
from rlx.buffer.replay_buffer import Collate, ReplayBuffer
from rlx.buffer.snapshot import SavedTogether
from rlx.buffer.tensordict_replay_buffer import TensorDictReplayBuffer
from rlx.buffer.transform.compose import Compose, Inverted, Transform
from rlx.errors import SchemaMismatchError
from rlx.transform.protocol import needs_neighbours


class BuffersTogether(SavedTogether):
    """Base of several buffers that are sampled as one: they have the steps, and their states are saved together."""

    @abstractmethod
    def _saved_parts(self) -> Sequence[ReplayBuffer]:
        """Return the buffers."""

    def __len__(self) -> int:
        """Return steps in all buffers."""
        return sum(map(len, self._saved_parts()))

    def shutdown(self) -> None:
        """Stop the prefetch threads of the buffers."""
        for buffer in self._saved_parts():
            buffer.shutdown()

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the next batches depend on, including the buffers."""
        return self._own_state() | {"buffers": [buffer.state_dict() for buffer in self._saved_parts()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of ``state_dict``."""
        self._load_own_state(state)
        for buffer, its in zip(self._saved_parts(), state["buffers"], strict=True):
            buffer.load_state_dict(its)


class ReplayBufferEnsemble(BuffersTogether):
    """Ensemble of n buffers: batches are [n, B / n], and ``("index", "buffer_ids")`` is the buffer of each step.

    Each buffer's own transforms are applied first, then those of the ensemble. If buffers have different keys, batches
    have the keys that all of them have; a buffer's own ``index`` becomes ``("index", "index")``. Write to each buffer
    separately.

    Args:
        buffers: the buffers; or use the arguments for their parts.
        storages: the storages of the buffers, with their transforms.
        samplers: their samplers, which also choose the buffers, instead of ``p``, ``sample_from_all`` and
            ``num_buffer_sampled``.
        writers: their writers.
        collate_fns: their ``collate_fn``, one or None for each.
        p: weight of each buffer; equal by default.
        sample_from_all: every batch has one row from each buffer; otherwise buffers are drawn with replacement.
        num_buffer_sampled: rows per batch; the number of buffers by default.
        batch_size: steps per batch, over all its rows.
        transform: applied to the whole batch.
        collate_fn: returns the batch for a list of the buffers' batches; stacks them by default.
        seed: random seed of the choice of buffers; random by default.
        generator: source of the seed.

    Raises:
        ValueError, TypeError: arguments conflict.

    Example:
        >>> from tensordict import TensorDict
        >>> buffers = [ReplayBuffer(batch_size=2) for _ in range(2)]
        >>> for number, buffer in enumerate(buffers):
        ...     rows = buffer.extend(TensorDict({"action": torch.full((5,), number)}, [5]))
        >>> ensemble = ReplayBufferEnsemble(*buffers, sample_from_all=True, batch_size=4)
        >>> ensemble.sample()["action"]
        tensor([[0, 0],
                [1, 1]])
        >>> ensemble[1, 3]["action"]
        tensor(1)
    """

    def __init__(
        self,
        *buffers: ReplayBuffer,
        storages: StorageEnsemble | None = None,
        samplers: SamplerEnsemble | None = None,
        writers: WriterEnsemble | None = None,
        collate_fns: Sequence[Collate | None] | None = None,
        p: Sequence[float] | torch.Tensor | None = None,
        sample_from_all: bool = False,
        num_buffer_sampled: int | None = None,
        batch_size: int | None = None,
        transform: Transform | None = None,
        collate_fn: Callable[[list[TensorDictBase]], TensorDictBase] | None = None,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        if storages is None:
            if samplers is not None or writers is not None or collate_fns is not None:
                raise TypeError("samplers, writers and collate_fns require storages")
        elif buffers or samplers is None:
            raise TypeError("expected either buffers, or storages and samplers")
        elif p is not None or sample_from_all or num_buffer_sampled is not None:
            raise TypeError("samplers also choose the buffers: expected no p, sample_from_all or num_buffer_sampled")
        else:
            buffers = _joined(storages, samplers, writers, collate_fns)
        for buffer in buffers:
            if not isinstance(buffer, ReplayBuffer | ReplayBufferEnsemble):
                raise TypeError(f"expected replay buffers, found {type(buffer).__name__}")
        self._choice = (
            BufferChoice(len(buffers), p, sample_from_all, num_buffer_sampled, seed, generator)
            if samplers is None
            else samplers.choice
        )
        self._buffers = buffers
        self._batch_size = batch_size
        self._transform = Compose()
        if transform is not None:
            self.append_transform(transform)
        self._collate = joined_batches if collate_fn is None else collate_fn

    def __getitem__(self, index: Any) -> Any:
        """Return a buffer, some of them as an ensemble, or the steps at rows of one or of several, stacked.

        Args:
            index: a buffer or several, and rows as ``ReplayBuffer`` takes them: ``ensemble[0]``, ``ensemble[1:]``,
                ``ensemble[0, 5]``, ``ensemble[:, [3, 4]]``.

        Raises:
            IndexError: no such buffer or row.
            SchemaMismatchError: the steps of the buffers do not stack.
        """
        first, rows = first_and_rest(index)
        chosen = positions(first, len(self._buffers))
        if isinstance(chosen, int):
            return self._buffers[chosen] if rows is None else self._buffers[chosen][rows]
        if rows is not None:
            return self._transform(self._collate([self._buffers[number][rows] for number in chosen]))
        some = ReplayBufferEnsemble(
            *(self._buffers[number] for number in chosen),
            batch_size=self._batch_size,
            transform=self._transform,
            collate_fn=self._collate,
        )
        some._choice = self._choice.among(chosen)
        return some

    def __repr__(self) -> str:
        return f"ReplayBufferEnsemble({', '.join(map(repr, self._buffers))})"

    @property
    def num_buffers(self) -> int:
        """Number of buffers."""
        return len(self._buffers)

    @property
    def batch_size(self) -> int | None:
        """Steps of a batch, unless ``sample`` overrides it."""
        return self._batch_size

    @property
    def write_count(self) -> int:
        """Steps written to all buffers since they were created or emptied."""
        return sum(buffer.write_count for buffer in self._buffers)

    @property
    def storage(self) -> StorageEnsemble:
        """The storages of the buffers."""
        return StorageEnsemble(*(buffer.storage for buffer in self._buffers))

    @property
    def sampler(self) -> SamplerEnsemble:
        """The sampler of buffers, and of steps of each."""
        samplers = SamplerEnsemble(*(buffer.sampler for buffer in self._buffers))
        samplers.choice = self._choice
        return samplers

    @property
    def writer(self) -> WriterEnsemble:
        """The writers of the buffers."""
        return WriterEnsemble(*(buffer.writer for buffer in self._buffers))

    def append_transform(self, transform: Transform, *, invert: bool = False) -> Self:
        """Append a transform of whole batches; with ``invert``, its ``inv``. Return the ensemble.

        Raises:
            ValueError: the transform needs neighbours.
        """
        return self.insert_transform(len(self._transform), transform, invert=invert)

    def insert_transform(self, index: int, transform: Transform, *, invert: bool = False) -> Self:
        """Add a transform of whole batches before the index-th, as ``append_transform`` does."""
        check_whole_batches(transform)
        self._transform.insert(index, Inverted(transform) if invert else transform)
        return self

    def empty(self) -> None:
        """Remove all steps of all buffers."""
        for buffer in self._buffers:
            buffer.empty()

    @overload
    def sample(self, batch_size: int | None = None, return_info: Literal[False] = False) -> TensorDictBase: ...
    @overload
    def sample(
        self, batch_size: int | None = None, *, return_info: Literal[True]
    ) -> tuple[TensorDictBase, dict[Any, Any]]: ...
    def sample(
        self, batch_size: int | None = None, return_info: bool = False
    ) -> TensorDictBase | tuple[TensorDictBase, dict[Any, Any]]:
        """Return a batch; with ``return_info`` also a dict with ``buffer_ids`` [n] and the buffers' own (``infos``).

        Raises:
            SamplingError: the batch cannot be split evenly, or a buffer has too few steps.
        """
        size = self._batch_size if batch_size is None else batch_size
        if size is None:
            raise ValueError("no batch size: give one to sample or to the ensemble")
        each, numbers = self._choice.steps_each(size), self._choice.next()
        pairs = [self._buffers[number].sample(each, return_info=True) for number in numbers]
        for number, (batch, _) in zip(numbers, pairs, strict=True):
            mark(batch, number)
        batch = self._transform(self._collate([batch for batch, _ in pairs]))
        if not return_info:
            return batch
        return batch, {"buffer_ids": torch.tensor(numbers), "infos": [info for _, info in pairs]}

    def __iter__(self) -> Iterator[TensorDictBase]:
        """Yield batches without end."""
        while True:
            yield self.sample()

    def _saved_parts(self) -> Sequence[ReplayBuffer]:
        return self._buffers

    def _own_state(self) -> dict[str, Any]:
        return {"draws": self._choice.draws.state_dict()}

    def _load_own_state(self, state: Mapping[str, Any]) -> None:
        self._choice.draws.load_state_dict(state["draws"])


def _joined(
    storages: StorageEnsemble,
    samplers: SamplerEnsemble,
    writers: WriterEnsemble | None,
    collate_fns: Sequence[Collate | None] | None,
) -> tuple[ReplayBuffer, ...]:
    count = len(storages)
    parts = zip(
        storages.storages,
        samplers.samplers,
        [None] * count if writers is None else writers.writers,
        storages.transforms,
        [None] * count if collate_fns is None else collate_fns,
        strict=True,
    )
    return tuple(
        TensorDictReplayBuffer(
            storage=storage, sampler=sampler, writer=writer, transform=transform, collate_fn=collate_fn
        )
        for storage, sampler, writer, transform, collate_fn in parts
    )


def check_whole_batches(transform: Transform) -> None:
    """Raise ValueError if a transform, or a part of it, needs neighbours."""
    if any(needs_neighbours(part) for part in Compose(transform).transforms):
        raise ValueError("a transform that needs neighbours belongs to the buffers, not to their ensemble")


def mark(batch: TensorDictBase, number: int) -> None:
    """Write the number of its buffer into a batch, as ``("index", "buffer_ids")``."""
    rows = batch.get("index", None)
    index = batch.select().set(
        "buffer_ids", torch.full(batch.batch_size, number, dtype=torch.int64, device=batch.device)
    )
    batch.set("index", index if rows is None else index.set("index", rows))


def joined_batches(
    batches: Sequence[TensorDictBase], join: Callable[..., Any] = torch.stack, dims: int = 0
) -> TensorDictBase:
    """Return batches joined by ``torch.stack`` or ``torch.cat``, with the keys that all of them have.

    Args:
        dims: leading dimensions in which they may differ.

    Raises:
        SchemaMismatchError: a key differs in shape, or they are on several devices.
    """
    keys, *others = [dict.fromkeys(batch.keys(True, True, is_leaf_nontensor)) for batch in batches]
    common = [key for key in keys if all(key in other for other in others)]
    try:
        together: TensorDictBase = join([batch.select(*common) for batch in batches])
    except RuntimeError as exc:
        shapes = {key: [list(batch.get(key).shape) for batch in batches] for key in common}
        differ = {key: found for key, found in shapes.items() if any(one[dims:] != found[0][dims:] for one in found)}
        devices = sorted({str(batch.device or "cpu") for batch in batches})
        found = differ or (f"they are on {', '.join(devices)}" if len(devices) > 1 else exc)
        raise SchemaMismatchError(f"batches of the buffers do not stack: {found}") from exc
    return together
