"""Names of the files that Dopamine's replay buffer logs, and of the arrays in them."""

from types import MappingProxyType

FOLDER = "replay_logs"
STORE = "$store$_"
OBSERVATION, ACTION, REWARD, TERMINAL = (STORE + name for name in ("observation", "action", "reward", "terminal"))
SMALL_DTYPES = MappingProxyType({ACTION: "int32", REWARD: "float32", TERMINAL: "uint8"})
ADD_COUNT, INVALID_RANGE = "add_count", "invalid_range"
SMALL_ARRAYS = (*SMALL_DTYPES, ADD_COUNT, INVALID_RANGE)
# A pickle, never opened. That it is there tells of a Dopamine that also ends episodes without a terminal row.
EPISODE_ENDS = "episode_end_indices"
LAYOUT = (
    "expected Dopamine's layout: in replay_logs for every number N of a file $store$_observation_ckpt.N.gz [C, ...], "
    "$store$_action_ckpt.N.gz [C], $store$_reward_ckpt.N.gz [C], $store$_terminal_ckpt.N.gz [C], "
    "add_count_ckpt.N.gz, invalid_range_ckpt.N.gz, each a gzipped npy"
)


def file_name(array: str, suffix: int | str) -> str:
    """Return name of the file that holds an array: ``add_count_ckpt.7.gz``."""
    return f"{array}_ckpt.{suffix}.gz"


def array_name(name: str) -> str:
    """Return name of the array that holds a field, which cannot have a slash in it.

    Example:
        >>> array_name("params/loc")
        '$store$_params.loc'
    """
    return STORE + name.replace("/", ".")
