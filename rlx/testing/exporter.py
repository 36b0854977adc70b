"""What every Exporter keeps to: a suite that an exporter's own test file subclasses, saying how its files are read."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rlx.formats.common.batches import Columns, DirectoryExporter, Exporter, export

Arrays = dict[str, NDArray[Any]]
TEXTS = np.array(["", "größer", "立方体", "a b\nc", "x" * 300], object)


class PipeOnly(io.RawIOBase):
    """A stream like a pipe: it can only be written."""

    def __init__(self) -> None:
        self.written = bytearray()

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def write(self, data: Any, /) -> int:
        self.written += bytes(data)
        return len(bytes(data))


def batch(rows: int, seed: int) -> Arrays:
    """Columns of every kind, with values that are hard to keep."""
    random = np.random.default_rng(seed)
    reward = random.normal(size=(rows, 1)).astype(np.float32)
    reward[0] = [np.inf, -np.inf, np.nan][seed % 3]
    return {
        "action": random.integers(0, 18, rows),
        "collector/traj_ids": np.full(rows, 2**62) + seed,
        "next/observation": random.integers(0, 256, (rows, 8, 6), np.uint8),
        "next/reward": reward,
        "next/truncated": random.integers(0, 2, (rows, 1)).astype(bool),
        "observation": random.integers(0, 256, (rows, 8, 6), np.uint8),
        "state/position": random.normal(size=(rows, 2, 1, 3)),
        "task": random.choice(TEXTS, rows),
        "words": random.choice(TEXTS, (rows, 2)),
    }


class ExporterContract:
    """The tests; ``exporter`` and ``read`` come from the subclass."""

    exporter: Exporter | DirectoryExporter
    suffix: str

    def read(self, path: Path) -> Arrays:
        raise NotImplementedError

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / f"out.{self.suffix}"

    def check(self, path: Path, batches: list[Arrays]) -> None:
        found = self.read(path)
        assert sorted(found) == sorted(batches[0])
        for name, rows in found.items():
            expected = np.concatenate([one[name] for one in batches])
            assert (rows.shape, rows.dtype) == (expected.shape, expected.dtype), name
            np.testing.assert_array_equal(rows, expected)

    @pytest.mark.parametrize("rows", [[1], [5], [4, 4, 1], [1, 300]])
    def test_what_is_written_is_read(self, rows: list[int], path: Path) -> None:
        batches = [batch(count, seed) for seed, count in enumerate(rows)]
        export(iter(batches), path, self.exporter)
        self.check(path, batches)
        assert [entry.name for entry in path.parent.iterdir()] == [path.name]

    def test_the_same_batches_give_the_same_bytes(self, path: Path, tmp_path: Path) -> None:
        batches = [batch(4, 0), batch(3, 1)]
        export(batches, path, self.exporter)
        again = tmp_path / f"again.{self.suffix}"
        export(batches, again, self.exporter)
        assert contents(path) == contents(again)

    def test_a_file_is_replaced(self, path: Path) -> None:
        export([batch(4, 0)], path, self.exporter)
        export([batch(2, 1)], path, self.exporter)
        self.check(path, [batch(2, 1)])

    def test_a_failure_leaves_what_was_there(self, path: Path) -> None:
        export([batch(4, 0)], path, self.exporter)

        def broken() -> Iterator[Columns]:
            yield batch(2, 1)
            raise RuntimeError("no more")

        with pytest.raises(RuntimeError, match="no more"):
            export(broken(), path, self.exporter)
        self.check(path, [batch(4, 0)])
        assert [entry.name for entry in path.parent.iterdir()] == [path.name]

    def test_a_stream_gets_the_same(self, path: Path) -> None:
        if isinstance(self.exporter, DirectoryExporter):
            pytest.skip("a directory cannot go through a pipe")
        batches = [batch(4, 0), batch(3, 1)]
        stream = PipeOnly()
        self.exporter.write(batches, stream)  # type: ignore[arg-type]
        path.write_bytes(stream.written)
        self.check(path, batches)


def contents(path: Path) -> dict[str, bytes]:
    """Every file of an export."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}
