"""Several replay buffers sampled as one."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, cast, overload

import torch
from tensordict import TensorDictBase

from rlx.buffer.buffer_choice import BufferChoice
from rlx.buffer.replay_buffer import ReplayBuffer
from rlx.buffer.transform.compose import Compose, Transform
from rlx.buffer.transform.neighbourhood import NeighbourTransform
from rlx.errors import SchemaMismatchError


class ReplayBufferEnsemble:
    """Batches [n, B / n] of n buffers' steps, ``("index", "buffer_ids")`` saying which (int64 [n, B / n]).

    Each buffer's own transforms come first, then those of the ensemble. Buffers whose steps have different keys give
    the keys that all of them have; a buffer's own ``index`` becomes ``("index", "index")``.
    Buffers are written each on its own.

    Args:
        buffers: the buffers.
        p: how likely each buffer is to be drawn, in any unit; evenly by default.
        sample_from_all: every buffer gives a row of every batch, rather than those that are drawn, with replacement.
        num_buffer_sampled: rows of a batch; as many as there are buffers by default.
        batch_size: steps of a batch, over all its rows.
        transform: applied to the whole batch.
        collate_fn: makes the batch of the list of the buffers' batches; they are stacked by default.
        seed: of the drawing of buffers; fresh by default.
        generator: gives the seed.

    Raises:
        ValueError, TypeError: arguments that do not go together.
    """

    def __init__(
        self,
        *buffers: ReplayBuffer,
        p: Sequence[float] | None = None,
        sample_from_all: bool = False,
        num_buffer_sampled: int | None = None,
        batch_size: int | None = None,
        transform: Transform | None = None,
        collate_fn: Callable[[list[TensorDictBase]], TensorDictBase] | None = None,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self._choice = BufferChoice(
            len(buffers),
            p=p,
            sample_from_all=sample_from_all,
            num_buffer_sampled=num_buffer_sampled,
            seed=seed,
            generator=generator,
        )
        self._buffers = buffers
        self._batch_size = batch_size
        self._transform = Compose() if transform is None else Compose(transform)
        if any(isinstance(part, NeighbourTransform) for part in self._transform.transforms):
            raise ValueError("a transform that needs neighbours belongs to the buffers, not to their ensemble")
        self._collate = _stacked if collate_fn is None else collate_fn

    def __len__(self) -> int:
        """Steps in all buffers."""
        return sum(map(len, self._buffers))

    def __getitem__(self, index: int) -> ReplayBuffer:
        return self._buffers[index]

    def __repr__(self) -> str:
        return f"ReplayBufferEnsemble({', '.join(map(repr, self._buffers))})"

    @property
    def num_buffers(self) -> int:
        """How many buffers there are."""
        return len(self._buffers)

    @overload
    def sample(self, batch_size: int | None = None, return_info: Literal[False] = False) -> TensorDictBase: ...
    @overload
    def sample(
        self, batch_size: int | None = None, *, return_info: Literal[True]
    ) -> tuple[TensorDictBase, dict[Any, Any]]: ...
    def sample(
        self, batch_size: int | None = None, return_info: bool = False
    ) -> TensorDictBase | tuple[TensorDictBase, dict[Any, Any]]:
        """A batch; with ``return_info`` also a dict with ``buffer_ids`` [n] and the buffers' own (``infos``).

        Raises:
            SamplingError: the batch cannot be split evenly, or a buffer has nothing that fits.
        """
        size = self._batch_size if batch_size is None else batch_size
        if size is None:
            raise ValueError("no batch size: give one to sample or to the ensemble")
        each, numbers = self._choice.share(size), self._choice.next()
        pairs = [self._buffers[number].sample(each, return_info=True) for number in numbers]
        for number, (batch, _) in zip(numbers, pairs, strict=True):
            _mark(batch, number)
        batch = self._transform(self._collate([batch for batch, _ in pairs]))
        if not return_info:
            return batch
        return batch, {"buffer_ids": torch.tensor(numbers), "infos": [info for _, info in pairs]}

    def __iter__(self) -> Iterator[TensorDictBase]:
        """Batches without end."""
        while True:
            yield self.sample()

    def state_dict(self) -> dict[str, Any]:
        """All that the next batches depend on, the buffers included."""
        return {"draws": self._choice.draws.state_dict(), "buffers": [buffer.state_dict() for buffer in self._buffers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there."""
        self._choice.draws.load_state_dict(state["draws"])
        for buffer, its in zip(self._buffers, state["buffers"], strict=True):
            buffer.load_state_dict(its)


def _mark(batch: TensorDictBase, number: int) -> None:
    """Puts the buffer's number beside the rows, if there are any."""
    rows = batch.get("index", None)
    index = batch.select().set(
        "buffer_ids", torch.full(batch.batch_size, number, dtype=torch.int64, device=batch.device)
    )
    batch.set("index", index if rows is None else index.set("index", rows))


def _stacked(batches: list[TensorDictBase]) -> TensorDictBase:
    """[n, B / n] of n batches, with the keys that all of them have."""
    common = set.intersection(*(set(batch.keys(True, True)) for batch in batches))
    try:
        stacked: Any = torch.stack([batch.select(*common) for batch in batches])
    except RuntimeError as exc:
        shapes = [{key: list(batch.get(key).shape) for key in common} for batch in batches]
        raise SchemaMismatchError(f"batches of the buffers do not stack: {shapes}") from exc
    return cast("TensorDictBase", stacked)
