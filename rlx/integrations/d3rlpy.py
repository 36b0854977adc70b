"""Replay buffers of d3rlpy made of datasets."""

import os
from typing import Any

import numpy as np

from rlx.errors import check_installed
from rlx.integrations import with_arrays
from rlx.store.dataset import Dataset

check_installed("d3rlpy", "this module needs d3rlpy", "d3rlpy")
from d3rlpy.dataset import Episode, create_infinite_replay_buffer  # noqa: E402


def replay_buffer(dataset: Dataset | str | os.PathLike[str]) -> Any:
    """Return the episodes of a dataset as a ``d3rlpy.dataset.ReplayBuffer``, for ``fit`` of its algorithms.

    d3rlpy keeps no observation after the last step, so it does not learn from the last step of a truncated episode.

    Args:
        dataset: dataset with one array of observations and one of actions, or its path, id or URL. Its steps are read
            into memory.

    Raises:
        SchemaMismatchError: observations or actions are several arrays.
    """
    source = with_arrays(dataset, "observation", "action")
    episodes = []
    for number in range(len(source.trajectories.length)):
        steps = source.trajectory(number)
        count = len(steps)
        observations = steps["observation"].numpy()
        actions, rewards = (steps[key].numpy().reshape(count, -1) for key in ("action", ("next", "reward")))
        terminated = bool(steps["next", "terminated"].numpy()[-1])
        episodes.append(Episode(observations, actions, rewards.astype(np.float32), terminated))
    return create_infinite_replay_buffer(episodes)
