"""Writing batches as traces: a line for each column of a batch."""

import json
from collections.abc import Iterable
from typing import BinaryIO

from rlx.formats.common.batches import Columns
from rlx_example.traces import BEGINNING


class TracesExporter:
    """Numbers are written as their bytes, which loses none, and texts as they are."""

    def write(self, batches: Iterable[Columns], file: BinaryIO) -> None:
        """Write the lines."""
        for number, batch in enumerate(batches):
            for name, rows in batch.items():
                values = rows.tolist() if rows.dtype == object else rows.tobytes().hex()
                column = {"name": name, "dtype": rows.dtype.str, "shape": rows.shape, "values": values}
                file.write(BEGINNING + f"{number}, ".encode() + json.dumps(column).encode()[1:] + b"\n")


BATCHES = TracesExporter()
