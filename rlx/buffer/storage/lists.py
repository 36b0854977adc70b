"""Steps in a list, each as it came."""

from collections.abc import Sequence

import torch

from rlx.buffer.index.continuity import Leaves
from rlx.buffer.index.trajectory_keys import Path
from rlx.buffer.protocol import Rows
from rlx.buffer.storage.ring import RingStorage


class ListStorage(RingStorage):
    """Storage of each step by itself: memory grows with the steps written; slower than tensors.

    Args:
        max_size: steps that there is room for, over all lanes.
        ndim: dimensions of the written steps: time, and before it those of the lanes.
    """

    def __init__(self, max_size: int = 1_000, *, ndim: int = 1) -> None:
        super().__init__(max_size, ndim=ndim)
        self._items: dict[int, dict[Path, torch.Tensor]] = {}

    def _allocate(self) -> None:
        self._items = {}

    def _write(self, rows: Rows, leaves: Leaves) -> None:
        columns = [leaf.detach().clone().unbind() for leaf in leaves.values()]
        for row, step in zip(rows.tolist(), zip(*columns, strict=True), strict=True):
            # A step of its own keeps no other step of the same write alive.
            self._items[row] = {path: value.clone() for path, value in zip(leaves, step, strict=True)}

    def _read(self, rows: Rows, paths: Sequence[Path]) -> Leaves:
        items = [self._items[row] for row in rows.tolist()]
        if not items:
            return {path: torch.empty(0, *self._schema[path][1], dtype=self._schema[path][0]) for path in paths}
        return {path: torch.stack([item[path] for item in items]) for path in paths}

    def empty(self) -> None:
        """Forget everything but the schema."""
        super().empty()
        self._items.clear()
