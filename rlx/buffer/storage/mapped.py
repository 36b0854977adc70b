"""The storage of a memory-mapped TensorDict that is there already."""

from pathlib import Path
from typing import Any

from tensordict import TensorDict

from rlx.buffer.storage.given_tensor import TensorStorage, flat_leaves


class MappedStorage(TensorStorage):
    """Steps in the files that ``TensorDict.load_memmap`` opens; full from the start, and changed when written.

    Args:
        path: the directory of the files.

    Raises:
        SchemaMismatchError: the directory holds a non-tensor.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        super().__init__(TensorDict.load_memmap(path))

    def __getstate__(self) -> dict[str, Any]:
        # Another process maps the same files.
        return self.__dict__ | {"_tensors": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._tensors = flat_leaves(TensorDict.load_memmap(self._path), 1)
