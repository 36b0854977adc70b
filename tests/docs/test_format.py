"""The reader in docs/format.md reads what rlx writes; the figures there are the code's."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest

from rlx import manifest, schema
from rlx.store import codec, dictionary, statistics, stores
from rlx.store.dataset import Dataset
from rlx.store.trajectories import COLUMNS
from tests.factories import LARGE, TEXT_FIELDS, join, make_block, write_dataset
from tests.factories import TEXT as TEXT_SCHEMA

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "format.md").read_text()
GOLDEN = ROOT / "tests" / "golden" / "v1"


@pytest.fixture(scope="module")
def reader() -> dict[str, Callable[..., Any]]:
    """The functions of the example."""
    (example,) = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(example, names)
    return names


def test_the_example_reads_the_golden_dataset(reader: dict[str, Callable[..., Any]]) -> None:
    dataset = Dataset(GOLDEN)
    for name in ("pixels", "position"):
        for step in range(len(dataset)):
            now, then = reader["read_step"](GOLDEN, f"observation/{name}", step)
            expected = dataset[step]
            assert np.array_equal(now, expected["observation", name].numpy())
            assert np.array_equal(then, expected["next", "observation", name].numpy())


@pytest.mark.parametrize("chosen", ["zstd-dict", "zstd", "zstd:chunk=1", "none"])
def test_the_example_reads_every_array(reader: dict[str, Callable[..., Any]], tmp_path: Path, chosen: str) -> None:
    blocks = [make_block([3, 5, 11], schema=LARGE)]
    dataset = write_dataset(tmp_path / "data", [blocks], schema=LARGE, codec=chosen)
    shard = dataset.path / "shards" / "00000"
    table = {f"trajectories/{name}": column for name, column in dataset.trajectories.columns().items()}
    for name, column in {**join(blocks).data, **table}.items():
        assert np.array_equal(reader["read_array"](shard, name), column), name


def test_the_example_reads_texts(reader: dict[str, Callable[..., Any]], tmp_path: Path) -> None:
    blocks = [make_block([3, 5, 11], schema=TEXT_SCHEMA)]
    dataset = write_dataset(tmp_path / "data", [blocks], schema=TEXT_SCHEMA)
    for name in TEXT_FIELDS:
        assert np.array_equal(reader["read_text"](dataset.path / "shards" / "00000", name), blocks[0].data[name])


def test_the_example_reads_an_empty_shard(reader: dict[str, Callable[..., Any]], tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", [[]], schema=LARGE)
    for name in ("observation", "reward", "trajectories/length"):
        assert len(reader["read_array"](dataset.path / "shards" / "00000", name)) == 0


def test_the_checksum_rule() -> None:
    raw = (GOLDEN / "rlx.json").read_bytes()
    assert raw[-26:] == b',\n "crc32c": "%08x"\n}\n' % google_crc32c.value(raw[:-26])


def test_every_key_is_specified() -> None:
    described = manifest.Manifest.load(GOLDEN)
    keys = {"format", "crc32c", *described.__dataclass_fields__, *described.shards[0].__dataclass_fields__}
    keys |= {*COLUMNS, *manifest.FileRecord.__dataclass_fields__, *schema.RESERVED, *schema.REQUIRED, *schema.Role}
    keys |= {"dtype", "shape", "role", "space"}
    keys = {key for key in keys if not key.startswith("_")}  # kept in memory only
    assert {key for key in keys if f"`{key}`" not in TEXT and f'"{key}"' not in TEXT} == set()


def test_every_figure_is_the_codes() -> None:
    flat = " ".join(TEXT.split())
    assert f"at most {manifest.MAX_BYTES >> 20} MiB" in flat
    assert f"S <= 2^{manifest.MAX_STEPS.bit_length() - 1}" in flat
    assert f"Rows of {codec.MIN_ROW_BYTES:,} bytes or more" in flat
    assert f"1 to {codec.MAX_CHUNK:,} rows" in flat
    rows = dictionary.REFERENCE_ROWS
    default, archive = (dictionary.reference_frames(rows, 84 * 84, level) for level in (6, dictionary.ARCHIVE_LEVEL))
    assert f"over the first {rows:,} rows of the dataset: {default} rows, or {archive:,} from level" in flat
    assert f"from level {dictionary.ARCHIVE_LEVEL} on. Large rows" in flat
    assert f"but at least {dictionary.REFERENCE_FRAMES}" in flat
    assert f"made from {dictionary.SAMPLES} of the rows" in flat
    assert f"every {statistics.SAMPLED_EVERY}th step of the shard" in flat
    assert f"at most {statistics.MAX_ACTIONS:,} values" in flat
    assert f"recognises the {stores.KNOWN_TEXTS:,} texts" in flat
    assert dictionary.CODEC_NAME in flat
