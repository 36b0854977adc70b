"""Text fields at rest: few bytes where texts repeat, one look-up per step where they do not, and never trusted."""

import json
import tracemalloc
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tensordict import NonTensorData, NonTensorStack, TensorDict

from rlx.block import Block, single
from rlx.errors import CorruptDatasetError, SchemaMismatchError
from rlx.schema import Field, Role, Schema
from rlx.store import stores as text
from rlx.store.dataset import Dataset
from rlx.store.repair import repair
from rlx.store.stores import store_named
from rlx.store.ted import to_leaf, to_rows
from rlx.store.verification import verify
from tests.contracts.store import SETTINGS
from tests.factories import SMALL, TEXT, make_block, relist, write_dataset

STORES = [("zarr", "zstd-dict"), ("memmap", "none")]
SAID = Field("string", (), Role.STEP)
SCHEMA = Schema({**SMALL.fields, "said": SAID})
both = pytest.mark.parametrize(("store", "codec"), STORES)


def saying(texts: list[str]) -> Block:
    """One trajectory, of which every step says one of these texts."""
    block = make_block([len(texts)])
    return single({**block.data, "said": np.array(texts, object)}, episode=0)


def said(path: Path, texts: list[str], *, store: str = "zarr", codec: str = "zstd-dict") -> Dataset:
    return write_dataset(path / "data", [[saying(texts)]], schema=SCHEMA, store=store, codec=codec)


@both
def test_steps_give_texts_as_tensordict_holds_them(store: str, codec: str, tmp_path: Path) -> None:
    shards = [[make_block([3, 5], schema=TEXT)], [make_block([2], first_episode=2, schema=TEXT)]]
    dataset = write_dataset(tmp_path / "data", shards, schema=TEXT, store=store, codec=codec)
    one = dataset[4]
    assert isinstance(one.get("task"), NonTensorData)
    assert (one["task"], one["next", "info", "said"]) == ("task 1", "info/said 1001")
    assert one["observation", "words"] == ["observation/words 1001"] * 2
    assert one["next", "observation", "words"] == ["observation/words 1002"] * 2
    for batch in (dataset[7:10], dataset[[7, 8, 9]], dataset[np.arange(10) > 6]):
        assert isinstance(batch.get("task"), NonTensorStack)
        assert batch["task"] == ["task 1", "task 2", "task 2"]
        assert batch["next", "observation", "words"][0] == ["observation/words 1005"] * 2
    assert dataset[[9, 0, 5]]["task"] == ["task 2", "task 0", "task 1"]
    assert dataset[:0]["task"] == []


@both
def test_any_reader_of_the_store_reads_them(store: str, codec: str, tmp_path: Path) -> None:
    texts = ["größer", "", "größer", "立方体", "a\0b"]
    shard = said(tmp_path, texts, store=store, codec=codec).path / "shards/00000"
    if store == "zarr":
        group = zarr.open_group(shard / "said", mode="r")
        codes, offsets, utf8 = (np.asarray(group[name]) for name in ("codes", "offsets", "utf8"))
    else:
        loaded = TensorDict.load_memmap(shard)["said"]
        codes, offsets, utf8 = (loaded[name].numpy() for name in ("codes", "offsets", "utf8"))
    table = [utf8[start:stop].tobytes().decode() for start, stop in pairwise(offsets)]
    assert table == ["größer", "", "立方体", "a\0b"]
    assert [table[code] for code in codes] == texts


@both
def test_repeated_texts_cost_four_bytes_a_step(store: str, codec: str, tmp_path: Path) -> None:
    dataset = said(tmp_path, ["put the red cube on the blue plate", "open the drawer"] * 5000, store=store, codec=codec)
    taken = sum(file.bytes for name, file in dataset.manifest.shards[0].files.items() if name.startswith("said/"))
    assert taken < 4 * 10_000 + 3000


