"""Manifests with a right checksum, and anything at all in the places that no shard depends on."""

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from tests.conftest import Cli
from tests.factories import make_block, write_dataset

_PLACES: list[tuple[str | int, ...]] = [
    ("id",),
    ("notes",),
    ("notes", "left_out"),
    ("notes", "a"),
    ("lineage",),
    ("lineage", 0),
    ("lineage", 0, "command"),
    ("lineage", 0, "rlx"),
    ("lineage", 0, "parents"),
    ("lineage", 0, "recipe"),
    ("planned",),
    ("codec",),
    ("codec", "name"),
    ("codec", "level"),
    ("schema", "action", "space"),
    ("schema", "action", "space", "type"),
    ("schema", "action", "space", "n"),
    ("schema", "action", "space", "low"),
    ("shards", 0, "statistics"),
    ("shards", 0, "statistics", "return"),
    ("shards", 0, "statistics", "return", "count"),
    ("shards", 0, "statistics", "length", "sum"),
    ("shards", 0, "statistics", "reward", "min"),
    ("shards", 0, "statistics", "action", "counts"),
    ("shards", 0, "statistics", "action", "counts", "7"),
    ("shards", 0, "dropped"),
    ("shards", 0, "dropped", "padding"),
    ("shards", 0, "origin"),
    ("shards", 0, "name"),
    ("shards", 0, "steps"),
    ("shards", 0, "trajectories"),
    ("shards", 0, "files"),
    ("shards", 0, "files", "action/zarr.json", "bytes"),
    ("shards", 0, "files", "action/zarr.json", "crc32c"),
    ("schema",),
    ("schema", "observation", "shape"),
    ("schema", "observation", "dtype"),
    ("schema", "observation", "role"),
    ("store",),
]
_DEEP: list[Any] = []
for _ in range(200):
    _DEEP = [_DEEP]
_VALUES: list[Any] = [
    None,
    True,
    -1,
    2**70,
    10**400,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x\x1b[2J",
    "x\nforged: line",
    "x" * 10_000,
    [],
    [1, "a"],
    {},
    {"a": {}},
]
_VALUES += [_DEEP]


def signed(path: Path, described: dict[str, Any]) -> None:
    described.pop("crc32c", None)
    body = json.dumps(described, indent=1).encode()[:-2]
    (path / "rlx.json").write_bytes(body + b',\n "crc32c": "%08x"\n}\n' % google_crc32c.value(body))


@pytest.mark.parametrize("place", _PLACES, ids=lambda place: "/".join(map(str, place)))
def test_a_hostile_manifest(place: tuple[str | int, ...], cli: Cli, tmp_path: Path) -> None:
    path = write_dataset(tmp_path / "data", [[make_block([3, 5])]]).path
    raw = (path / "rlx.json").read_text()
    sample, view = ("sample", "--format", "jsonl", "-o", "-"), ("view", "-o", tmp_path / "page.html")
    others = cycle((("verify",), sample, view, ("doctor",)))
    for value in _VALUES:
        described = json.loads(raw)
        described["schema"]["action"].setdefault("space", {"type": "Discrete", "n": 6})
        at: Any = described
        for key in place[:-1]:
            at = at.setdefault(key, {}) if isinstance(at, dict) else at[key]
        at[place[-1]] = value
        signed(path, described)
        for command in (("inspect", "--stats"), next(others)):
            result = cli(command[0], path, *command[1:])
            assert result.code in (0, 2, 3), (command, value, result)
            assert "\x1b" not in result.out + result.err
            assert "\nforged" not in result.out + result.err
            assert len(result.err) < 2000
            if result.code:
                assert "error: " in result.err + result.out
                break  # the others read the manifest as this one does
