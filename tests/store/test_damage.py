"""Datasets with flipped bits and missing ends: verifying finds every one, and reading them never does harm."""

import json
import random
import shutil
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import CorruptDatasetError
from rlx.manifest import Manifest
from rlx.schema import Field, Role, Schema
from rlx.store import shards
from rlx.store.dataset import Dataset
from rlx.store.verification import verify
from tests.factories import LARGE, make_block, relist, write_dataset
from tests.kernels import reading

STORES = [
    ("zarr", "zstd-dict", "compiled"),
    ("zarr", "zstd-dict", "python"),
    ("zarr", "zstd:chunk=4", "python"),
    ("zarr", "zstd:chunk=1", "compiled"),
    ("zarr", "lz4", "python"),
    ("memmap", "none", "python"),
]
SCHEMA = Schema({**LARGE.fields, "task": Field("string", (), Role.STEP), "said": Field("string", (2,), Role.NEXT)})
SHARDS = [[make_block([3, 5, 4], first_episode=3 * shard, schema=SCHEMA)] for shard in range(2)]
STEPS = 24
# The dataset takes 50 kB; its dictionary 77 kB, and what decodes a chunk some more.
MOST_BYTES = 16 * 2**20


@pytest.fixture(scope="module", params=STORES, ids=lambda param: "-".join(param[1:]))
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    store, codec, how = request.param
    path = tmp_path_factory.mktemp("whole") / "data"
    with reading(how):
        yield write_dataset(path, SHARDS, schema=SCHEMA, store=store, codec=codec).path


@contextmanager
def damaged(file: Path, rng: random.Random) -> Iterator[None]:
    """A file with a few bits flipped, or its end cut off, or its end longer, or with another piece of itself inside."""
    raw = file.read_bytes()
    kind, at = rng.choice("fffftlp"), rng.randrange(len(raw))
    changed = bytearray(raw)
    if kind == "f":
        for position in {at, *rng.choices(range(len(raw)), k=rng.randrange(3))}:
            changed[position] ^= 1 << rng.randrange(8)
    elif kind == "t":
        del changed[at:]
    elif kind == "l":
        changed += rng.randbytes(rng.randrange(1, 40))
    else:
        changed[at : at + 16] = rng.randbytes(len(changed[at : at + 16]))
    file.write_bytes(changed)
    try:
        if changed != raw:
            yield
        else:
            pytest.fail("nothing was damaged: choose another seed")
    finally:
        file.write_bytes(raw)


def read_all(path: Path) -> None:
    """Reads a dataset in every way; what comes must have the right shape."""
    dataset = Dataset(path)
    for index in (np.arange(len(dataset)), [5, 20, 3, 3], slice(2, 9)):
        steps = dataset[index]
        count = len(range(STEPS)[index]) if isinstance(index, slice) else len(index)
        assert steps["observation"].shape == steps["next", "observation"].shape == (count, 20, 30)
        assert steps["action"].shape == (count,)
        assert len(steps["task"]) == len(steps["next", "said"]) == count
        assert steps["next", "reward"].shape == (count, 1)


def read_within_bounds(path: Path) -> None:
    """Reads it all, or is told that it is damaged; neither takes more memory than the dataset explains."""
    tracemalloc.start()
    try:
        with suppress(CorruptDatasetError):
            read_all(path)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MOST_BYTES


def test_every_damage_is_found_and_none_does_harm(whole: Path) -> None:
    rng = random.Random(7)
    files = sorted(file for file in whole.rglob("*") if file.is_file() and file.name != ".lock")
    large = [file for file in files if "observation" in str(file)]
    read_all(whole)  # imports what it needs
    for case in range(55):
        # Of two shards that hold the same kinds of files, every other file.
        file = files[2 * case % len(files)] if case < 43 else rng.choice(large)
        with damaged(file, rng):
            assert not verify(whole).ok, file
            with pytest.raises(CorruptDatasetError):
                rlx.open(whole, verify=True)
            read_within_bounds(whole)
    assert verify(whole).ok


def test_damage_that_the_manifest_agrees_with(whole: Path, tmp_path: Path) -> None:
    """A malicious dataset: every checksum is right, and what the files say is not."""
    path = tmp_path / "data"
    rng = random.Random(5)
    shutil.copytree(whole, path)
    files = sorted(file for file in path.rglob("*") if "observation" in str(file) and file.is_file())
    files += [file for file in [path / "shards/00000/meta.json"] if file.exists()]
    read_all(path)
    for _ in range(20):
        with damaged(rng.choice(files), rng):
            relist(path)
            verify(path)
            read_within_bounds(path)


HOSTILE: dict[str, Any] = {
    "chunk_shape": [[10**12, 20, 30], [0, 20, 30], [-1, 20, 30], [1, 20], ["1", 20, 30], [], None, 5],
    "codecs": [
        None,
        [],
        {},
        "zstd",
        [{}],
        [5],
        [{"name": "bytes"}, {"name": "gzip"}],
        [{"name": "bytes"}] * 3,
        [{"name": "bytes"}, {"name": "rlx.zstd_dict"}],
        [{"name": "bytes"}, {"name": "rlx.zstd_dict", "configuration": 3}],
    ],
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in HOSTILE.items() for value in values], ids=str
)
def test_metadata_that_no_writer_wrote(tmp_path: Path, key: str, value: object) -> None:
    path = write_dataset(tmp_path / "data", SHARDS, schema=SCHEMA).path
    node = path / "shards/00001/observation/zarr.json"
    described = json.loads(node.read_text())
    described["codecs"][0]["configuration"][key] = value
    node.write_text(json.dumps(described))
    relist(path)
    assert not verify(path).ok
    with pytest.raises(CorruptDatasetError):
        read_all(path)


def test_more_steps_than_the_files_hold(tmp_path: Path) -> None:
    path = write_dataset(tmp_path / "data", SHARDS, schema=SCHEMA).path
    manifest = Manifest.load(path)
    manifest.with_shards([replace(manifest.shards[0], steps=2**40, trajectories=2**39)]).save(path)
    assert not verify(path).ok
    with pytest.raises(CorruptDatasetError, match="expected"):
        Dataset(path)[0]


def test_a_file_that_is_cut_while_it_is_open(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a check these reads end the process with SIGBUS, or give zeros on the page where the file ends."""
    monkeypatch.setattr(shards, "CHECK_SHARE", float("inf"))
    path = shutil.copytree(whole, tmp_path / "data")
    expected = rlx.open(path)[:]
    cut = [file for file in sorted((path / "shards").rglob("*")) if file.is_file() and file.suffix != ".json"]
    assert cut
    refused = set()
    for file in cut:
        content = file.read_bytes()
        opened = rlx.open(path)
        opened[:]
        with file.open("r+b") as truncated:
            truncated.truncate(len(content) // 2)
        for index in (0, 9, slice(0, 24), slice(3, 9), [20, 3, 3, 11], [0, 23]):
            try:
                found = opened[index]
            except CorruptDatasetError as exc:
                assert f"{file.name} was cut while it was open: it has" in str(exc)  # noqa: PT017
                refused.add(file)
            else:
                assert all((found[key] == expected[index][key]).all() for key in ("observation", ("next", "reward")))
        file.write_bytes(content)
    # The tables of trajectories are read once; of the rest, what every step needs is refused.
    assert {file for file in cut if "observation" in str(file) or "reward" in str(file)} <= refused
