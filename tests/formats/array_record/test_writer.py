"""What rlx writes as ArrayRecord, by rlx's reader and as p(doom)'s data loaders read it."""

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from array_record.python import array_record_module as module

from rlx.errors import MissingExtraError
from rlx.formats.array_record import writer
from rlx.formats.array_record.record import parse
from rlx.formats.common import record_files
from rlx.testing.dataset_exporter import RICH, SAMPLES, DatasetExporterContract, whole_dataset
from rlx.testing.source import Trajectory, read, same
from rlx.verbs.inputs import open_source


def everything(path: Path) -> list[Trajectory]:
    source, _ = open_source(path, None)
    return [one for shard in source.shards() for one in read(source, shard)]


class TestArrayRecord(DatasetExporterContract):
    format = "array_record"
    rich = True

    def test_as_loaders_read_it(self, tmp_path: Path, path: Path) -> None:
        """p(doom)'s make frames of raw_video, of sequence_length and of the shape that the user gives."""
        dataset = whole_dataset(tmp_path / "data", "colour pictures")
        self.export(dataset.path, path)
        reader = module.ArrayRecordReader(str(path / "data_000000.array_record"))
        found = [pickle.loads(record) for record in reader.read_all()]
        for record, one in zip(found, self.source_trajectories(dataset), strict=True):
            frames = np.frombuffer(record["raw_video"], np.uint8).reshape(record["sequence_length"], 40, 36, 3)
            np.testing.assert_array_equal(frames, one["observation"][:-1])
            np.testing.assert_array_equal(record["actions"], one["action"])
            np.testing.assert_array_equal(record["rewards"], one["reward"])

    @pytest.mark.parametrize("sample", [*SAMPLES, *RICH])
    def test_records_parse_as_pickle_loads_them(self, sample: str, tmp_path: Path, path: Path) -> None:
        self.export(whole_dataset(tmp_path / "data", sample).path, path)
        for record in module.ArrayRecordReader(str(path / "data_000000.array_record")).read_all():
            mine, theirs = parse(record), pickle.loads(record)
            assert mine.keys() == theirs.keys()
            for key, value in theirs.items():
                np.testing.assert_array_equal(mine[key], value)

    def test_several_files_and_pieces(self, tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        dataset = whole_dataset(tmp_path / "data", "pictures")
        self.export(dataset.path, path)
        whole = everything(path)
        monkeypatch.setattr(writer, "_FILE_BYTES", 40_000)
        monkeypatch.setattr("rlx.formats.common.exporter._MAX_SMALL_BYTES", 30_000)
        self.export(dataset.path, path, overwrite=True)
        assert len(list(path.glob("*.array_record"))) == 2
        assert same(everything(path), whole)

    def test_without_the_package(self, tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        dataset = whole_dataset(tmp_path / "data", "vectors")
        self.export(dataset.path, path)
        monkeypatch.setitem(sys.modules, "array_record.python.array_record_module", None)
        with pytest.raises(MissingExtraError, match="array_record needs array-record"):
            open_source(path, None)
        assert record_files.is_array_record(path / "data_000000.array_record")
