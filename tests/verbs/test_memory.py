"""Of what is exported and imported only some blocks are in memory at once, in every format."""

import ctypes
import re
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow
import pytest

from rlx.formats.lerobot import writer as lerobot
from rlx.formats.parquet import writer as parquet_dataset
from rlx.formats.registry import writable
from rlx.progress import Silent
from rlx.schema import Schema
from rlx.testing.dataset_exporter import random_block
from rlx.verbs.export import export
from rlx.verbs.inputs import open_source
from tests.factories import write_dataset

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
pytestmark = [
    pytest.mark.skipif(not _CLEAR.exists(), reason="only Linux says how much memory was used at most"),
    pytest.mark.xdist_group("memory"),
]

_EPISODE, _NUMBERS = 2000, 128  # a megabyte of observations
_EPISODES = {"small": 10, "large": 40}
# Arrow and Lance fill buffers of their own first.
_MANY_EPISODES = {"small": 40, "large": 160}
_ATTEMPTS = 3
_BUFFERED = {"hf_parquet", "lance", "lerobot", "parquet"}
_BY_EPISODE = {"rlds"}  # an episode is an example, and read at once; elsewhere all steps are one episode
_ACTIONS: Mapping[str, tuple[str, tuple[int, ...]]] = {"robomimic": ("float32", (2,))}


def peak(work: Callable[[str], None], name: str) -> int:
    """Bytes that this process has at most during some work, pages of mapped files included."""
    # What is free may be there still, and would hide what the work takes.
    pyarrow.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)
    _CLEAR.write_text("5")
    work(name)
    found = re.search(r"VmHWM:\s+(\d+)", _STATUS.read_text())
    assert found is not None
    return int(found[1]) * 1024


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Schema, tuple[int, ...]], Path]:
    """Gives a dataset of trajectories of these lengths, which formats of one schema share."""
    made: dict[tuple[str, tuple[int, ...]], Path] = {}

    def source(schema: Schema, lengths: tuple[int, ...]) -> Path:
        key = schema["action"].dtype, lengths
        if key not in made:
            made[key] = tmp_path_factory.mktemp("source") / "data"
            write_dataset(made[key], [[random_block(schema, lengths, ends="t")]], schema=schema, codec="none")
        return made[key]

    return source


@pytest.mark.parametrize("format", writable("datasets"))
def test_memory_does_not_depend_on_the_size(
    format: str,
    sources: Callable[[Schema, tuple[int, ...]], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (lerobot, parquet_dataset):
        monkeypatch.setattr(module, "_GROUP_BYTES", 2**20)
    schema = Schema.of(observation=("float32", (_NUMBERS,)), action=_ACTIONS.get(format, ("int64", ())))
    episodes = _MANY_EPISODES if format in _BUFFERED else _EPISODES
    most = (episodes["large"] - episodes["small"]) * 1_000_000 // 2  # half of what the large dataset has more
    paths: dict[str, Path] = {}
    for name, count in episodes.items():
        lengths = (_EPISODE,) * count if format in _BY_EPISODE else (_EPISODE * count,)
        paths[name] = sources(schema, lengths)

    def exported(name: str) -> None:
        target = tmp_path / f"{name}-v0"
        if target.is_dir():
            shutil.rmtree(target)
        target.unlink(missing_ok=True)
        export(paths[name], target, format, progress=Silent())

    def imported(name: str) -> None:
        source, _ = open_source(tmp_path / f"{name}-v0", None)
        for shard in source.shards():
            for _ in source.blocks(shard, Counter()):
                pass

    for work in (exported, imported):
        grown: list[int] = []
        # Threads of Arrow and Lance may take more once, under load; what grows with the dataset grows each time.
        while not grown or (grown[-1] >= most and len(grown) < _ATTEMPTS):
            small, large = peak(work, "small"), peak(work, "large")
            grown.append(large - small)
        assert grown[-1] < most, f"{work.__name__}: {grown} bytes more for the large dataset"
