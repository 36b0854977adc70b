"""``convert``: any layout or dataset into any store and codec, and back, without a bit changed."""

import os
import shutil
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

import rlx
from rlx.errors import (
    CorruptDatasetError,
    DatasetExistsError,
    DatasetNotFoundError,
    IncompleteDatasetError,
    SourceNotFoundError,
)
from rlx.formats.common.rows import episodes as row_episodes
from rlx.formats.rl_unplugged.reader import find_runs
from rlx.manifest import FILE_NAME, FileRecord
from rlx.progress import Silent
from rlx.store.chunk_codec import ZstdChunks
from rlx.store.codec import Codec
from rlx.testing.source import same
from rlx.verbs.export import export
from tests.factories import SMALL, make_block, write_dataset
from tests.verbs.datasets import (
    SAMPLE_RUN,
    check_listed,
    converted,
    from_directory,
    of_source,
    shard_trees,
    trajectories,
    tree,
    write_dopamine,
    write_rlu,
)

CODECS = ["zstd-dict", "zstd", "zstd:level=1,chunk=3", "lz4", "none"]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return write_rlu(tmp_path / "files")


@pytest.fixture
def dataset(files: Path, tmp_path: Path) -> Path:
    return converted(files, tmp_path / "dataset").dataset


@pytest.mark.parametrize(
    ("store", "codec", "jobs"),
    [
        *(("zarr", codec, 1) for codec in CODECS),
        ("memmap", "none", 1),
        ("zarr", "zstd-dict", 2),
        ("memmap", "none", 2),
    ],
)
def test_there_and_back(dataset: Path, tmp_path: Path, store: str, codec: str, jobs: int) -> None:
    there = converted(dataset, tmp_path / "there", store=store, codec=Codec.parse(codec), jobs=jobs).dataset
    assert (rlx.open(there).manifest.store, rlx.open(there).manifest.codec["name"]) == (store, codec.partition(":")[0])
    assert same(trajectories(there), trajectories(dataset))
    back = converted(there, tmp_path / "back", jobs=jobs).dataset
    assert shard_trees(back) == shard_trees(dataset)


def test_the_sample_run(tmp_path: Path) -> None:
    report = converted(SAMPLE_RUN, tmp_path / "set", jobs=2)
    assert same(trajectories(report.dataset), of_source(find_runs(SAMPLE_RUN)[0]))
    assert tree(report.dataset).keys() == tree(from_directory(SAMPLE_RUN, tmp_path / "other").dataset).keys()


@pytest.mark.parametrize("format", [None, "dopamine"])
def test_a_dopamine_directory(tmp_path: Path, format: str | None) -> None:
    logs = write_dopamine(tmp_path / "files") / "Pong/1/replay_logs"
    report = rlx.convert(logs, tmp_path / "set", from_=format, jobs=1)
    assert (report.id, report.shards, report.failures) == ("Pong/1", 4, {})
    assert rlx.open(report.dataset).manifest.notes["truncation"] == "unrecorded"


def test_a_directory_of_another_format(files: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match="no run found in"):
        rlx.convert(files, tmp_path / "set", from_="dopamine")
    with pytest.raises(DatasetNotFoundError, match="no dataset at"):
        rlx.convert(files, tmp_path / "set", from_="rlx")
    assert not (tmp_path / "set").exists()


def test_several_runs_are_named(files: Path, tmp_path: Path) -> None:
    write_dopamine(files)
    with pytest.raises(SourceNotFoundError, match=r"2 runs in .*: Pong/1, Pong/5; expected one") as raised:
        converted(files, tmp_path / "set")
    assert raised.value.hint == f"rlx convert {files / 'Pong/1/replay_logs'} DATASET"
    assert converted(files / "Pong/1/replay_logs", tmp_path / "set").id == "Pong/1"


def test_of_several_runs_in_one_directory_the_hint_names_a_download(files: Path, tmp_path: Path) -> None:
    for file in (files / "Pong").iterdir():
        shutil.copy(file, file.with_name(file.name.replace("run_5", "run_4")))
    with pytest.raises(SourceNotFoundError, match=r"2 runs in .*: Pong/4, Pong/5; expected one") as raised:
        converted(files, tmp_path / "set")
    assert raised.value.hint == f"rlx download Pong/4 --source {files}"
    assert rlx.download("Pong/4", source=files, output=tmp_path / "set").id == "Pong/4"


