"""Two who push to one URL: what keeps their datasets from being mixed, and what that must not keep from going on."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlx.errors import CorruptDatasetError, DatasetExistsError, DatasetLockedError
from rlx.files.opening import open_location
from rlx.manifest import Manifest
from rlx.progress import Silent
from rlx.store.layout import CLAIM
from rlx.verbs.push import push
from tests.factories import make_block, write_dataset
from tests.verbs.pushes import During, content, files, is_claimed, sent, stop_after, write


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Three shards, of pictures."""
    return write(tmp_path / "set", 3)


@pytest.mark.parametrize("kind", ["bucket", "container", "directory"])
def test_two_datasets_do_not_mix(kind: str, dataset: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = str(tmp_path / "share") if kind == "directory" else f"{request.getfixturevalue(kind)}/set"
    other = write(tmp_path / "other", 3, first_episode=70)

    def second() -> None:
        with pytest.raises(DatasetLockedError, match=r"another dataset, Test/1, is being pushed|is being written"):
            sent(other, url)

    push(dataset, url, progress=During(second))
    assert content(open_location(url)) == files(dataset)
    with pytest.raises(DatasetExistsError, match="its shard 00000 has other files there"):
        sent(other, url)
    assert not is_claimed(url)


@pytest.mark.parametrize("kind", ["bucket", "container"])
def test_of_two_at_once_one_is_there_and_whole(
    kind: str, dataset: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"{request.getfixturevalue(kind)}/set"
    other = write(tmp_path / "other", 3, first_episode=70)
    both = threading.Barrier(2)

    def pushed(path: Path) -> Path | None:
        both.wait()
        try:
            sent(path, url)
        except (DatasetLockedError, DatasetExistsError):
            return None
        return path

    with ThreadPoolExecutor(2) as pool:
        (won,) = [path for path in pool.map(pushed, [dataset, other]) if path is not None]
    assert content(open_location(url)) == files(won)
    assert not is_claimed(url)


def interrupted(dataset: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        stop_after(4, patched)
        with pytest.raises(KeyboardInterrupt):
            push(dataset, url, jobs=1, progress=Silent())
    assert is_claimed(url)


def test_an_interrupted_push_keeps_other_datasets_away(
    dataset: Path, tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_dataset(tmp_path / "other", [[make_block((4,))]]).path
    interrupted(dataset, bucket, monkeypatch)
    there = content(open_location(bucket))
    with pytest.raises(
        DatasetLockedError, match=r"another dataset, Test/1, .*its push was interrupted: its"
    ) as refused:
        sent(other, bucket)
    assert "`overwrite`" in str(refused.value.hint)
    assert content(open_location(bucket)) == there
    sent(other, bucket, overwrite=True)
    assert {name: found for name, found in content(open_location(bucket)).items() if name in files(other)} == files(
        other
    )
    assert not is_claimed(bucket)
    sent(other, bucket)
    assert content(open_location(bucket)) == files(other)


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_what_has_become_of_a_dataset_goes_on_with_its_push(
    shards: int, tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(write(tmp_path / "set", 2), bucket, monkeypatch)
    later = write(tmp_path / "later", shards)
    sent(later, bucket)
    assert content(open_location(bucket)).items() >= files(later).items()
    assert not is_claimed(bucket)


def test_whoever_loses_the_claim_lists_nothing(dataset: Path, tmp_path: Path, bucket: str) -> None:
    location = open_location(bucket)
    stolen = Manifest.load(write(tmp_path / "other", 1)).encode()
    taking = During(lambda: location.put(CLAIM, [stolen], bytes=len(stolen), crc32c=""))
    with pytest.raises(DatasetLockedError, match="another push has taken over, of Test/1"):
        push(dataset, bucket, progress=taking)
    assert "rlx.json" not in content(location)


def test_a_damaged_claim(dataset: Path, bucket: str) -> None:
    location = open_location(bucket)
    location.put(CLAIM, [b"{"], bytes=1, crc32c="")
    with pytest.raises(CorruptDatasetError, match=CLAIM):
        sent(dataset, bucket)
    sent(dataset, bucket, overwrite=True)
    assert content(location) == files(dataset)
    assert not is_claimed(bucket)
