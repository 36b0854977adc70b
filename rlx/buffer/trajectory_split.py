"""Cutting a batch of collected steps into trajectories."""

from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import NestedKey, TensorDict, TensorDictBase

from rlx.buffer.index.continuity import Links
from rlx.buffer.index.trajectory_index import RingTrajectoryIndex
from rlx.buffer.snapshot import leaves
from rlx.buffer.storage.step_schema import leaves_of, text_leaves
from rlx.buffer.transform.neighbourhood import path
from rlx.errors import SchemaMismatchError
from rlx.store.leaf import to_leaf, to_rows

_IDS = (("collector", "traj_ids"), "episode", "traj_ids")


def split_trajectories(
    steps: TensorDictBase,
    *,
    prefix: NestedKey | None = None,
    trajectory_key: NestedKey | None = None,
    done_key: NestedKey = "done",
    as_nested: bool = False,
) -> TensorDictBase:
    """Return trajectories [N, T], T the longest one's steps, zeros or empty texts after the end of the others, by first
    step.

    ``("collector", "mask")`` (bool [N, T]) says where there are steps. A trajectory ends where ``("next", done)`` is
    set. Steps of one id in one row of the batch belong together until then, also where another id's come between, as
    workers who write in turns leave them; after its end an id stands for a new trajectory. Without ids, the steps of a
    row follow each other until done. A step that does not observe what the one before led to, or with which an episode
    starts (``is_init``), does not continue that one, whatever its id: two collectors may use the same ids.

    Args:
        steps: [*B, T], time last.
        prefix: where ``mask`` goes and ids are looked for, instead of ``collector``.
        trajectory_key: where the ids are; by default ``(prefix, "traj_ids")``, ``episode`` or ``traj_ids``, if any is.
        done_key: name of the flag under ``next``.
        as_nested: whether the entries are jagged nested tensors [N, *], without mask, rather than padded.

    Raises:
        SchemaMismatchError: there are neither ids nor the flag, or not one a step.

    Example:
        >>> done = torch.tensor([False, True, False])[:, None]
        >>> steps = TensorDict({"observation": torch.arange(3), "next": {"done": done}}, [3])
        >>> split_trajectories(steps)["observation"]
        tensor([[0, 1],
                [2, 0]])
    """
    if not steps.batch_dims:
        raise SchemaMismatchError("steps of shape []: expected at least a dimension of time")
    group = ("collector",) if prefix is None else path(prefix)
    flat = steps.reshape(-1)
    order, lengths = _chains(flat, steps.batch_size[-1], _ids(flat, group, trajectory_key), _done(flat, done_key))
    sorted_steps = flat[torch.from_numpy(order)]
    if as_nested:
        return _nested(sorted_steps, lengths)
    return _padded(sorted_steps, lengths, group)


def _ids(flat: TensorDictBase, group: tuple[str, ...], key: NestedKey | None) -> NDArray[np.int64] | None:
    if key is not None:
        if (ids := flat.get(key, None)) is None:
            raise SchemaMismatchError(f"steps have no {key!r}, expected trajectory ids there")
        return _one_a_step(ids, key)
    for found in ((*group, "traj_ids"), *_IDS):
        if (ids := flat.get(found, None)) is not None:
            return _one_a_step(ids, found)
    return None


def _done(flat: TensorDictBase, key: NestedKey) -> NDArray[np.bool_] | None:
    done = flat.get(("next", *path(key)), None)
    return None if done is None else _one_a_step(done, key).astype(bool)


def _one_a_step(values: torch.Tensor, key: NestedKey) -> NDArray[Any]:
    if values.numel() != len(values):
        raise SchemaMismatchError(f"{key!r} of shape {list(values.shape)}: expected one per step")
    column: NDArray[Any] = values.reshape(-1).cpu().numpy()
    return column


def _chains(
    steps: TensorDictBase, width: int, ids: NDArray[np.int64] | None, done: NDArray[np.bool_] | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return [S] the steps, trajectory after trajectory, in the order of their first steps; [N] steps of each."""
    if ids is None and done is None:
        raise SchemaMismatchError("steps have neither trajectory ids nor ('next', 'done') to separate trajectories")
    count = len(steps)
    if not count:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    rows = np.arange(count)
    index = RingTrajectoryIndex(width, count // width)
    index.write(
        rows,
        None if ids is None else ids.astype(np.int64),
        np.zeros(count, bool) if done is None else done,
        Links.of(leaves_of(steps), rows // width),
    )
    first, lengths = index.trajectories()
    chains = index.follow(first, int(lengths.max()))
    return chains[chains >= 0], lengths


def _padded(flat: TensorDictBase, lengths: NDArray[np.int64], group: tuple[str, ...]) -> TensorDictBase:
    counts = torch.from_numpy(lengths)
    mask = torch.arange(int(lengths.max(initial=0))) < counts[:, None]
    padded: Any = flat.apply(lambda leaf: _pad(leaf, mask), batch_size=list(mask.shape))
    for key, texts in text_leaves(flat).items():
        rows = np.full(tuple(mask.shape), "", object)
        rows[mask.numpy()] = to_rows(texts)
        padded.set(key, to_leaf(rows))
    padded.set((*group, "mask"), mask.to(flat.device))
    padded.names = [None, "time"]
    return cast("TensorDictBase", padded)


def _pad(leaf: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    padded = leaf.new_zeros((*mask.shape, *leaf.shape[1:]))
    padded[mask.to(leaf.device)] = leaf
    return padded


def _nested(flat: TensorDictBase, lengths: NDArray[np.int64]) -> TensorDictBase:
    offsets = torch.from_numpy(np.append(0, np.cumsum(lengths)))
    nested = TensorDict({}, [len(lengths)], device=flat.device)
    for key, values in leaves(flat):
        nested.set(key, torch.nested.nested_tensor_from_jagged(values, offsets.to(values.device)))
    return nested
