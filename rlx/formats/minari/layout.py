"""Names of the files, groups and attributes of Minari's datasets."""

import re

METADATA = "metadata.json"
MAIN_DATA = "main_data.hdf5"
ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)*")
LAYOUT = (
    "expected Minari's layout: data/metadata.json with total_episodes, total_steps and minari_version, and in "
    "data/main_data.hdf5 for every episode i a group episode_<i> with the attribute total_steps, "
    "observations [T + 1, ...], actions [T, ...], rewards [T], terminations [T], truncations [T]"
)
# The field that a group of an episode holds, or the fields below it.
GROUPS = {
    "observations": "observation",
    "actions": "action",
    "rewards": "reward",
    "terminations": "terminated",
    "truncations": "truncated",
}
INFOS = "infos"
# Of an episode: its number, its steps, and whether it was cut, which rlx adds.
NUMBER, STEPS, CUT = "id", "total_steps", "cut"
ATTRIBUTES = frozenset({NUMBER, STEPS, CUT})