def test_reading_one_of_many_texts_touches_no_other(tmp_path: Path) -> None:
    dataset = said(tmp_path, [f"{number} " + "chat " * 2000 for number in range(2000)])
    assert dataset.manifest.bytes > 20_000_000
    assert dataset[0]["said"].startswith("0 chat")
    tracemalloc.start()
    assert dataset[1999]["said"].startswith("1999 chat")
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_a_long_text(tmp_path: Path) -> None:
    long = "ä" * 500_000
    dataset = said(tmp_path, [long, "short", long])
    assert dataset[2]["said"] == long
    assert dataset.manifest.bytes < 1_100_000


def test_a_text_that_was_forgotten_is_stored_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "KNOWN_TEXTS", 2)
    texts = ["often", "a", "often", "b", "often", "c", "often", "a", "x" * 100, "x" * 100]
    dataset = said(tmp_path, texts)
    assert dataset[:]["said"] == texts
    stored = (dataset.path / "shards/00000/said/utf8/c/0").read_bytes()
    assert stored == b"oftenabca" + b"x" * 100
    assert verify(dataset.path).ok


@SETTINGS
@given(st.lists(st.lists(st.text(), max_size=4), max_size=5), st.sampled_from(STORES))
def test_whatever_blocks_they_come_in(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[str]], kind: tuple[str, str]
) -> None:
    """Equal to one append of everything, to the byte."""
    written = []
    for pieces in (parts, [[each] for part in parts for each in part], [[each for part in parts for each in part]]):
        directory = tmp_path_factory.mktemp("text")
        writer = text.TextWriter(store_named(kind[0]), directory, "said", SAID)
        for piece in pieces:
            writer.append(np.array(piece, object))
        writer.finish()
        files = {path.relative_to(directory): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
        written.append(files)
        store = store_named(kind[0])
        expected = [each for part in parts for each in part]
        reader = store.reader(directory, "said", SAID, len(expected))
        assert reader.read_range(0, len(expected)).tolist() == expected
        assert reader.read(np.arange(len(expected))[::-1].copy()).tolist() == expected[::-1]
        if expected:
            assert reader.read_runs([(0, 1), (0, len(expected))]).tolist() == [expected[0], *expected]
    assert written[0] == written[1] == written[2]


def test_text_that_utf8_cannot_say_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatchError, match=r"said: a text with '\\ud800' at 3 cannot be stored"):
        said(tmp_path, ["fine", "bad\ud800"])
    with pytest.raises(SchemaMismatchError, match="said: a text with"):
        said(tmp_path, ["fine", "long" * 100 + "\udfff"])


def test_a_block_of_other_objects_is_refused_by_name() -> None:
    block = saying(["a", "b"])
    for other, found in ((b"a", "bytes"), (None, "NoneType"), (1, "int")):
        data: dict[str, NDArray[np.generic]] = {**block.data, "said": np.array(["a", other], object)}
        with pytest.raises(SchemaMismatchError, match=f"block: said has a {found}, expected only texts"):
            single(data, episode=0).check(SCHEMA)
    with pytest.raises(SchemaMismatchError, match="block: said is <U1"):
        single({**block.data, "said": np.array(["a", "b"])}, episode=0).check(SCHEMA)


def test_a_row_of_text_is_one_at_least() -> None:
    with pytest.raises(SchemaMismatchError, match="expected at least one text in a row"):
        Field("string", (2, 0), Role.STEP)


def test_a_reward_or_a_flag_is_no_text() -> None:
    with pytest.raises(SchemaMismatchError, match="reward: expected one number per step"):
        Schema({**SMALL.fields, "reward": Field("string", (), Role.NEXT)})


def numbers(path: Path, dtype: str) -> NDArray[np.generic]:
    return np.frombuffer(path.read_bytes(), dtype).copy()


