"""What ``rlx.open`` returns: trajectories, filters, statistics, and the verbs as methods."""

import inspect
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rlx
from rlx.buffer import DatasetStorage, ReplayBuffer, SliceSampler
from rlx.errors import DatasetError, TransformError
from rlx.transform.images import Resize
from tests.conftest import Cli
from tests.factories import make_block, seen, write_dataset
from tests.transform import functions


def test_transforms_and_a_function(pong: Path, tmp_path: Path) -> None:
    data = rlx.open(pong)
    offset = 5

    def function(steps: Any) -> Any:
        return steps.set("score", steps["next", "reward"][:, 0] + offset)

    made = data.preprocess(
        tmp_path / "made", function, transform=["filter:length > 100", Resize(42, 42)], steps=300, num_workers=1
    )
    assert isinstance(made, rlx.Dataset)
    assert len(made) == 300
    long = torch.from_numpy(data.trajectories.length > 100).nonzero().flatten()
    first = data[int(data.trajectories.start[long[0]])]
    assert made[0]["score"] == first["next", "reward"][0] + 5
    assert made[0]["observation"].shape == (42, 42)
    assert made.manifest.lineage[-1]["recipe"]["transforms"][:2] == ["filter:length > 100", "resize:height=42,width=42"]


def test_a_function_of_this_process_by_workers(pong: Path, tmp_path: Path) -> None:
    data = rlx.open(pong)
    factor = 3
    made = data.preprocess(
        tmp_path / "made", lambda steps: steps.set("action", steps["action"] * factor), num_workers=2, codec="lz4"
    )
    assert torch.equal(made[:]["action"], data[:]["action"] * 3)
    assert made.manifest.codec["name"] == "lz4"


def test_a_function_by_its_name(pong: Path, tmp_path: Path) -> None:
    data = rlx.open(pong)
    name = f"{functions.__name__}:without_every_third"
    made = data.preprocess(tmp_path / "made", name, per="trajectory", num_workers=1, store="memmap")
    assert len(made) == sum(1 for step in range(len(data)) if step % 3 != 2)
    with pytest.raises(TransformError, match="is unknown: did you mean resize"):
        data.preprocess(tmp_path / "other", transform=["resise"])


def test_it_is_still_one_after_a_journey(pong: Path) -> None:
    data = rlx.open(pong)
    assert type(data) is rlx.Dataset
    assert type(pickle.loads(pickle.dumps(data))) is rlx.Dataset


def two_shards(path: Path) -> rlx.Dataset:
    shards = [[make_block([3, 5, 2])], [make_block([4, 6], first_episode=3)]]
    return rlx.open(write_dataset(path, shards).path)


def test_trajectories_one_by_one(tmp_path: Path) -> None:
    data = two_shards(tmp_path / "data")
    trajectories = list(data)
    assert [len(trajectory) for trajectory in trajectories] == [3, 5, 2, 4, 6]
    assert torch.equal(torch.cat([one["observation"] for one in trajectories]), data[:]["observation"])
    assert trajectories[3]["observation"][:, 0].tolist() == [3000, 3001, 3002, 3003]
    assert trajectories[3]["next", "observation"][-1, 0] == 3004
    assert torch.equal(data.trajectory(-1)["observation"], trajectories[4]["observation"])
    for wrong in (5, -6):
        with pytest.raises(IndexError, match=f"trajectory {wrong} is out of range for 5 trajectories"):
            data.trajectory(wrong)


def test_a_filter_is_what_preprocess_writes(tmp_path: Path, cli: Cli) -> None:
    data = two_shards(tmp_path / "data")
    expression = "length > 2 and length != 4"
    some = data.filter(expression)
    result = cli("preprocess", data.path, tmp_path / "command", "--transform", f"filter:{expression}")
    assert result.code == 0, result.err
    written = rlx.open(tmp_path / "command")
    assert len(some) == len(written) == 14
    for column, expected in written.trajectories.columns().items():
        assert np.array_equal(some.trajectories.columns()[column], expected), column
    steps = [13, 0, 8, 9, 2, 3, -1]
    for key in (slice(None), steps):
        assert (some[key] == written[key]).all()
    assert [len(trajectory) for trajectory in some] == [3, 5, 6]
    assert some.trajectory(2)["collector", "traj_ids"].tolist() == [2] * 6
    assert seen(some, [8]) == [4000]
    assert some.stats == written.stats
    made = some.preprocess(tmp_path / "method", num_workers=1)
    assert made.manifest.lineage[-1]["recipe"] == written.manifest.lineage[-1]["recipe"]
    assert (made[:] == written[:]).all()


def test_filters_one_after_the_other(tmp_path: Path) -> None:
    data = two_shards(tmp_path / "data")
    some = data.filter("length > 2").filter("id % 2 == 0")
    assert some.trajectories.length.tolist() == [3, 4]
    made = some.preprocess(tmp_path / "made", transform=["scale_reward:scale=2"], num_workers=1)
    assert made.trajectories.length.tolist() == [3, 4]
    assert made[0]["next", "reward"] == 2
    moved = pickle.loads(pickle.dumps(some))
    assert (moved[:] == some[:]).all()
    assert len(data.filter("length > 9")) == 0
    assert list(data.filter("length > 9")) == []
    assert data.filter("length > 9").stats == {}
    with pytest.raises(TransformError, match="name 'size' is unknown"):
        data.filter("size > 2")


