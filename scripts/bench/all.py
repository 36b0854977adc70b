"""Runs every benchmark and writes what it found into the tables and the picture of docs/performance_details.md.

python -m scripts.bench.all [--write docs/performance_details.md] [--only NAME ...]

A table stands between ``<!-- NAME -->`` and ``<!-- /NAME -->``, where NAME is the benchmark's. The picture
that has the document's name is drawn of the tables.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.bench import timing
from scripts.bench.plot import bars, draw

BENCHMARKS = (
    "size",
    "shards",
    "read",
    "convert",
    "convert_memory",
    "engine",
    "collect",
    "preprocess",
    "start",
    "sample",
    "loader",
    "keys",
    "ports",
    "cold",
    "memory",
    "online",
    "slice_starts",
    "prioritized",
    "prefetch",
    "ray_buffer",
    "remote",
)


def run(name: str) -> dict[str, Any]:
    """The result of one benchmark, in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", f"scripts.bench.{name}", "--json"]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    # Ray and its workers write lines of their own to stdout, before the result and after it.
    line = next(line for line in found.splitlines() if line.startswith("{"))
    result: dict[str, Any] = json.loads(line)
    return result


def leaves(result: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every number of a result with the keys that lead to it, the ratios of each group first.

    Example:
        >>> list(leaves({"Pong": {"ms": 1.5, "ratio": 4}}))
        [('Pong ratio', 4), ('Pong ms', 1.5)]
    """
    for key in sorted(result, key=lambda key: "ratio" not in key):
        where = f"{path} {key}".strip()
        if isinstance(result[key], dict):
            yield from leaves(result[key], where)
        else:
            yield where, result[key]


def table(result: dict[str, Any]) -> str:
    """A result as a table in Markdown, or as the tables that it has."""
    if "tables" in result:
        return "\n\n".join(map(timing.grid, result["tables"].values()))
    rows = [f"| {name.replace('_', ' ')} | {timing.shown(value)} |" for name, value in leaves(result)]
    return "\n".join(["| | |", "|---|---|", *rows])


def replaced(text: str, name: str, content: str) -> str:
    """A document with other content between the marks of this name.

    Example:
        >>> replaced("<!-- a -->old<!-- /a -->", "a", "new")
        '<!-- a -->\\nnew\\n<!-- /a -->'
    """
    marked = re.compile(f"(<!-- {name} -->).*(<!-- /{name} -->)", re.DOTALL)
    return marked.sub(lambda match: f"{match[1]}\n{content}\n{match[2]}", text)


def main() -> None:
    """Runs, prints, and writes if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="the document whose tables are to be replaced")
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=BENCHMARKS, help="some of them")
    options = parser.parse_args()
    for name in options.only:
        content = table(run(name))
        print(f"{name}\n{content}\n", flush=True)
        if options.write:
            options.write.write_text(replaced(options.write.read_text(), name, content))
    if options.write:
        draw(bars(options.write.read_text()), options.write.with_suffix(".svg"))


if __name__ == "__main__":
    main()
