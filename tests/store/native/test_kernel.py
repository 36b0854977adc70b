"""The compiled kernel: what it refuses, and when rlx does without it."""

import logging
import pickle
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hatch_build import compile_kernel
from rlx.errors import CorruptDatasetError
from rlx.store.chunk_codec import ZstdChunks
from rlx.store.dataset import Dataset
from rlx.store.dictionary import trained_dictionary
from rlx.store.native import library as library_module
from rlx.store.native import libzstd as libzstd_module
from rlx.store.native.kernel import kernel
from rlx.store.native.library import SWITCH
from tests.factories import LARGE, make_block, relist, write_dataset
from tests.kernels import HOW, built, reading

BIG = 2**64 - 1


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(
        tmp_path_factory.mktemp("data") / "data", [[make_block([3, 5], schema=LARGE)]], schema=LARGE
    ).path


def with_entry(path: Path, copy: Path, row: int, start: int, length: int) -> Path:
    """Returns a copy of a dataset with another entry of the index; the manifest agrees."""
    shutil.copytree(path, copy)
    (file,) = (file for file in copy.rglob("observation/**/*") if file.is_file() and file.name != "zarr.json")
    content = bytearray(file.read_bytes())
    index: NDArray[np.uint64] = np.frombuffer(content, "<u8", count=20, offset=len(content) - 4 - 160).reshape(10, 2)
    index[row] = start, length
    file.write_bytes(content)
    relist(copy)
    return copy


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    ("start", "length", "problem"),
    [
        (BIG, 1, "points past the end of its file"),
        (BIG - 5, BIG, "points past the end of its file"),
        (2**63, 100, "points past the end of its file"),
        (0, BIG, "points past the end of its file"),
        (0, 10**6, "points past the end of its file"),
        (0, 0, "chunk"),
        (0, 7, "chunk"),
        (3, 40, "chunk"),
    ],
)
def test_an_entry_that_leads_elsewhere(
    path: Path, tmp_path: Path, how: str, start: int, length: int, problem: str
) -> None:
    bad = with_entry(path, tmp_path / "bad", 4, start, length)
    with reading(how):
        whole, dataset = Dataset(path), Dataset(bad)
        assert (dataset[[0, 1]]["observation"] == whole[[0, 1]]["observation"]).all()
        with pytest.raises(CorruptDatasetError, match=problem) as caught:
            dataset[[0, 5, 3]]
        assert caught.value.hint == f"rlx verify {bad}"


def test_threads_decode_at_once(path: Path) -> None:
    with reading("compiled"):
        dataset = Dataset(path)
        expected, wrong = dataset[:]["observation"], []

        def read() -> None:
            for _ in range(50):
                wrong.extend([1] if (dataset[[7, 0, 5, 5]]["observation"] != expected[[7, 0, 5, 5]]).any() else [])

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


def images(count: int, row_bytes: int, seed: int = 0) -> NDArray[np.uint8]:
    """[count, row_bytes] a background, with something random at a random place."""
    rng = np.random.default_rng(seed)
    rows = np.tile(rng.integers(0, 4, row_bytes, np.uint8), (count, 1))
    for row in rows:
        start = rng.integers(row_bytes)
        thing = rng.integers(0, 255, rng.integers(1, 60), np.uint8)[: row_bytes - start]
        row[start : start + len(thing)] = thing
    return rows


def encoded(codec: ZstdChunks, rows: NDArray[np.uint8], like: NDArray[np.int64], room: int) -> list[bytes]:
    """The frame of each row, written to outputs of this room."""
    sizes, done, frames = np.empty(len(rows), np.int32), 0, []
    while done < len(rows):
        out = np.full(room + 8, 7, np.uint8)
        count = codec.encode_rows([rows], np.arange(done, len(rows)), like[done:], out[:room], sizes[done:])
        ends = np.cumsum(sizes[done : done + count])
        assert (out[room:] == 7).all()
        if not count:
            room = max(room, int(sizes[done]))
        frames += [out[end - size : end].tobytes() for end, size in zip(ends, sizes[done:], strict=False)]
        done += count
    return frames


