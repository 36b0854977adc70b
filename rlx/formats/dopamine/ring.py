"""The small files of one suffix of a Dopamine run: what the ring buffer held when it was logged, but for the
observations."""

import re
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError, SourceNotFoundError
from rlx.formats.dopamine.npy_stream import read_npy

SMALL_DTYPES = MappingProxyType({"$store$_action": "int32", "$store$_reward": "float32", "$store$_terminal": "uint8"})
SMALL_ARRAYS = (*SMALL_DTYPES, "add_count", "invalid_range")
STORE = "$store$_"
OBSERVATION = f"{STORE}observation"
# A pickle, never opened. That it is there tells of a Dopamine that also ends episodes without a terminal row.
EPISODE_ENDS = "episode_end_indices"
_SUFFIXED = re.compile(r"(.+)_ckpt\.(\d{1,9})\.gz")
_MAX_ADD_COUNT = 1 << 48


def file_name(array: str, suffix: int | str) -> str:
    """Return name of the file that holds an array: ``add_count_ckpt.7.gz``."""
    return f"{array}_ckpt.{suffix}.gz"


@dataclass(frozen=True, slots=True)
class RingFile:
    """The small arrays of one suffix; [C] each."""

    suffix: int
    add_count: int
    padding: int
    action: NDArray[np.int32]
    reward: NDArray[np.float32]
    terminal: NDArray[np.uint8]

    @property
    def capacity(self) -> int:
        """Rows of the ring."""
        return len(self.terminal)

    def slots(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return slots of the rows [start, stop) of the run."""
        return np.arange(start, stop) % self.capacity


def find_suffixes(folder: Path) -> list[int]:
    """Return suffixes of which a folder holds any array, ascending; raises SourceNotFoundError if it holds none."""
    found = (_SUFFIXED.fullmatch(path.name) for path in folder.iterdir()) if folder.is_dir() else ()
    suffixes = {int(match[2]) for match in found if match and match[1] in (*SMALL_ARRAYS, OBSERVATION)}
    if not suffixes:
        raise SourceNotFoundError(f"{folder} has no file named like {file_name('add_count', 0)}")
    return sorted(suffixes)


def find_arrays(folder: Path, suffix: int) -> list[str]:
    """Return names of all arrays of a suffix that a folder holds, in order."""
    found = (_SUFFIXED.fullmatch(path.name) for path in folder.iterdir()) if folder.is_dir() else ()
    return sorted(match[1] for match in found if match and int(match[2]) == suffix)


def load_ring_file(folder: Path, suffix: int) -> RingFile:
    """Return the small arrays of one suffix, checked against each other; raises as ``make_plan`` does."""
    paths = {name: folder / file_name(name, suffix) for name in SMALL_ARRAYS}
    arrays = {name: read_npy(path) for name, path in paths.items()}
    rows = len(arrays["$store$_terminal"]) if arrays["$store$_terminal"].ndim else 0
    # The terminals come first, for they say how many rows to expect.
    for name, dtype in reversed([*SMALL_DTYPES.items()]):
        array = arrays[name]
        if array.dtype != dtype or array.shape != (rows,) or not rows:
            raise CorruptShardError(
                f"{paths[name]}: expected {dtype}[{rows or 'C'}], found {array.dtype}{list(array.shape)}"
            )
    add_count = _add_count(paths["add_count"], arrays["add_count"])
    padding = _padding(paths["invalid_range"], arrays["invalid_range"], add_count, rows)
    action, reward, terminal = (arrays[name] for name in SMALL_DTYPES)
    return RingFile(suffix, add_count, padding, action, reward, terminal)


def _add_count(path: Path, array: NDArray[Any]) -> int:
    if array.shape != () or array.dtype.kind not in "iu" or not 0 <= int(array) < _MAX_ADD_COUNT:
        raise CorruptShardError(
            f"{path}: expected one number of rows, found {array.dtype}{list(array.shape)} {array!r:.40}"
        )
    return int(array)


def _padding(path: Path, array: NDArray[Any], add_count: int, capacity: int) -> int:
    """Return zero rows before an episode: the range runs from n rows before the cursor, the horizon, to a stack after
    it."""
    if array.ndim == 1 and array.dtype.kind in "iu" and 2 <= len(array) <= 1000:
        horizon = (add_count - int(array[0])) % capacity
        if np.array_equal(array, (add_count - horizon + np.arange(len(array))) % capacity) and horizon < len(array):
            return len(array) - horizon - 1
    raise CorruptShardError(f"{path}: expected consecutive slots around {add_count % capacity}, found {array!r:.80}")