@both
@pytest.mark.parametrize(
    ("part", "dtype", "values", "problem"),
    [
        ("codes", "<i4", [0, 1, 3, 0], "codes is damaged: text 3, expected one of 3 texts"),
        ("codes", "<i4", [0, -1, 1, 0], "codes is damaged: text -1"),
        ("offsets", "<i8", [0, 5, 3, 9], "offsets is damaged: a text from 5 to 3"),
        ("offsets", "<i8", [0, 12, 6, 9], "offsets is damaged: a text from"),
        ("offsets", "<i8", [-1, 3, 6, 9], "offsets is damaged: a text from -1"),
        ("offsets", "<i8", [0, 3, 6, 2**62], "utf8.* has 9 bytes, expected"),
        ("offsets", "<i8", [0, 3, 6, -9], "offsets is damaged: its texts end at -9"),
        ("utf8", "u1", [97, 97, 97, 98, 0xFF, 98, 99, 99, 99], "utf8 is damaged: .*can't decode"),
    ],
)
def test_damage_is_found_and_does_no_harm(
    store: str, codec: str, part: str, dtype: str, values: list[int], problem: str, tmp_path: Path
) -> None:
    dataset = said(tmp_path, ["aaa", "bbb", "ccc", "aaa"], store=store, codec=codec)
    shard = dataset.path / "shards/00000/said"
    file = shard / part / "c/0" if store == "zarr" else shard / f"{part}.memmap"
    file.write_bytes(np.array(values, dtype).tobytes())
    relist(dataset.path)
    with pytest.raises(CorruptDatasetError, match=problem):
        Dataset(dataset.path)[:]
    assert not verify(dataset.path).ok
    assert repair(dataset.path).dropped == ["00000"]


@both
def test_metadata_that_disagree_are_found(store: str, codec: str, tmp_path: Path) -> None:
    dataset = said(tmp_path, ["aaa", "bbb"], store=store, codec=codec)
    shard = dataset.path / "shards/00000/said"
    path = shard / "utf8/zarr.json" if store == "zarr" else shard / "meta.json"
    described = json.loads(path.read_bytes())
    (described if store == "zarr" else described["utf8"])["shape"] = [5]
    path.write_text(json.dumps(described))
    relist(dataset.path)
    assert "utf8" in verify(dataset.path).problems[0].problem


@both
@pytest.mark.parametrize("part", ["codes", "offsets", "utf8"])
def test_a_missing_file(store: str, codec: str, part: str, tmp_path: Path) -> None:
    dataset = said(tmp_path, ["aaa", "bbb"], store=store, codec=codec)
    shard = dataset.path / "shards/00000/said"
    (shard / part / "c/0" if store == "zarr" else shard / f"{part}.memmap").unlink()
    relist(dataset.path)
    with pytest.raises(CorruptDatasetError, match=f"{part}.* is missing"):
        Dataset(dataset.path)[0]


def test_leaves_and_rows() -> None:
    rows = np.array([["a", "b"], ["c", "d"], ["e", ""]], object)
    assert to_rows(to_leaf(rows)).tolist() == rows.tolist()
    assert to_rows(TensorDict({"t": to_leaf(rows)}, [3])[1].get("t")).tolist() == ["c", "d"]
    assert to_rows(NonTensorData("x")).tolist() == "x"
    for bad in (NonTensorData(3, batch_size=[2]), NonTensorStack("a", None), {"a": 1}):
        with pytest.raises(SchemaMismatchError, match=r"expected a tensor or text|expected numbers or text"):
            to_rows(bad)


def test_nothing_is_said_at_all(tmp_path: Path) -> None:
    empty = write_dataset(tmp_path / "data", [[], [saying([""] * 3)]], schema=SCHEMA)
    assert empty[:]["said"] == [""] * 3
    assert verify(empty.path).ok


@both
def test_many_texts_a_step(store: str, codec: str, tmp_path: Path) -> None:
    schema = Schema({**SMALL.fields, "said": Field("string", (300,), Role.STEP)})
    block = make_block([5])
    texts = np.array([[f"{step} {number % 7}" for number in range(300)] for step in range(5)], object)
    block = single({**block.data, "said": texts}, episode=0)
    dataset = write_dataset(tmp_path / "data", [[block]], schema=schema, store=store, codec=codec)
    assert to_rows(dataset[[4, 1]].get("said")).tolist() == texts[[4, 1]].tolist()
    assert verify(dataset.path).ok
