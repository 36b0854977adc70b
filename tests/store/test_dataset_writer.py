from dataclasses import replace
from pathlib import Path

import pytest

from rlx.errors import CorruptDatasetError, DatasetExistsError, IncompleteDatasetError
from rlx.files import durable
from rlx.manifest import Manifest
from rlx.schema import Schema
from rlx.store.codec import Codec
from rlx.store.dataset import Dataset
from rlx.store.dataset_writer import claimed, open_writer
from rlx.store.verification import verify
from rlx.store.writer import write_shard
from tests.factories import LARGE, make_block, write_dataset

SHARDS = [[make_block([3, 5], schema=LARGE)], [make_block([4], first_episode=2, schema=LARGE)]]


def described(**changed: object) -> Manifest:
    made = Manifest("Test/1", "zarr", Codec.parse("zstd-dict").to_json(), LARGE, planned=["00000", "00001"])
    return replace(made, **changed)  # type: ignore[arg-type]


@pytest.fixture
def half(tmp_path: Path) -> Path:
    """A dataset of which the second shard is still to come."""
    return write_dataset(tmp_path / "data", SHARDS[:1], schema=LARGE, planned=2).path


def contents(path: Path) -> dict[str, bytes]:
    return {
        file.relative_to(path).as_posix(): file.read_bytes()
        for file in path.rglob("*")
        if file.name != ".lock" and file.is_file()
    }


def test_a_resumed_dataset_is_the_undisturbed_one(half: Path, tmp_path: Path) -> None:
    assert Manifest.load(half).missing == ["00001"]
    resumed = write_dataset(half, SHARDS, schema=LARGE)
    undisturbed = write_dataset(tmp_path / "other", SHARDS, schema=LARGE)
    assert contents(resumed.path) == contents(undisturbed.path)
    assert Manifest.load(half).missing == []


def test_a_resumed_dataset_goes_on_with_its_dictionaries(half: Path) -> None:
    with claimed(half):
        writer = open_writer(half, described())
        assert "00000" in writer.manifest.listed
        assert "00001" not in writer.manifest.listed
        assert len(writer.format().dictionaries["observation"]) > 0


def test_what_an_interrupted_command_left_is_swept(half: Path) -> None:
    (half / "shards" / "00001.4711.partial" / "observation").mkdir(parents=True)
    (half / "shards" / "00001" / "observation").mkdir(parents=True)
    (half / "shards" / "00001" / "zarr.json").touch()
    with claimed(half):
        open_writer(half, described())
    assert [entry.name for entry in (half / "shards").iterdir()] == ["00000"]
    assert verify(half).ok


def test_many_shards_are_listed_by_one_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data"
    written: list[int] = []
    save = Manifest.save

    def counted(self: Manifest, dataset: Path) -> None:
        written.append(len(self.shards))
        save(self, dataset)

    monkeypatch.setattr(Manifest, "save", counted)
    names = [f"{number:05d}" for number in range(20)]
    with claimed(path) as claim:
        writer = open_writer(claim.place, described(codec=Codec.parse("zstd").to_json(), planned=names))
        form = writer.format()
        writer.commit_all([write_shard(writer.partial(name), name, form, SHARDS[0]) for name in names])
    assert written == [20]
    assert len(Dataset(path).manifest.shards) == 20


def test_files_are_durable_before_they_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, synced = tmp_path / "data", []
    with claimed(path):
        writer = open_writer(path, described(codec=Codec.parse("zstd").to_json()))
        records = [write_shard(writer.partial(name), name, writer.format(), SHARDS[0]) for name in ("00000", "00001")]
        monkeypatch.setattr(durable, "sync", lambda path: synced.append((str(path), Manifest.load(writer.path).listed)))
        writer.save()
        writer.commit_all(records)
    for record in records:
        for name in record.files:
            assert (str(writer.partial(record.name) / name), set()) in [(file, set(listed)) for file, listed in synced]


def test_a_shard_is_listed_only_when_it_is_committed(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with claimed(path):
        writer = open_writer(path, described(codec=Codec.parse("zstd").to_json()))
        record = write_shard(writer.partial("00000"), "00000", writer.format(), SHARDS[0])
        with pytest.raises(IncompleteDatasetError):
            Dataset(path)
        writer.commit(record, origin={"file": "a"}, dropped={"padding": 3})
        assert len(Dataset(path, partial=True)) == 8
    shard = Manifest.load(path).shards[0]
    assert (shard.origin, shard.dropped) == ({"file": "a"}, {"padding": 3})


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"id": "Test/2"}, "id is Test/1, expected Test/2"),
        ({"store": "memmap"}, "store is zarr"),
        ({"codec": Codec.parse("zstd").to_json()}, "codec is"),
        ({"schema": Schema.of(("uint8", (2,)), ("int64", ()))}, "field observation is"),
    ],
    ids=["id", "store", "codec", "schema"],
)
def test_another_dataset_is_refused(half: Path, changed: dict[str, object], named: str) -> None:
    before = contents(half)
    with claimed(half), pytest.raises(DatasetExistsError, match=named):
        open_writer(half, described(**changed))
    assert contents(half) == before
    with claimed(half, overwrite=True) as claim:
        assert open_writer(claim.place, described(**changed)).manifest.shards == ()
    assert contents(half) == before


def test_a_foreign_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(DatasetExistsError, match=r"thesis\.tex, which is not part of a dataset"), claimed(tmp_path):
        raise AssertionError("a foreign directory was claimed")
    with pytest.raises(DatasetExistsError, match="holds a file"), claimed(tmp_path / "thesis.tex"):
        raise AssertionError("a file was claimed")
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_damaged_manifest_stops_the_writer(half: Path) -> None:
    raw = bytearray((half / "rlx.json").read_bytes())
    raw[10] ^= 1
    (half / "rlx.json").write_bytes(raw)
    with claimed(half), pytest.raises(CorruptDatasetError, match="damaged"):
        open_writer(half, described())
    assert (half / "shards" / "00000").exists()


def test_the_plan_grows(half: Path) -> None:
    with claimed(half):
        assert open_writer(half, described(planned=["00005"])).manifest.planned == ["00000", "00001", "00005"]