def test_a_filtered_dataset_feeds_a_buffer(tmp_path: Path) -> None:
    some = two_shards(tmp_path / "data").filter("length >= 5")
    buffer = ReplayBuffer(storage=DatasetStorage(some), sampler=SliceSampler(slice_len=5, seed=0), batch_size=20)
    for _ in range(5):
        batch = buffer.sample().reshape(4, 5)
        first = batch["observation"][:, 0, 0]
        assert torch.equal(batch["observation"][:, :, 0] - first[:, None], torch.arange(5).expand(4, 5).int())
        assert set((first // 1000).tolist()) <= {1, 4}
        assert batch["index"].max() < 11


def test_a_filtered_dataset_has_no_files(tmp_path: Path) -> None:
    some = two_shards(tmp_path / "data").filter("length > 2")
    with pytest.raises(DatasetError, match="is not on disk") as caught:
        some.split([0.5, 0.5])
    assert caught.value.hint is not None
    assert "dataset.preprocess('NEW')" in caught.value.hint
    assert "--transform 'filter:length > 2'" in caught.value.hint


def test_split(tmp_path: Path) -> None:
    data = two_shards(tmp_path / "data")
    train, test = data.split([0.6, 0.4], seed=2, output=[tmp_path / "train", tmp_path / "test"])
    assert type(train) is rlx.Dataset
    rlx.split(data.path, [0.6, 0.4], seed=2, output=tmp_path / "part")
    for one, other in ((train, "part-1"), (test, "part-2")):
        expected = rlx.open(tmp_path / other)
        assert (one[:] == expected[:]).all()
        assert one.manifest.lineage == expected.manifest.lineage


def test_stats_are_what_inspect_prints(pong: Path, cli: Cli) -> None:
    stats = rlx.open(pong).stats
    assert stats == json.loads(cli("inspect", pong, "--stats", "--json").out)["stats"]
    assert list(stats["action"]["counts"]) == [str(action) for action in range(6)]
    assert rlx.open(pong).filter("True").stats["observation"] == pytest.approx(stats["observation"], rel=1e-2)


def test_export_is_what_convert_writes(tmp_path: Path, cli: Cli) -> None:
    data = two_shards(tmp_path / "data")
    report = data.export(tmp_path / "method.npz", "npz", shards=[1])
    assert (report.format, report.steps, report.trajectories) == ("npz", 10, 2)
    assert cli("convert", data.path, tmp_path / "command.npz", "--to", "npz", "--shards", "1").code == 0
    with np.load(tmp_path / "method.npz") as method, np.load(tmp_path / "command.npz") as command:
        assert set(method) == set(command)
        assert all(np.array_equal(method[name], command[name]) for name in method if name != "rlx")


def test_sample_is_what_the_command_draws(tmp_path: Path, cli: Cli) -> None:
    data = two_shards(tmp_path / "data")
    drawn = data.sample(batch_size=8, slice_len=2, seed=3)
    assert drawn.batch is not None
    printed = json.loads(cli("sample", data.path, "--batch-size", 8, "--slice-len", 2, "--seed", 3, "--json").out)
    assert {**drawn.to_json(), "datasets": printed["datasets"]} == printed
    of_some = data.filter("length > 5").sample(seed=0).batch
    assert of_some is not None
    assert set(of_some["action"].tolist()) == set(range(6))


@pytest.mark.parametrize(
    ("method", "function", "left_out"),
    [
        ("split", rlx.split, {"dataset"}),
        ("preprocess", rlx.preprocess, {"source", "dry_run"}),
        ("sample", rlx.sample, {"datasets"}),
        ("export", rlx.convert, {"source", "from_", "codec", "jobs", "engine", "ray_address", "on_error"}),
    ],
)
def test_methods_have_the_arguments_and_defaults_of_functions(method: str, function: Any, left_out: set[str]) -> None:
    mine = dict(inspect.signature(getattr(rlx.Dataset, method)).parameters)
    theirs = dict(inspect.signature(function).parameters)
    del mine["self"]
    assert set(theirs) - set(mine) == left_out
    assert set(mine) <= set(theirs)
    for name, parameter in mine.items():
        if name not in ("destination", "to"):  # which the methods require
            assert parameter.default == theirs[name].default, name


@pytest.mark.parametrize("verb", [rlx.verify, rlx.inspect, rlx.doctor])
def test_functions_take_an_open_dataset(verb: Any, pong: Path) -> None:
    assert verb(rlx.open(pong)).to_json() == verb(pong).to_json()


def test_functions_that_need_files_refuse_a_filtered_one(pong: Path) -> None:
    with pytest.raises(DatasetError, match="is not on disk"):
        rlx.verify(rlx.open(pong).filter("whole"))
