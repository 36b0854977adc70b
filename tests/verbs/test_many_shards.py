"""Every verb is linear in shards: manifests are not written, and datasets not opened, for every shard."""

import pickle
from collections import Counter
from collections.abc import Callable
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import rlx
from rlx.files.retry import Cancel
from rlx.manifest import Manifest
from rlx.store import dataset_writer
from rlx.verbs import transfers
from rlx.verbs.inputs import StoredDataset
from rlx.verbs.shard_task import SharedSource
from tests.factories import make_block, write_dataset
from tests.verbs.datasets import check_listed

SHARDS = 40


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    blocks = [[make_block([1, 2], first_episode=2 * number)] for number in range(SHARDS)]
    return write_dataset(tmp_path / "many", blocks).path


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, dataset: Path) -> Counter[str]:  # noqa: ARG001  (written before)
    """How many manifests were written and read; only the first shard is listed by itself."""
    monkeypatch.setattr(dataset_writer, "LISTING_SHARE", 1e-9)
    monkeypatch.setattr(dataset_writer, "CHEAP_LISTING_S", 0.0)
    calls = Counter[str]()
    save, load = Manifest.save, Manifest.load.__func__  # type: ignore[attr-defined]

    def counted_save(manifest: Manifest, dataset: Path) -> None:
        calls["save"] += 1
        save(manifest, dataset)

    def counted_load(cls: type[Manifest], dataset: Path) -> Manifest:
        calls["load"] += 1
        loaded: Manifest = load(cls, dataset)
        return loaded

    monkeypatch.setattr(Manifest, "save", counted_save)
    monkeypatch.setattr(Manifest, "load", classmethod(counted_load))
    return calls


VERBS: dict[str, Callable[[Path, Path], object]] = {
    "convert": lambda dataset, new: rlx.convert(dataset, new, jobs=1),
    "preprocess": lambda dataset, new: rlx.preprocess(dataset, new, transform="clip_reward", num_workers=1),
    "split": lambda dataset, new: rlx.split(dataset, [0.5], output=[new], jobs=1),
    "merge": lambda dataset, new: rlx.merge([dataset], new),
    "merge encoded": lambda dataset, new: rlx.merge([dataset], new, to="memmap", jobs=1),
    "push": lambda dataset, new: rlx.push(dataset, str(new)),
    "pull": lambda dataset, new: rlx.pull(str(dataset), new),
}


@pytest.mark.parametrize("verb", VERBS)
def test_manifests_written_and_read(verb: str, dataset: Path, calls: Counter[str], tmp_path: Path) -> None:
    VERBS[verb](dataset, tmp_path / "new")
    assert calls["save"] <= 4
    assert calls["load"] <= 6
    assert len(check_listed(tmp_path / "new")) > SHARDS / 2


def test_collecting(calls: Counter[str], tmp_path: Path) -> None:
    rlx.collect("CartPole-v1", steps=SHARDS * 5, envs=1, shard_steps=5, output=tmp_path / "new")
    assert calls["save"] <= 4
    assert rlx.open(tmp_path / "new").manifest.steps == SHARDS * 5


def test_reading(calls: Counter[str], dataset: Path) -> None:
    assert rlx.verify(dataset).ok
    assert rlx.inspect(dataset, stats=True, trajectories=True).steps == 3 * SHARDS
    assert calls["load"] <= 6
    assert calls["save"] == 0


def test_a_worker_opens_a_dataset_once(calls: Counter[str], dataset: Path) -> None:
    shared = SharedSource(StoredDataset(rlx.open(dataset)))
    before = calls["load"]
    sent = [cloudpickle.dumps((number, shared)) for number in range(SHARDS)]
    sources = [pickle.loads(one)[1].source for one in sent]
    assert all(source is sources[0] for source in sources)
    assert sources[0].files(1) == shared.source.files(1)
    assert calls["load"] == before + 1
    again = pickle.loads(cloudpickle.dumps(SharedSource(shared.source)))
    assert again.source is not sources[0]


def test_few_transfers_wait_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = []

    def counted(running: dict[Any, Any], return_when: str) -> Any:
        waiting.append(len(running))
        return wait(running, return_when=return_when)

    monkeypatch.setattr(transfers, "wait", counted)
    begun = []

    def move(item: int, _: Cancel) -> int:
        begun.append(item)
        return item

    moved = dict(transfers.transfer(range(100), move, jobs=3))
    assert moved == {item: item for item in range(100)}
    assert sorted(begun) == list(range(100))
    assert max(waiting) <= 6
