"""Dopamine's replay logs, such as the DQN Replay Dataset.

``reader.find_runs`` finds the runs below a directory, ``writer.DopamineExporter`` writes one.
"""

from types import MappingProxyType

from rlx.formats.common.signs import Sign
from rlx.formats.registry import Format

FOLDER = "replay_logs"
STORE = "$store$_"
OBSERVATION, ACTION, REWARD, TERMINAL = (STORE + name for name in ("observation", "action", "reward", "terminal"))
SMALL_DTYPES = MappingProxyType({ACTION: "int32", REWARD: "float32", TERMINAL: "uint8"})
ADD_COUNT, INVALID_RANGE = "add_count", "invalid_range"
SMALL_ARRAYS = (*SMALL_DTYPES, ADD_COUNT, INVALID_RANGE)
# A pickle, never opened: versions of Dopamine that can end episodes without a terminal row write it.
EPISODE_ENDS = "episode_end_indices"
LAYOUT = (
    "expected Dopamine's layout: in replay_logs for every number N of a file $store$_observation_ckpt.N.gz [C, ...], "
    "$store$_action_ckpt.N.gz [C], $store$_reward_ckpt.N.gz [C], $store$_terminal_ckpt.N.gz [C], "
    "add_count_ckpt.N.gz, invalid_range_ckpt.N.gz, each a gzipped npy"
)


def file_name(array: str, suffix: int | str) -> str:
    """Return the name of the file of an array: ``add_count_ckpt.7.gz``."""
    return f"{array}_ckpt.{suffix}.gz"


def array_name(name: str) -> str:
    """Return the name of the array of a field; it has dots for slashes.

    Example:
        >>> array_name("params/loc")
        '$store$_params.loc'
    """
    return STORE + name.replace("/", ".")


_FIRST = file_name(ADD_COUNT, "*")
FORMAT = Format(
    "dopamine",
    __name__,
    reads="runs",
    writes=("datasets",),
    layout=LAYOUT,
    signs=(Sign(files=(_FIRST,)), *(Sign(files=(f"{'*/' * depth}{FOLDER}/{_FIRST}",)) for depth in range(4))),
)
