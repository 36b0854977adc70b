"""torch's ``.pt``: ``torch.load(file)["next"]["reward"]``, which needs no pickled code (``weights_only=True``)."""

from collections.abc import Iterable
from typing import BinaryIO

from rlx.export.protocol import Columns, gathered, tree


class PtExporter:
    """Writes nested dicts of tensors, and of lists of texts; holds all rows in memory."""

    def write(self, batches: Iterable[Columns], file: BinaryIO) -> None:
        """Writes one tensor a column."""
        import torch  # noqa: PLC0415  (takes seconds, and the other formats do without)

        tensors = {
            name: rows.tolist() if rows.dtype == object else torch.from_numpy(rows)
            for name, rows in gathered(batches).items()
        }
        torch.save(tree(tensors), file)
