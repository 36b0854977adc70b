"""JSON lines: a step a line, nested as in TED."""

import json
from collections.abc import Iterable
from typing import BinaryIO

from rlx.formats.common.exporter import Columns, tree


class JsonlExporter:
    """Writer of one line per step, as it comes.

    Numbers that JSON lacks are written as JavaScript and Python know them: ``NaN``, ``Infinity``.
    """

    def write(self, batches: Iterable[Columns], file: BinaryIO) -> None:
        """Write one line a step."""
        for batch in batches:
            names = list(batch)
            for step in zip(*batch.values(), strict=True):
                values = {
                    name: value if isinstance(value, str) else value.tolist()
                    for name, value in zip(names, step, strict=True)
                }
                file.write(json.dumps(tree(values), separators=(",", ":")).encode() + b"\n")


BATCHES = JsonlExporter()
