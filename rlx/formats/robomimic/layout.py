"""Names of the datasets and attributes of a demonstration in robomimic's HDF5 files."""

OBS, NEXT, ACTIONS, REWARDS, DONES = "obs", "next_obs", "actions", "rewards", "dones"
KNOWN = frozenset({OBS, NEXT, ACTIONS, REWARDS, DONES})
STEPS = "num_samples"
# Attributes that rlx adds, and robomimic skips.
RECORDED = ("episode", "truncated", "from_reset", "final_recorded", "cut")
ATTRIBUTES = frozenset({STEPS, *RECORDED})
LAYOUT = "expected robomimic's layout: data/demo_<i> with actions [N, A], rewards [N], dones [N] and obs/<key> [N, ...]"
