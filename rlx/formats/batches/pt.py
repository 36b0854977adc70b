"""torch's ``.pt``: ``torch.load(file)["next"]["reward"]``, which needs no pickled code (``weights_only=True``)."""

import io
from collections.abc import Iterable
from typing import IO, Any, BinaryIO, cast

from rlx.formats.common.exporter import Columns, gathered, tree


class PtExporter:
    """Writer of nested dicts of tensors, and of lists of texts; holds all rows in memory."""

    def write(self, batches: Iterable[Columns], file: BinaryIO) -> None:
        """Write one tensor a column."""
        import torch  # noqa: PLC0415  (takes seconds, and the other formats do without)

        tensors = {
            name: rows.tolist() if rows.dtype == object else torch.from_numpy(rows)
            for name, rows in gathered(batches).items()
        }
        checked = _Checked(file)
        try:
            torch.save(tree(tensors), cast("IO[bytes]", checked))
        except RuntimeError:
            # All that torch says of a full disk or a closed pipe is where it was in the file.
            if checked.failure is not None:
                raise checked.failure from None
            raise


class _Checked(io.RawIOBase):
    """A file that remembers why it could not be written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.failure: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        try:
            return self._file.write(data)
        except OSError as exc:
            self.failure = exc
            raise

    def flush(self) -> None:
        self._file.flush()


BATCHES = PtExporter()
