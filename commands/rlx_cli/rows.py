"""Results of millions of rows, written in parts to bound memory."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

_encode = json.JSONEncoder(allow_nan=False).encode


@dataclass(frozen=True, slots=True)
class JsonRows:
    """Objects of the same keys, in a JSON document.

    Args:
        parts: values by key for one or more rows: a list of numbers, booleans and None, or one text shared by all
            rows.
    """

    parts: Iterable[Mapping[str, list[Any] | str]]


@dataclass(frozen=True, slots=True)
class Listing:
    """An aligned table.

    Args:
        columns: the headers; a leading ``>`` aligns a column of numbers to the right.
        rows: returns the cells; called twice, first for the column widths.
    """

    columns: Sequence[str]
    rows: Callable[[], Iterable[Sequence[str]]]

    def lines(self) -> Iterator[str]:
        """Return header and rows, aligned.

        Example:
            >>> list(Listing([">n", "end"], lambda: [("1", "truncated"), ("1,000", "open")]).lines())
            ['    n  end', '    1  truncated', '1,000  open']
        """
        headers = [column.removeprefix(">") for column in self.columns]
        widths = list(map(len, headers))
        for row in self.rows():
            widths = list(map(max, widths, map(len, row)))
        aligned = [
            f"%{width}s" if column.startswith(">") else f"%-{width}s"
            for column, width in zip(self.columns, widths, strict=True)
        ]
        line = "  ".join(aligned)
        yield (line % tuple(headers)).rstrip()
        for row in self.rows():
            yield (line % tuple(row)).rstrip()


def write_document(document: Mapping[str, Any], file: TextIO, hidden: Callable[[Any], Any]) -> None:
    """Write a JSON document some of whose values are ``JsonRows``, one row per line.

    Args:
        hidden: returns a value or text without secrets.
    """
    before = "{\n"
    for key, value in document.items():
        file.write(f"{before}  {_encode(hidden(key))}: ")
        before = ",\n"
        if isinstance(value, JsonRows):
            _write_rows(value, file, hidden)
        else:
            file.write(json.dumps(hidden(value), indent=2, allow_nan=False).replace("\n", "\n  "))
    file.write("\n}\n")


def _write_rows(rows: JsonRows, file: TextIO, hidden: Callable[[Any], Any]) -> None:
    before, after = "[\n", "[]"
    for part in rows.parts:
        pairs, columns = [], []
        for key, values in part.items():
            if isinstance(values, str):
                pairs.append(f"{_encode(key)}: {_encode(hidden(values)).replace('%', '%%')}")
            else:
                pairs.append(f"{_encode(key)}: %s")
                columns.append(_encode(values)[1:-1].split(", "))
        row = f"    {{{', '.join(pairs)}}}"
        file.write(before + ",\n".join(map(row.__mod__, zip(*columns, strict=True))))
        before, after = ",\n", "\n  ]"
    file.write(after)
