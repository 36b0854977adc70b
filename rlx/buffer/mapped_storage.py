"""The storage of a memory-mapped TensorDict that is there already."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from rlx.buffer.step_schema import leaves_of, schema_of
from rlx.buffer.tensor_storage import LazyTensorStorage


class MappedStorage(LazyTensorStorage):
    """Steps in the files that ``TensorDict.load_memmap`` opens; full from the start, and changed when written.

    Args:
        path: the directory of the files.

    Raises:
        SchemaMismatchError: something there is no tensor.
    """

    def __init__(self, path: Path) -> None:
        steps = TensorDict.load_memmap(path)
        super().__init__(len(steps))
        self._path = path
        self._schema = schema_of(_rows(steps), 1)
        self._lay_out(())
        self._map()
        self._ring.push(np.zeros(1, np.int64), np.array([len(steps)]))

    def _map(self) -> None:
        self._tensors = _rows(TensorDict.load_memmap(self._path))

    def __getstate__(self) -> dict[str, Any]:
        # Another process maps the same files.
        return self.__dict__ | {"_tensors": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._map()


def _rows(steps: TensorDict) -> dict[tuple[str, ...], torch.Tensor]:
    """Plain tensors over the files, by path; of further batch dimensions each becomes part of a row."""
    steps.batch_size = steps.batch_size[:1]
    return {path: leaf.as_subclass(torch.Tensor) for path, leaf in leaves_of(steps).items()}
