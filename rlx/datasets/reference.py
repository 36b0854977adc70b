"""A dataset in a buffer's checkpoint: which one it was, not what is in it."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from tensordict import TensorDictBase

from rlx.buffer.dataset_storage import DatasetStorage
from rlx.buffer.protocol import Rows
from rlx.errors import SchemaMismatchError
from rlx.manifest import FILE_NAME
from rlx.store.writer import file_record


class DatasetReference(DatasetStorage):
    """Stands for the storage of a dataset where a buffer is described and restored: no step of it is written."""

    def __len__(self) -> int:
        return 0

    def row_at(self, ordinals: Rows) -> Rows:
        """No rows: the dataset keeps them."""
        return np.empty(len(ordinals), np.int64)

    def state_dict(self) -> dict[str, Any]:
        """Which dataset it is, and in what state."""
        crc32c = file_record(self.dataset.path / FILE_NAME).crc32c
        return {"id": self.dataset.manifest.id, "manifest_crc32c": crc32c}

    def restore(self, state: Mapping[str, Any], steps: Iterable[tuple[Rows, TensorDictBase]]) -> None:  # noqa: ARG002
        """Checks that the checkpoint is of the same dataset.

        Raises:
            SchemaMismatchError: it is of another, or of another state of it.
        """
        mine = self.state_dict()
        if dict(state) != mine:
            raise SchemaMismatchError(f"checkpoint is of the dataset {dict(state)}, expected {mine}")
