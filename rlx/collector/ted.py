"""Collected steps as TED TensorDicts."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from rlx.collector.episodes import Episode
from rlx.collector.rollout import Steps
from rlx.collector.space import Arrays

Tree = dict[str, Any]
CatResults = Literal["stack", 0, -1]


class Portion(NamedTuple):
    """The steps of one worker, and the ids [n, T] of their trajectories."""

    steps: Steps
    ids: NDArray[np.int64]


def joined(portions: Sequence[Portion], cat_results: CatResults, *, is_batched: bool) -> TensorDict:
    """The steps of several workers; see ``MultiCollector`` for their shape."""
    workers = len(portions)
    lengths = {portion.ids.shape[1] for portion in portions}
    if len(lengths) > 1:  # then nothing but the times can follow each other
        batch = cast("TensorDict", torch.cat([steps_to_ted([portion]) for portion in portions], -1))
        return _named(batch if is_batched else batch[0])
    batch = steps_to_ted(portions)
    (length,) = lengths
    if cat_results == "stack":
        return _named(batch.reshape(workers, -1, length) if is_batched else batch)
    if not is_batched:
        return _named(batch.reshape(-1))
    if cat_results == 0 or workers == 1:
        return batch
    n = len(portions[0].ids)
    return _named(batch.reshape(workers, n, length).permute(1, 0, 2).reshape(n, -1))


def steps_to_ted(portions: Sequence[Portion]) -> TensorDict:
    """The steps [n, T] of all environments, worker by worker, T the same for all; a copy.

    Where an environment made less than T steps, zeros are behind them.
    """
    all_steps = [steps for steps, _ in portions]
    # The row behind the last step is not in ``now``: the next batch begins with that one.
    now = {name: _joined(steps.observation[name][:, :-1] for steps in all_steps) for name in all_steps[0].observation}
    following = {name: _joined(steps.observation[name][:, 1:] for steps in all_steps) for name in now}
    first = 0
    for steps in all_steps:
        for (env, at), final in steps.final.items():
            for name, row in final.items():
                following[name][first + env, at] = row
        first += len(steps.counts)
    action = {name: _joined(steps.action[name] for steps in all_steps) for name in all_steps[0].action}
    flags = {
        name: _joined(getattr(steps, name) for steps in all_steps) for name in ("reward", "terminated", "truncated")
    }
    ids = _joined(ids for _, ids in portions)
    counts = np.concatenate([steps.counts for steps in all_steps])
    for env in np.flatnonzero(counts < ids.shape[1]).tolist():
        for rows in (*now.values(), *following.values(), *action.values(), *flags.values()):
            rows[env, counts[env] :] = 0
    return _ted({**now, **action}, following, flags, ids)


def _joined(parts: Iterable[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(list(parts))


def _named(batch: Any) -> TensorDict:
    batch.names = [*(None for _ in batch.shape[1:]), "time"]
    return cast("TensorDict", batch)


def episodes_to_ted(episodes: Sequence[Episode], ids: Sequence[int]) -> TensorDict:
    """The steps [S] of whole episodes, one behind the other."""
    parts = []
    for episode, number in zip(episodes, ids, strict=True):
        data = episode.data
        columns = {name: data[name] for name in ("reward", "terminated", "truncated")}
        observations = {name: rows for name, rows in data.items() if len(rows) == episode.steps + 1}
        actions = {name: rows for name, rows in data.items() if name not in columns and name not in observations}
        now = {name: rows[:-1] for name, rows in observations.items()}
        then = {name: rows[1:] for name, rows in observations.items()}
        parts.append(_ted({**now, **actions}, then, columns, np.full(episode.steps, number, np.int64)))
    joined: TensorDict = torch.cat(parts)  # type: ignore[arg-type, assignment]
    joined.names = ["time"]
    return joined


def _ted(root: Arrays, following: Arrays, flags: Arrays, ids: NDArray[np.int64]) -> TensorDict:
    tree: Tree = {}
    for name, rows in root.items():
        _put(tree, name, rows)
    for name, rows in following.items():
        _put(tree, f"next/{name}", rows)
    for name, column in flags.items():
        _put(tree, f"next/{name}", column[..., None])
    _put(tree, "next/done", (flags["terminated"] | flags["truncated"])[..., None])
    for name in ("done", "terminated", "truncated"):
        _put(tree, name, np.zeros((*ids.shape, 1), bool))
    _put(tree, "collector/traj_ids", ids)
    names: Any = [*(None for _ in ids.shape[1:]), "time"]  # tensordict does not type unnamed dimensions
    return TensorDict(tree, ids.shape, names=names)


def _put(tree: Tree, name: str, rows: NDArray[Any]) -> None:
    *parents, leaf = name.split("/")
    for parent in parents:
        tree = tree.setdefault(parent, {})
    tree[leaf] = torch.from_numpy(np.ascontiguousarray(rows))