def test_of_several_exported_datasets_the_hint_converts_one(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", [[make_block([3, 5])]]).path
    for name in ("a-v0", "b-v0"):
        rlx.convert(data, tmp_path / "exported" / name, to="minari")
    with pytest.raises(SourceNotFoundError, match=r"2 runs in .*: a-v0, b-v0; expected one") as raised:
        converted(tmp_path / "exported", tmp_path / "set")
    assert raised.value.hint == f"rlx convert {tmp_path / 'exported/a-v0/data'} DATASET"
    assert converted(tmp_path / "exported/a-v0/data", tmp_path / "set").id == "a-v0"


def test_there_is_no_source(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match="does not exist"):
        converted(tmp_path / "nothing", tmp_path / "set")
    assert not (tmp_path / "set").exists()


def test_a_dataset_without_a_manifest_is_no_source(tmp_path: Path) -> None:
    (tmp_path / "dataset/shards").mkdir(parents=True)
    with pytest.raises(IncompleteDatasetError):
        converted(tmp_path / "dataset", tmp_path / "set")


def test_a_damaged_dataset_is_no_source(dataset: Path, tmp_path: Path) -> None:
    flipped = dataset / "shards/00001/reward/c/0"
    flipped.write_bytes(bytes([flipped.read_bytes()[0] ^ 1]) + flipped.read_bytes()[1:])
    with pytest.raises(CorruptDatasetError, match="00001") as raised:
        converted(dataset, tmp_path / "set")
    assert raised.value.hint == f"rlx repair {dataset}"
    assert check_listed(tmp_path / "set") == ["00000"]


class TestPlaces:
    @pytest.mark.parametrize("overwrite", [False, True])
    def test_onto_itself(self, dataset: Path, tmp_path: Path, overwrite: bool) -> None:
        before = tree(dataset)
        (tmp_path / "link").symlink_to(dataset)
        for destination in (dataset, dataset / "shards/..", tmp_path / "link"):
            with pytest.raises(DatasetExistsError, match="is the source itself"):
                converted(dataset, destination, overwrite=overwrite)
        assert tree(dataset) == before

    def test_onto_itself_in_another_place(self, dataset: Path, tmp_path: Path) -> None:
        (tmp_path / "mounted").mkdir()
        command = ["mount", "--bind", str(dataset), str(tmp_path / "mounted")]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("this user may not mount")
        try:
            before = tree(dataset)
            with pytest.raises(DatasetExistsError, match="is the source itself"):
                converted(dataset, tmp_path / "mounted", overwrite=True)
            with pytest.raises(DatasetExistsError, match="is inside the source"):
                converted(dataset, tmp_path / "mounted/copy", overwrite=True)
            assert tree(dataset) == before
        finally:
            subprocess.run(["umount", "--lazy", str(tmp_path / "mounted")], check=True)

    def test_onto_itself_where_case_is_ignored(self, dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As on a file system whose directories have another number for each spelling (exFAT through FUSE)."""
        upper = dataset.with_name(dataset.name.upper())
        shutil.copytree(dataset, upper)  # its own directory, as the numbers say
        listed = os.listdir

        def without_upper(path: Path) -> list[str]:
            return [name for name in listed(path) if name != upper.name]

        before = tree(dataset)
        converted(dataset, upper, overwrite=True)
        monkeypatch.setattr("rlx.verbs.report.os.listdir", without_upper)
        with pytest.raises(DatasetExistsError, match="is the source itself"):
            converted(dataset, upper, overwrite=True)
        assert tree(dataset) == before

    def test_into_the_dataset(self, dataset: Path) -> None:
        before = tree(dataset)
        for below in ("copy", "shards/copy"):
            with pytest.raises(DatasetExistsError, match="is inside the source"):
                converted(dataset, dataset / below)
        assert tree(dataset) == before

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_above_the_source(self, files: Path, tmp_path: Path, overwrite: bool) -> None:
        (tmp_path / "set").mkdir()
        shutil.move(files, tmp_path / "set/source")
        before = tree(tmp_path / "set")
        for make in (converted, from_directory):
            with pytest.raises(DatasetExistsError, match="contains the source"):
                make(tmp_path / "set/source", tmp_path / "set", overwrite=overwrite)
        assert tree(tmp_path / "set") == before

    def test_beside_the_raw_files(self, files: Path) -> None:
        report = converted(files, files / "out")
        assert converted(files, files / "out").skipped_shards == report.shards == 4


class TestResume:
    def test_another_codec_store_or_schema(self, dataset: Path, files: Path, tmp_path: Path) -> None:
        write_dopamine(tmp_path / "dopamine")
        before = tree(dataset)
        for key, source, options in (
            ("codec", files, {"codec": Codec.parse("lz4")}),
            ("store", files, {"store": "memmap"}),
            ("id", tmp_path / "dopamine", {}),
        ):
            with pytest.raises(DatasetExistsError, match=f"holds another dataset: its {key} is") as raised:
                converted(source, dataset, **options)
            assert raised.value.hint == "`overwrite` starts afresh; or choose another directory"
        assert tree(dataset) == before

    def test_another_schema(self, tmp_path: Path) -> None:
        small = write_dopamine(tmp_path / "files") / "Pong/1/replay_logs"
        report = converted(small, tmp_path / "set", shards=[0])
        for path in small.iterdir():
            path.unlink()
        write_dopamine(tmp_path / "files", shape=(42, 42))
        with pytest.raises(DatasetExistsError, match="its field observation is"):
            converted(small, report.dataset)

    def test_a_source_that_grew_keeps_its_numbers(self, files: Path, tmp_path: Path) -> None:
        dataset = converted(files, tmp_path / "dataset", shards=[0, 2]).dataset
        copy = converted(dataset, tmp_path / "copy").dataset
        assert check_listed(copy) == ["00000", "00002"]
        converted(files, dataset)
        assert converted(dataset, copy).skipped_shards == 2
        assert shard_trees(copy) == shard_trees(dataset)

    def test_other_files_of_the_same_name(self, tmp_path: Path) -> None:
        """Files of one environment often share name, id and schema: resumed, the first one would pass for both."""
        for day, lengths in (("mon", [3, 5]), ("tue", [5, 3]), ("wed", [3, 5, 2])):
            block = make_block(lengths, schema=SMALL)
            data = write_dataset(tmp_path / "data" / day, [[block]], schema=SMALL).path
            (tmp_path / day).mkdir()
            rlx.convert(data, tmp_path / day / "steps.npz", to="npz")
        made = converted(tmp_path / "mon/steps.npz", tmp_path / "set").dataset
        listed = tree(made)
        for day in ("tue", "wed"):
            with pytest.raises(DatasetExistsError, match="its shard 00000 is of other files"):
                converted(tmp_path / day / "steps.npz", made)
        assert converted(tmp_path / "mon/steps.npz", made).skipped_shards == 1
        assert tree(made) == listed
        assert converted(tmp_path / "tue/steps.npz", made, overwrite=True).skipped_shards == 0


def test_lineage(dataset: Path, tmp_path: Path) -> None:
    copy = converted(dataset, tmp_path / "copy", store="memmap").dataset
    first, second = rlx.open(copy).manifest.lineage
    assert (first, second["command"]) == (
        rlx.open(dataset).manifest.lineage[0],
        "rlx convert",
    )
    assert second["parents"] == [{"id": "Pong/5", "crc32c": FileRecord.of(dataset / FILE_NAME).crc32c}]
    origin = rlx.open(copy).manifest.shards[1].origin
    assert (origin["source"], origin["shard"]) == ("Pong/5", 1)
    reward = origin["files"]["shards/00001/reward/c/0"]
    assert reward["crc32c"] == FileRecord.of(dataset / "shards/00001/reward/c/0").crc32c


def test_a_file_that_several_shards_come_from_is_summed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_episodes, "STEPS_PER_SHARD", 5)
    summed: list[str] = []
    of = FileRecord.of

    def counted(path: Path) -> FileRecord:
        if path == tmp_path / "steps.hdf5":
            summed.append(path.name)
        return of(path)

    monkeypatch.setattr(FileRecord, "of", counted)
    path = tmp_path / "steps.npz"
    rows = np.arange(20)
    arrays = {"observation": rows[:, None], "action": rows, "next/reward": rows, "next/terminated": rows % 4 == 3}
    np.savez(path, **arrays)
    export(path, tmp_path / "steps.hdf5", "d4rl", progress=Silent())
    for overwrite in (False, True):
        report = converted(tmp_path / "steps.hdf5", tmp_path / "made", overwrite=overwrite)
        files = [shard.origin["files"]["steps.hdf5"] for shard in rlx.open(report.dataset).manifest.shards]
        assert len(files) > 1
        assert {one["crc32c"] for one in files} == {of(tmp_path / "steps.hdf5").crc32c}
        assert summed == ["steps.hdf5"] * (1 + overwrite)
        # The same name, length and inode: only the time tells that it is another file.
        with h5py.File(tmp_path / "steps.hdf5", "r+") as file:
            file["actions"][0] = 7


def test_cores_without_a_shard_compress_the_rows_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dopamine(tmp_path / "runs")
    one = converted(tmp_path / "runs", tmp_path / "one", jobs=1, shards=[0])
    used = list[str]()
    encode = ZstdChunks.encode

    def watched(self: ZstdChunks, rows: NDArray[np.uint8]) -> Sequence[bytes | memoryview]:
        used.append(threading.current_thread().name)
        return encode(self, rows)

    monkeypatch.setattr(ZstdChunks, "encode", watched)
    two = converted(tmp_path / "runs", tmp_path / "two", jobs=4, shards=[0])
    assert used
    assert all(name.startswith("encode") for name in used)
    assert tree(two.dataset) == tree(one.dataset)
