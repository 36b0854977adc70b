"""Replay buffers of tianshou made of datasets."""

import os
from typing import Any

import numpy as np

from rlx.errors import check_installed
from rlx.integrations import with_arrays
from rlx.store.dataset import Dataset

check_installed("tianshou", "this module needs tianshou", "tianshou")
from tianshou.data import ReplayBuffer  # noqa: E402


def replay_buffer(dataset: Dataset | str | os.PathLike[str]) -> Any:
    """Return the steps of a dataset as a ``tianshou.data.ReplayBuffer``, for offline algorithms.

    The last step of every trajectory is done; if the recording stops there, it is flagged truncated.

    Args:
        dataset: dataset with one array of observations, or its path, id or URL. Its steps are read into memory.

    Raises:
        SchemaMismatchError: observations are several arrays.
    """
    source = with_arrays(dataset, "observation")
    steps = source[:]
    after = steps["next"]
    rewards, terminated, truncated, done = (
        after[key].numpy()[:, 0] for key in ("reward", "terminated", "truncated", "done")
    )
    # tianshou finds where trajectories end by ``done`` alone.
    is_last = np.zeros(len(done), bool)
    is_last[np.cumsum(source.trajectories.length) - 1] = True
    truncated, done = truncated | (is_last & ~done), done | is_last
    now, following = steps["observation"].numpy(), after["observation"].numpy()
    made = ReplayBuffer.from_data(now, steps["action"].numpy(), rewards, terminated, truncated, done, following)
    made.last_index = np.array([max(len(done) - 1, 0)])  # from_data leaves it at the first step, as if that were an end
    return made
