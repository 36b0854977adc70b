"""What every base promises: a directory and a URL answer alike."""

import pickle
from abc import ABC, abstractmethod
from collections import Counter
from pathlib import Path

import pytest

from rlx.errors import SourceError, SourceNotFoundError
from rlx.files.base import Base
from rlx.progress import Silent

FILES = {
    "add_count_ckpt.0.gz": b"small",
    "Pong/1/replay_logs/$store$_observation_ckpt.0.gz": bytes(range(256)) * 5000,
    "odd names/a b+c%24&ä#?.gz": b"\x1f\x8b not really gzip",
    "empty": b"",
}
ESCAPES = ["../secret", "a/../../secret", "/etc/passwd", "", ".", "a//b", "a/", "a\\b", "..", "a\0b"]


class Tally:
    """Progress that counts what it is told."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.expected: Counter[str] = Counter()

    def expect(self, unit: str, amount: int) -> None:
        self.expected[unit] += amount

    def advance(self, unit: str, amount: int) -> None:
        assert amount >= 0
        self.done[unit] += amount


class BaseContract(ABC):
    """A test class of a base inherits this and says how to make the base."""

    @pytest.fixture
    def files(self, tmp_path: Path) -> Path:
        """A directory that holds FILES."""
        directory = tmp_path / "files"
        for name, content in FILES.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(content)
        return directory

    @pytest.fixture
    @abstractmethod
    def base(self, files: Path) -> object:
        """The base to test, over ``files``."""

    @pytest.mark.parametrize("name", FILES)
    def test_fetch_gives_the_bytes(self, base: Base, name: str, tmp_path: Path) -> None:
        tally = Tally()
        path = base.fetch(name, tmp_path / "here", tally)
        assert path.read_bytes() == FILES[name]
        assert tally.done == Counter({"bytes": len(FILES[name])})

    @pytest.mark.parametrize("name", FILES)
    def test_fetch_again_gives_the_same(self, base: Base, name: str, tmp_path: Path) -> None:
        first = base.fetch(name, tmp_path / "here", Silent())
        tally = Tally()
        assert base.fetch(name, tmp_path / "here", tally) == first
        assert tally.done["bytes"] == len(FILES[name])
        assert first.read_bytes() == FILES[name]

    @pytest.mark.parametrize("name", FILES)
    def test_stat_knows_the_length(self, base: Base, name: str) -> None:
        stat = base.stat(name)
        assert (stat.name, stat.bytes) == (name, len(FILES[name]))

    @pytest.mark.parametrize("name", ["nothing", "Pong/nothing", "Pong", "empty/below"])
    def test_what_is_not_there(self, base: Base, name: str, tmp_path: Path) -> None:
        with pytest.raises(SourceNotFoundError, match="no such file"):
            base.stat(name)
        with pytest.raises(SourceNotFoundError, match="no such file"):
            base.fetch(name, tmp_path / "here", Silent())
        assert not (tmp_path / "here").exists()

    @pytest.mark.parametrize("name", ESCAPES)
    def test_names_stay_below_the_base(self, base: Base, name: str, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match="not a relative path"):
            base.stat(name)
        with pytest.raises(SourceError, match="not a relative path"):
            base.fetch(name, tmp_path / "here", Silent())

    def test_it_crosses_process_boundaries(self, base: Base) -> None:
        assert pickle.loads(pickle.dumps(base)) == base

    def test_only_local_files_are_used_in_place(self, base: Base, files: Path, tmp_path: Path) -> None:
        path = base.fetch("empty", tmp_path / "here", Silent())
        assert path.is_relative_to(files) == base.is_local
        assert path.is_relative_to(tmp_path / "here") != base.is_local
