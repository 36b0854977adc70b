"""Collected steps as TED TensorDicts, and their delivery: as a learner wants them, and into the replay buffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase

from rlx.accelerator import present
from rlx.buffer.batch import split_trajectories
from rlx.buffer.transform.compose import over_batch
from rlx.collector.environment.space import Arrays
from rlx.collector.rollout.episodes import Ended
from rlx.collector.rollout.infos import PREFIX, fill_of, is_unseen
from rlx.collector.rollout.steps import IS_INIT, Steps
from rlx.errors import CollectError
from rlx.store.ted import make_ted
from rlx.transform.protocol import NeighbourTransform, needs_neighbours

CatResults = Literal["stack", 0, -1]
MASK = ("collector", "mask")
Device = torch.device | str
Postproc = Callable[[TensorDictBase], TensorDictBase] | NeighbourTransform


class WorkerSteps(NamedTuple):
    """The steps of one worker, and the ids [n, T] of their trajectories."""

    steps: Steps
    ids: NDArray[np.int64]


def joined(parts: Sequence[WorkerSteps], cat_results: CatResults, *, is_batched: bool) -> TensorDict:
    """Return the steps of several workers; see ``MultiCollector`` for their shape."""
    workers = len(parts)
    lengths = {part.ids.shape[1] for part in parts}
    if len(lengths) > 1:  # then nothing but the times can follow each other
        batch = cast("TensorDict", torch.cat([steps_to_ted([part]) for part in _completed(parts)], -1))
        return _named(batch if is_batched else batch[0])
    batch = steps_to_ted(parts)
    (length,) = lengths
    if cat_results == "stack":
        return _named(batch.reshape(workers, -1, length) if is_batched else batch)
    if not is_batched:
        return _named(batch.reshape(-1))
    if cat_results == 0 or workers == 1:
        return batch
    n = len(parts[0].ids)
    return _named(batch.reshape(workers, n, length).permute(1, 0, 2).reshape(n, -1))


def steps_to_ted(parts: Sequence[WorkerSteps]) -> TensorDict:
    """Return the steps [n, T] of all environments, worker by worker, T the same for all; a copy.

    Zeros follow the steps of an environment that made fewer than T.
    """
    all_steps = [steps for steps, _ in _completed(parts)]
    length = all_steps[0].length
    # The row after the last step is not in ``now``: the next batch begins with it.
    now = _joined([_at(steps.observation, slice(None, -1)) for steps in all_steps])
    following = _joined([_at(steps.observation, slice(1, None)) for steps in all_steps])
    first = 0
    for steps in all_steps:
        for (env, at), final in steps.final.items():
            for name, row in final.items():
                following[name][first + env, at] = row
        first += len(steps.counts)
    step = _joined([steps.step for steps in all_steps])
    after = _joined([steps.next for steps in all_steps])
    ids = np.concatenate([ids for _, ids in parts])
    counts = np.concatenate([steps.counts for steps in all_steps])
    for env in np.flatnonzero(counts < length).tolist():
        for table in (now, following, step, after):
            for rows in table.values():
                rows[env, counts[env] :] = _blank(rows.dtype)
    return _ted({**now, **step}, {**following, **after}, ids)


def _at(table: Arrays, times: slice) -> Arrays:
    return {name: rows[:, times] for name, rows in table.items()}


def _joined(tables: Sequence[Arrays]) -> Arrays:
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def _completed(parts: Sequence[WorkerSteps]) -> Sequence[WorkerSteps]:
    """Return the same with the fields of all in each: zeros where a policy has not written one, NaN in entries of
    ``info``.
    """
    if len(parts) == 1:
        return parts
    all_steps = [steps for steps, _ in parts]
    tables = zip(
        _with_all([steps.observation for steps in all_steps]),
        _with_all([steps.step for steps in all_steps]),
        _with_all([steps.next for steps in all_steps]),
        strict=True,
    )
    return [
        WorkerSteps(replace(steps, observation=observation, step=step, next=after), ids)
        for (steps, ids), (observation, step, after) in zip(parts, tables, strict=True)
    ]


def _with_all(tables: Sequence[Arrays]) -> list[Arrays]:
    kinds = {name: rows for table in tables for name, rows in table.items() if not is_unseen(name, rows)}
    return [
        table
        | {
            name: _missing(name, kind, next(iter(table.values())).shape[:2])
            for name, kind in kinds.items()
            if name not in table or is_unseen(name, table[name])
        }
        for table in tables
    ]


def _missing(name: str, kind: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    if not name.startswith(PREFIX):
        return np.full((*shape, *kind.shape[2:]), _blank(kind.dtype), kind.dtype)
    # Whole numbers and flags, beside NaN, become float64.
    dtype = np.dtype(np.float64) if kind.dtype.kind in "biu" else kind.dtype
    return np.full((*shape, *kind.shape[2:]), fill_of(dtype), dtype)


def _blank(dtype: np.dtype[Any]) -> Any:
    return "" if dtype.kind == "O" else 0


def _named(batch: Any) -> TensorDict:
    batch.names = [*(None for _ in batch.shape[1:]), "time"]
    return cast("TensorDict", batch)


def episodes_to_ted(episodes: Sequence[Ended], ids: Sequence[int]) -> TensorDict:
    """Return the steps [S] of whole episodes, concatenated."""
    pieces = []
    for episode, number in zip(episodes, ids, strict=True):
        now = {name: rows[:-1] for name, rows in episode.observation.items()}
        then = {name: rows[1:] for name, rows in episode.observation.items()}
        steps = np.full(episode.steps, number, np.int64)
        pieces.append(_ted({**now, **episode.step}, {**then, **episode.next}, steps))
    joined: TensorDict = torch.cat(pieces)  # type: ignore[arg-type, assignment]
    joined.names = ["time"]
    return joined


def _ted(root: Arrays, after: Arrays, ids: NDArray[np.int64]) -> TensorDict:
    root = {name: np.ascontiguousarray(rows[..., None] if name == IS_INIT else rows) for name, rows in root.items()}
    after = {name: np.ascontiguousarray(rows) for name, rows in after.items()}
    after[IS_INIT] = np.zeros((*ids.shape, 1), bool)
    return make_ted(root, after, ids, [*(None for _ in ids.shape[1:]), "time"])


@dataclass(frozen=True, slots=True)
class BatchDelivery:
    """Post-processing of a batch."""

    split_trajs: bool
    device: Device | None
    postproc: Postproc | None
    replay_buffer: Any

    def __post_init__(self) -> None:
        if not (self.postproc is None or callable(self.postproc) or needs_neighbours(self.postproc)):
            raise CollectError(
                f"postproc {self.postproc!r}: expected a function of a batch, or a transform of rlx.buffer"
            )
        if self.device is not None:
            present(self.device)  # it would be noticed after a batch was collected, which would be lost

    @property
    def lanes(self) -> int:
        """Dimensions of the replay buffer before that of time."""
        return 0 if self.replay_buffer is None else int(self.replay_buffer.storage.ndim) - 1

    @property
    def takes_rows(self) -> bool:
        """Whether the steps of each of several environments become one row of the replay buffer."""
        return not (self.replay_buffer is None or self.lanes or self.split_trajs or self.postproc is not None)

    def __call__(self, batch: TensorDictBase, *, is_batched: bool) -> TensorDictBase | None:
        """Return the batch, or None if it went into the replay buffer.

        Args:
            is_batched: whether an environment is several, so that the last two dimensions are theirs and time.
        """
        if self.split_trajs:
            batch = split_trajectories(_real(batch))
        if self.device is not None:
            batch = batch.to(self.device)
        if self.postproc is not None:
            batch = over_batch(self.postproc, batch)
        if self.replay_buffer is None:
            return batch
        self._store(_real(batch), is_batched=is_batched)
        return None

    def _store(self, batch: TensorDictBase, *, is_batched: bool) -> None:
        ndim = self.lanes + 1
        if (
            ndim == 1
        ):  # as every worker by itself would write to it: a row is a step, or of several environments, theirs
            batch = batch.reshape(-1, batch.shape[-1]) if is_batched and batch.batch_dims > 1 else batch.reshape(-1)
        elif batch.batch_dims != ndim:
            raise CollectError(
                f"the replay buffer's storage has ndim={ndim}, batches have shape {list(batch.shape)}",
                hint=f"give the storage ndim={batch.batch_dims}, or ndim=1, which takes any",
            )
        self.replay_buffer.extend(batch)


def _real(batch: TensorDictBase) -> TensorDictBase:
    """Return the steps [S] of a batch with a mask, without it; any other as it is."""
    mask = batch.get(MASK, None)
    return batch if mask is None else batch[mask].exclude(MASK)
