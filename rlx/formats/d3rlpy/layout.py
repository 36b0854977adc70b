"""Names of the datasets in the HDF5 files that d3rlpy dumps."""

VERSION = "2.1"
KEYS = ("version", "num_episodes", "columns")
COLUMNS = ("observations", "actions", "rewards", "terminated")
LAYOUT = (
    "expected d3rlpy's layout: version 2.1, num_episodes, columns, and for every episode i "
    "observations_<i> [T, ...], actions_<i> [T, A], rewards_<i> [T, 1], terminated_<i>"
)