@pytest.mark.parametrize(
    ("row_bytes", "references", "level", "worth"),
    [
        *((row_bytes, references, 6, 32) for row_bytes in (1, 7, 8, 1031) for references in (None, 0, 1, 80)),
        *((1031, 5, level, 32) for level in (0, 1, 7, 19)),
        (140_000, 5, 1, 32),
        *((1031, 80, 6, worth) for worth in (1, 8, 10**6)),
    ],
)
def test_encoded_frames_are_those_of_the_rows(row_bytes: int, references: int | None, level: int, worth: int) -> None:
    rows = images(40, row_bytes, 1)
    rows[7] = np.random.default_rng(2).integers(0, 255, row_bytes, np.uint8)
    rows[[3, 9]] = rows[2]
    parts = images(references or 0, row_bytes)
    dictionary = b"" if references is None else b"begin" + parts.tobytes()
    like = np.full(len(rows), -1)
    like[[3, 9, 10]] = 2
    repeated = [other >= 0 and rows[i].tobytes() == rows[2].tobytes() for i, other in enumerate(like)]
    sizes = []
    for how in HOW:
        with reading(how):
            codec = pickle.loads(pickle.dumps(ZstdChunks(row_bytes, level, dictionary, worth=worth)))
            assert codec.worth == worth
            frames = encoded(codec, rows, like, room=3 * row_bytes)
            assert [not frame for frame in frames] == repeated
            kept = [frame for frame in frames if frame]
            assert (codec.decode(kept) == rows[~np.array(repeated)]).all()
            sizes.append(sum(map(len, kept)))
    assert sizes[0] <= 1.1 * sizes[1] + 200  # Python uses zstd's own search


def test_the_kernel_finds_what_moves_little_and_leaves_the_rest_to_zstd() -> None:
    still, rng = images(400, 7056), np.random.default_rng(3)
    dictionary = trained_dictionary([still[:128]], 7056, 6)
    rolled = np.stack([np.roll(row, rng.integers(7056)) for row in still])
    for rows, most in ((still, 1.0), (rolled, 1.05), (rng.integers(0, 255, still.shape, np.uint8), 1.0)):
        totals = []
        for how in HOW:
            with reading(how):
                frames = encoded(ZstdChunks(7056, 6, dictionary), rows, np.full(len(rows), -1), 1 << 22)
                totals.append(sum(map(len, frames)))
        assert totals[0] <= most * totals[1]


def test_what_a_search_must_save() -> None:
    still = images(400, 7056)
    dictionary = trained_dictionary([still[:128]], 7056, 6)
    moved = still.copy()
    moved[:, :50] = np.roll(still[:, :50], 5, axis=1)  # a search finds it, and saves a third of the bytes
    unlike = np.full(len(moved), -1)
    searched, looked_up = (
        sum(map(len, encoded(ZstdChunks(7056, 6, dictionary, worth=worth), moved, unlike, 1 << 22))) for worth in (8, 1)
    )
    assert kernel() is None or searched < looked_up


def test_it_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="rlx")
    library = built()
    if library is None:
        pytest.skip("no C compiler")
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setattr(library_module, "LIBRARY", library)
    kernel.cache_clear()
    assert kernel() is not None
    for module, name, value, message in (
        (library_module, "LIBRARY", tmp_path / "none", ""),
        (library_module, "VERSION", 0, "has version 7, expected 0"),
        (libzstd_module, "MODULES", ("rlx.none", "none.none"), "none of rlx.none, none.none has libzstd"),
    ):
        caplog.clear()
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            kernel.cache_clear()
            assert kernel() is None
            assert message in caplog.text
    monkeypatch.setenv(SWITCH, "0")
    kernel.cache_clear()
    assert kernel() is None
    assert not compile_kernel(tmp_path / "compiled.so")
    monkeypatch.delenv(SWITCH)
    kernel.cache_clear()


def test_without_a_compiler_there_is_a_notice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "no-compiler"))
    assert not compile_kernel(tmp_path / "compiled.so")
    assert "compressed frames will be read in Python" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []
