"""``merge``: several datasets as one, every shard as it was, linked where it can be."""

import errno
import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import rlx
from rlx.errors import CorruptDatasetError, DatasetError, DatasetExistsError, SchemaMismatchError
from rlx.manifest import FILE_NAME, FileRecord, Manifest
from rlx.store import dataset_writer
from rlx.store.codec import Codec
from rlx.store.dataset_writer import DatasetWriter
from rlx.store.verification import verify
from rlx.testing.source import same
from rlx.verbs.report import Report
from tests.factories import LARGE, SMALL, make_block, write_dataset
from tests.verbs.datasets import check_listed, trajectories, tree


def make(
    path: Path, episodes: list[list[int]], *, first: int = 0, codec: str = "zstd-dict", store: str = "zarr"
) -> Path:
    """A dataset of shards of these lengths."""
    shards = []
    for lengths in episodes:
        shards.append([make_block(lengths, first_episode=first, schema=LARGE)] if lengths else [])
        first += len(lengths)
    return write_dataset(path, shards, schema=LARGE, codec=codec, store=store).path


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return make(tmp_path / "a", [[3, 5], [4], []])


@pytest.fixture
def b(tmp_path: Path) -> Path:
    return make(tmp_path / "b", [[2], [7, 1]], first=50)


def merged(sources: list[Path], destination: Path, *, codec: str | None = None, overwrite: bool = False) -> Report:
    return rlx.merge(sources, destination, codec=codec, jobs=1, overwrite=overwrite)


def inodes(dataset: Path) -> list[int]:
    return sorted(path.stat().st_ino for path in (dataset / "shards").rglob("*") if path.is_file())


@pytest.fixture
def without_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", refuse)


class TestWhatComesOut:
    def test_all_shards_in_order_and_linked(self, a: Path, b: Path, tmp_path: Path) -> None:
        before = tree(a), tree(b)
        report = merged([a, b], tmp_path / "c")
        assert check_listed(tmp_path / "c") == ["00000", "00001", "00002", "00003"]
        assert same(trajectories(tmp_path / "c"), trajectories(a) + trajectories(b))
        assert set(inodes(tmp_path / "c")) <= {*inodes(a), *inodes(b)}
        assert (tree(a), tree(b)) == before
        assert (report.steps, report.trajectories, report.steps_written, report.skipped_shards) == (22, 6, 22, 0)

    @pytest.mark.usefixtures("without_links")
    def test_copies_where_there_are_no_links(self, a: Path, b: Path, tmp_path: Path) -> None:
        merged([a, b], tmp_path / "c")
        assert not {*inodes(tmp_path / "c")} & {*inodes(a), *inodes(b)}
        assert same(trajectories(tmp_path / "c"), trajectories(a) + trajectories(b))

    def test_of_memmaps(self, tmp_path: Path) -> None:
        sources = [make(tmp_path / name, [[3], [2, 2]], codec="none", store="memmap") for name in "ab"]
        merged(sources, tmp_path / "c")
        assert same(trajectories(tmp_path / "c"), 2 * trajectories(sources[0]))

    def test_steps_of_shards_with_other_dictionaries_in_one_batch(self, a: Path, b: Path, tmp_path: Path) -> None:
        merged([b, a], tmp_path / "c")
        opened = rlx.open(tmp_path / "c")
        seen = opened[list(range(0, 22, 2))]["observation"][:, 0, 0].tolist()
        assert seen == [50000, 51000, 51002, 51004, 51006, 0, 2, 1001, 1003, 2000, 2002]

    def test_what_is_removed_from_one_stays_in_the_other(self, a: Path, b: Path, tmp_path: Path) -> None:
        expected = trajectories(a) + trajectories(b)
        merged([a, b], tmp_path / "c")
        merged([b], a, overwrite=True)
        assert same(trajectories(tmp_path / "c"), expected)

    def test_lineage_origin_and_name(self, a: Path, b: Path, tmp_path: Path) -> None:
        merged([a, b], tmp_path / "c")
        listed = Manifest.load(tmp_path / "c")
        parents = [{"id": "Test/1", "crc32c": FileRecord.of(path / FILE_NAME).crc32c} for path in (a, b)]
        assert [step["command"] for step in listed.lineage] == ["rlx download Test/1", f"rlx merge {a} {b}"]
        assert listed.lineage[-1]["parents"] == parents
        assert listed.shards[2].origin == {"source": "Test/1", "shard": "00000"}
        assert listed.id == "Test/1"
        for number, path in enumerate((a, b)):
            replace(Manifest.load(path), id=f"Run/{number}").save(path)
        merged([a, b], tmp_path / "d")
        assert Manifest.load(tmp_path / "d").id == "Run/0+Run/1"

    def test_notes(self, a: Path, b: Path, tmp_path: Path) -> None:
        replace(Manifest.load(a), notes={"rewards": "clipped", "truncation": "unrecorded"}).save(a)
        replace(Manifest.load(b), notes={"rewards": "clipped", "actions": "sticky"}).save(b)
        merged([a, b], tmp_path / "c")
        assert Manifest.load(tmp_path / "c").notes == {
            "rewards": "clipped",
            "truncation": {"shards 0-1": "unrecorded"},
            "actions": {"shards 2-3": "sticky"},
        }

    def test_what_is_missing_is_said(self, a: Path, b: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        replace(Manifest.load(b), planned=["00000", "00001", "00002"]).save(b)
        with caplog.at_level(logging.WARNING):
            merged([a, b], tmp_path / "c")
        assert caplog.messages == [f"{b} is not complete: 1 of 3 shards missing, and left out"]

    def test_of_nothing(self, tmp_path: Path) -> None:
        make(tmp_path / "a", [[]])
        assert merged([tmp_path / "a"], tmp_path / "c").shards == 0
        assert len(rlx.open(tmp_path / "c")) == 0


class TestOtherForms:
    def test_are_named(self, a: Path, tmp_path: Path) -> None:
        other = make(tmp_path / "o", [[2]], codec="zstd:level=5,chunk=4")
        with pytest.raises(
            DatasetError, match=r"o: codec is zstd:level=5,chunk=4, expected zstd-dict.* as in"
        ) as error:
            merged([a, other], tmp_path / "c")
        assert (
            error.value.hint
            == "`to` zarr `codec` zstd-dict:level=6,chunk=1 re-encodes shards that use another store or codec"
        )
        memmap = make(tmp_path / "m", [[2]], codec="none", store="memmap")
        with pytest.raises(DatasetError, match=r"m: store is memmap, expected zarr as in"):
            merged([a, memmap], tmp_path / "c")
        assert not (tmp_path / "c").exists()

    @pytest.mark.parametrize(("codec", "jobs"), [("zstd-dict", 1), ("zstd-dict", 2), ("zstd:level=5", 1), ("lz4", 1)])
    def test_are_encoded_anew_if_asked_for(self, a: Path, b: Path, tmp_path: Path, codec: str, jobs: int) -> None:
        other = make(tmp_path / "o", [[2, 9], [4]], codec="zstd:level=5")
        report = rlx.merge([other, a, b], tmp_path / "c", codec=codec, jobs=jobs)
        assert same(trajectories(tmp_path / "c"), trajectories(other) + trajectories(a) + trajectories(b))
        assert str(Codec.from_json(Manifest.load(tmp_path / "c").codec)) == str(Codec.parse(codec))
        assert (report.steps_written, report.shards) == (37, 6)
        assert verify(tmp_path / "c").ok
        shared = {*inodes(tmp_path / "c")} & {*inodes(other), *inodes(a), *inodes(b)}
        assert bool(shared) == (codec != "lz4")

    def test_the_schema_must_be_the_same(self, a: Path, tmp_path: Path) -> None:
        other = write_dataset(tmp_path / "o", [[make_block(schema=SMALL)]], schema=SMALL).path
        with pytest.raises(
            SchemaMismatchError, match=r"o: field observation is .*int32.*, expected .*uint16.* as in"
        ) as caught:
            merged([a, other], tmp_path / "c")
        assert caught.value.hint is None
        assert not (tmp_path / "c").exists()

    @pytest.mark.parametrize("is_first", [True, False])
    def test_the_hint_leaves_out_a_field_of_one(self, a: Path, tmp_path: Path, is_first: bool) -> None:
        rlx.preprocess(a, tmp_path / "more", transform="return_to_go")
        given = [tmp_path / "more", a] if is_first else [a, tmp_path / "more"]
        with pytest.raises(SchemaMismatchError, match=r"field return_to_go is") as caught:
            merged(given, tmp_path / "c")
        assert caught.value.hint == (f"rlx preprocess {tmp_path / 'more'} NEW --transform exclude:keys=return_to_go")
        rlx.preprocess(tmp_path / "more", tmp_path / "new", transform="exclude:keys=return_to_go")
        assert rlx.open(tmp_path / "new").schema.difference(rlx.open(a).schema) is None


class TestResume:
    def test_again_there_is_nothing_to_do(self, a: Path, b: Path, tmp_path: Path) -> None:
        merged([a, b], tmp_path / "c")
        before = tree(tmp_path / "c")
        report = merged([a, b], tmp_path / "c")
        assert (report.skipped_shards, report.steps_written) == (4, 0)
        assert tree(tmp_path / "c") == before

    @pytest.mark.parametrize("stop", range(5))
    def test_interrupted_anywhere_it_ends_the_same(
        self, a: Path, b: Path, tmp_path: Path, stop: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = make(tmp_path / "o", [[2, 9], [4]], codec="zstd")
        merged([other, a, b], tmp_path / "wanted", codec="zstd-dict")
        commits = count_down(stop)
        commit = DatasetWriter.commit_all

        def killed(self: DatasetWriter, *arguments: object, **named: object) -> object:
            next(commits)
            return commit(self, *arguments, **named)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(dataset_writer, "LISTING_SHARE", float("inf"))  # every shard at once
            patch.setattr(DatasetWriter, "commit_all", killed)
            with pytest.raises(KeyboardInterrupt):
                merged([other, a, b], tmp_path / "c", codec="zstd-dict")
        assert len(check_listed(tmp_path / "c")) == stop
        report = merged([other, a, b], tmp_path / "c", codec="zstd-dict")
        assert report.skipped_shards == stop
        assert tree(tmp_path / "c") == tree(tmp_path / "wanted")

    def test_of_other_parents_it_is_refused(self, a: Path, b: Path, tmp_path: Path) -> None:
        merged([a, b], tmp_path / "c")
        before = tree(tmp_path / "c")
        with pytest.raises(DatasetExistsError, match="c was created in another way: its source is") as error:
            merged([b, a], tmp_path / "c")
        assert error.value.hint == "`overwrite` starts afresh; or choose another directory"
        assert tree(tmp_path / "c") == before
        assert merged([b, a], tmp_path / "c", overwrite=True).skipped_shards == 0
        assert same(trajectories(tmp_path / "c"), trajectories(b) + trajectories(a))


class TestBadInput:
    def test_a_damaged_shard(self, a: Path, b: Path, tmp_path: Path) -> None:
        damaged = b / "shards/00001/reward/c/0"
        damaged.write_bytes(bytes([damaged.read_bytes()[0] ^ 1]) + damaged.read_bytes()[1:])
        with pytest.raises(CorruptDatasetError, match=r"b/shards/00001/reward/c/0 is damaged") as error:
            merged([a, b], tmp_path / "c")
        assert error.value.hint == f"rlx repair {b}"
        assert check_listed(tmp_path / "c") == ["00000", "00001", "00002"]
        assert not list((tmp_path / "c/shards").glob("*.partial"))

    def test_a_missing_file(self, a: Path, b: Path, tmp_path: Path) -> None:
        (b / "shards/00000/reward/c/0").unlink()
        with pytest.raises(CorruptDatasetError, match=r"reward/c/0 is missing"):
            merged([a, b], tmp_path / "c")

    def test_the_same_dataset_twice(self, a: Path, b: Path, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(a)
        for twice in (a, tmp_path / "b/../a", tmp_path / "link"):
            with pytest.raises(DatasetError, match="is given twice"):
                merged([a, b, twice], tmp_path / "c")
        assert not (tmp_path / "c").exists()

    def test_into_a_source(self, a: Path, b: Path) -> None:
        before = tree(a), tree(b)
        for destination in (b, b / "shards/c", b.parent):
            with pytest.raises(DatasetExistsError):
                merged([a, b], destination, overwrite=True)
        assert (tree(a), tree(b)) == before

    def test_no_dataset(self, a: Path, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="no dataset at"):
            merged([a, tmp_path / "nothing"], tmp_path / "c")
        assert not (tmp_path / "c").exists()


def count_down(stop: int) -> Iterator[None]:
    for _ in range(stop):
        yield
    raise KeyboardInterrupt
