"""Names of the arrays in an archive of steps."""

from collections.abc import Mapping

SUFFIX = ".npy"
GROUP = "trajectories/"
FINAL = f"{GROUP}final/"
# Columns of the table of trajectories, each with the kinds of numbers it may have.
TABLE: Mapping[str, str] = {"length": "iu", "episode": "iu", "from_reset": "b", "final_recorded": "b", "cut": "b"}
LAYOUT = (
    "expected arrays of a row a step: observation [S, ...], action [S, ...], next/reward [S], next/terminated [S], "
    f"next/truncated [S]; and perhaps of a row a trajectory: trajectories/{', trajectories/'.join(TABLE)}"
)
