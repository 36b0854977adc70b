"""No reader passes an episode without a step in silence, stops at it, or mistakes the steps of its neighbours."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from rlx.formats.common.record_files import records
from rlx.formats.common.tf_example import parse_example
from rlx.progress import Silent
from rlx.testing.dataset_exporter import whole_dataset
from rlx.testing.source import merge
from rlx.verbs.export import export
from rlx.verbs.inputs import open_source
from scripts.rlu_writer import tf_example, tf_record
from tests.array_record_files import changed_records
from tests.bad_files import NAMES, RECORDS
from tests.hdf5_files import changed
from tests.minari_files import write_dataset

EMPTY = 2  # which of the episodes of 4, 1, 7, 2 and 9 steps


def minari(path: Path) -> None:
    def empty(file: h5py.File) -> None:
        episode = file[f"episode_{EMPTY}"]
        steps = len(episode["rewards"])
        for name in [name for name in episode if isinstance(episode[name], h5py.Dataset)]:
            rows = episode[name][: len(episode[name]) - steps]
            del episode[name]
            episode[name] = rows
        episode.attrs["total_steps"] = 0

    changed(path / "data/main_data.hdf5", empty)
    said = json.loads((path / "data/metadata.json").read_text())
    (path / "data/metadata.json").write_text(json.dumps({**said, "total_steps": said["total_steps"] - 7}))


def robomimic(path: Path) -> None:
    def empty(file: h5py.File) -> None:
        demo = file[f"data/demo_{EMPTY}"]
        for name in ("actions", "rewards", "dones", "obs/observation", "next_obs/observation"):
            rows = demo[name][:0]
            del demo[name]
            demo[name] = rows
        demo.attrs["num_samples"] = 0

    changed(path, empty)


def d3rlpy(path: Path) -> None:
    def empty(file: h5py.File) -> None:
        for name in ("observations", "actions", "rewards"):
            rows = file[f"{name}_{EMPTY}"][:0]
            del file[f"{name}_{EMPTY}"]
            file[f"{name}_{EMPTY}"] = rows

    changed(path, empty)


def lerobot(path: Path) -> None:
    data, listed = path / "data/chunk-000/file-000.parquet", path / "meta/episodes/chunk-000/file-000.parquet"
    table = pyarrow.parquet.read_table(data)
    kept = [row for row, number in enumerate(table["episode_index"].to_pylist()) if number != EMPTY]
    pyarrow.parquet.write_table(table.take(pyarrow.array(kept)), data)
    episodes = pyarrow.parquet.read_table(listed)
    lengths = pyarrow.array(
        [0 if row == EMPTY else length for row, length in enumerate(episodes["length"].to_pylist())]
    )
    place = episodes.schema.names.index("length")
    pyarrow.parquet.write_table(episodes.set_column(place, "length", lengths), listed)
    info = json.loads((path / "meta/info.json").read_text())
    (path / "meta/info.json").write_text(json.dumps({**info, "total_frames": info["total_frames"] - 7}))
    finals = path / "meta/final_observations.parquet"
    table = pyarrow.parquet.read_table(finals)
    pyarrow.parquet.write_table(
        table.filter([number != EMPTY for number in table["episode_index"].to_pylist()]), finals
    )


def rlds(path: Path, rows: int = 1) -> None:
    made = []
    for number, record in enumerate(records(path / RECORDS)):
        features: dict[str, Any] = {}
        for name, values in parse_example(record).items():
            assert isinstance(values, np.ndarray)
            kept = values.reshape(8, -1)[8 - rows :].reshape(-1) if (number, name[:5]) == (EMPTY, "steps") else values
            features[name] = (2 if values.dtype == np.float32 else 3, kept.tolist())
        made.append(tf_record(tf_example(features)))
    (path / RECORDS).write_bytes(b"".join(made))


def array_record(path: Path) -> None:
    def empty(found: list[dict[str, Any]]) -> None:
        for number, record in enumerate(found):
            del record["rlx"]
            for name in [*record] if number == EMPTY else ():
                record[name] = record[name][:0] if isinstance(record[name], np.ndarray) else 0

    changed_records(path / "data_000000.array_record", empty)


EMPTIED: Mapping[str, Callable[[Path], None]] = {
    "minari": minari,
    "robomimic": robomimic,
    "d3rlpy": d3rlpy,
    "lerobot": lerobot,
    "rlds": rlds,
    "rlds without a row": lambda path: rlds(path, 0),
    "array_record": array_record,
}


@pytest.mark.parametrize("name", EMPTIED)
def test_an_episode_without_a_step_is_counted(name: str, tmp_path: Path) -> None:
    format = name.split()[0]
    dataset = whole_dataset(tmp_path / "data", "vectors")
    path = tmp_path / "out" / NAMES.get(format, "a.h5")
    export(dataset.path, path, format, progress=Silent())
    EMPTIED[name](path)
    source, _ = open_source(path, format)
    dropped = Counter[str]()
    found = [one for shard in source.shards() for one in merge(source.blocks(shard, dropped), source.schema)]
    assert [one.steps for one in found] == [4, 1, 2, 9]
    rewards = dataset[:]["next", "reward"].numpy()[:, 0]
    np.testing.assert_array_equal(np.concatenate([one["reward"] for one in found]), np.delete(rewards, range(5, 12)))
    assert dropped["episode_without_step"] == 1
    if format != "rlds":  # whose files are not read before
        assert source.notes["episodes_without_step"] == 1


@pytest.mark.parametrize("data_format", ["arrow", "parquet"])
def test_an_episode_without_a_step_in_a_file_of_its_own(data_format: str, tmp_path: Path) -> None:
    path = write_dataset(tmp_path, "walks-v0", lengths=(4, 2, 7), data_format=data_format)
    for name in ("data/1/metadata.json", "data/metadata.json"):
        said = json.loads((path / name).read_text())
        (path / name).write_text(json.dumps({**said, "total_steps": said["total_steps"] - 2}))
    file = path / f"data/1/part-0.{data_format}"
    if data_format == "parquet":
        pyarrow.parquet.write_table(pyarrow.parquet.read_table(file).slice(2), file)
    else:
        with pyarrow.ipc.open_file(file) as reader:
            rows = pyarrow.concat_tables([reader.read_all()]).slice(2).combine_chunks()
        with pyarrow.ipc.new_file(file, rows.schema) as writer:
            writer.write(rows)
    source, _ = open_source(path, "minari")
    dropped = Counter[str]()
    found = [one.steps for shard in source.shards() for one in merge(source.blocks(shard, dropped), source.schema)]
    assert (found, dropped, source.notes["episodes_without_step"]) == ([4, 7], {"episode_without_step": 1}, 1)


def test_a_row_of_an_episode_without_a_step(tmp_path: Path) -> None:
    rewards = [[1.0, 2.0], [], [3.0, 4.0, 5.0]]
    columns = {
        "continuous_observations": [[[reward] for reward in some] for some in rewards],
        "discrete_actions": [[0 for _ in some] for some in rewards],
        "rewards": rewards,
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    source, _ = open_source(tmp_path / "a.parquet", "parquet")
    found = [one["reward"].tolist() for one in merge(source.blocks(0, Counter()), source.schema)]
    assert (found, source.notes["episodes_without_step"]) == ([[1.0], [3.0, 4.0]], 1)
