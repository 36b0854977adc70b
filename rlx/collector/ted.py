"""Collected steps as TED TensorDicts."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from rlx.collector.episodes import Episode
from rlx.collector.rollout import Steps
from rlx.collector.space import Arrays

Tree = dict[str, Any]


def steps_to_ted(steps: Steps, ids: NDArray[np.int64]) -> TensorDict:
    """The steps [n, T], all of which were recorded, of trajectories with these ids [n, T]."""
    following = {name: rows[:, 1:].copy() for name, rows in steps.observation.items()}
    for (env, at), final in steps.final.items():
        for name, row in final.items():
            following[name][env, at] = row
    # A copy without the row behind the last step: the next batch begins with that one.
    now = {name: rows[:, :-1] for name, rows in steps.observation.items()}
    flags = {"reward": steps.reward, "terminated": steps.terminated, "truncated": steps.truncated}
    return _ted({**now, **steps.action}, following, flags, ids)


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
