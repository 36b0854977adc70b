import io
import json
import os
import pty
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import zarr
from numpy.typing import NDArray
from pyarrow import parquet

import rlx
from rlx.store.dataset_writer import claimed
from rlx.testing.exporter import contents
from tests.conftest import Cli
from tests.factories import TEXT, make_block
from tests.factories import write_dataset as write_steps
from tests.minari_files import write_dataset

FORMATS = ("npz", "pt", "h5", "zarr", "parquet", "jsonl")


def npz(path: Path) -> dict[str, NDArray[Any]]:
    with np.load(path) as file:
        return dict(file)


def test_a_look(cli: Cli, pong: Path) -> None:
    result = cli("sample", pong, "--seed", 5)
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0] == "128 steps, seed 5"
    assert lines[2].split()[:3] == ["collector/traj_ids", "index", "action"]
    dataset, first = rlx.open(pong), lines[3].split()
    assert dataset[int(first[1])]["action"] == int(first[2])
    assert len(lines) > 13 + 10
    assert [line.split() for line in lines if line.startswith("next/observation")] == [
        ["next/observation", "uint8", "84", "x", "84"]
    ]
    assert result.out == cli("sample", pong, "--seed", 5).out
    assert "\N{UPPER HALF BLOCK}" not in result.out


def test_a_look_for_scripts(cli: Cli, pong: Path) -> None:
    said = json.loads(cli("sample", pong, "--batch-size", 64, "--slice-len", 16, "--json").out)
    assert (said["datasets"], said["steps"], said["batches"]) == ([str(pong)], 64, 1)
    assert said["columns"]["next/reward"] == {"dtype": "float32", "shape": [1]}
    index = [row["index"] for row in said["head"]]
    assert len(index) == 10
    assert np.diff(index).tolist() == [1] * 9
    again = json.loads(cli("sample", pong, "--batch-size", 64, "--slice-len", 16, "--json", "--seed", said["seed"]).out)
    assert again == said


@pytest.mark.parametrize("name", FORMATS)
def test_the_same_seed_gives_the_same_file(cli: Cli, pong: Path, tmp_path: Path, name: str) -> None:
    command = ("sample", pong, "--batch-size", 16, "--slice-len", 8, "--batches", 2, "--seed", 3, "-o")
    one, other = tmp_path / f"one.{name}", tmp_path / f"other.{name}"
    said = json.loads(cli(*command, one, "--json").out)
    assert (said["output"], said["format"], said["steps"], said["batches"]) == (str(one), name, 32, 2)
    assert said["bytes"] == sum(len(content) for content in contents(one).values())
    assert cli(*command, other).code == 0
    assert contents(one) == contents(other)
    assert cli(*command[:-2], 4, "-o", other).code == 0
    assert contents(one) != contents(other)


def test_every_format_holds_the_same(cli: Cli, pong: Path, tmp_path: Path) -> None:
    for name in FORMATS:
        path = tmp_path / f"out.{name}"
        assert cli("sample", pong, "--batch-size", 8, "--seed", 3, "-o", path).code == 0
    index = npz(tmp_path / "out.npz")["index"]
    steps = rlx.open(pong)[index]
    assert np.array_equal(npz(tmp_path / "out.npz")["next/observation"], steps["next", "observation"].numpy())
    assert torch.equal(torch.load(tmp_path / "out.pt", weights_only=True)["observation"], steps["observation"])
    with h5py.File(tmp_path / "out.h5") as file:
        assert np.array_equal(file["next/reward"], steps["next", "reward"].numpy())
    assert np.array_equal(zarr.open_group(tmp_path / "out.zarr")["action"], steps["action"].numpy())  # type: ignore[arg-type]
    assert parquet.read_table(tmp_path / "out.parquet")["index"].to_pylist() == index.tolist()
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["index"] for line in lines] == index.tolist()
    assert lines[0]["observation"] == steps[0]["observation"].tolist()


def test_stacks_and_n_steps(cli: Cli, pong: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    assert cli("sample", pong, "--stack", 4, "--n-step", 3, "--gamma", 0.5, "--seed", 1, "-o", out).code == 0
    drawn, dataset = npz(out), rlx.open(pong)
    assert drawn["observation"].shape == drawn["next/observation"].shape == (128, 4, 84, 84)
    reward = dataset[:]["next", "reward"].numpy()[:, 0]
    ends = np.cumsum(dataset.trajectories.length)
    for row, index in enumerate(drawn["index"]):
        stop = min(index + 3, ends[np.searchsorted(ends, index, side="right")])
        expected = sum(reward[step] * 0.5 ** (step - index) for step in range(index, stop))
        assert drawn["next/reward"][row, 0] == pytest.approx(expected)


def test_several_datasets(cli: Cli, pong: Path, home: Path, tmp_path: Path) -> None:
    (home / "Pong").mkdir(parents=True)
    (home / "Pong/5").symlink_to(pong)
    out = tmp_path / "out.npz"
    assert cli("sample", pong, "Pong/5", "--batch-size", 32, "--slice-len", 8, "-o", out).code == 0
    drawn = npz(out)
    assert drawn["index/buffer_ids"].tolist() == [0] * 16 + [1] * 16
    assert not np.array_equal(drawn["index/index"][:16], drawn["index/index"][16:])


def test_without_replacement_an_epoch_is_all(cli: Cli, pong: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    command = ("sample", pong, "--batch-size", 500, "--batches", 100, "--without-replacement", "-o", out, "--json")
    said = json.loads(cli(*command).out)
    assert said["steps"] == 2491
    assert np.sort(npz(out)["index"]).tolist() == list(range(2491))


def test_short_trajectories(cli: Cli, pong: Path, tmp_path: Path) -> None:
    command = ("sample", pong, "--batch-size", 1800, "--slice-len", 900)
    result = cli(*command)
    assert (result.code, result.out) == (1, "")
    assert re.search(r"error: .*900.*871", result.err)
    assert "hint: request shorter slices, or use --no-strict-length\n" in result.err
    assert cli(*command, "--no-strict-length", "-o", tmp_path / "out.npz").code == 0
    assert 0 < len(npz(tmp_path / "out.npz")["index"]) < 1800


BAD = {
    ("--batch-size", "100", "--slice-len", "64"): (2, "--batch-size 100: expected a multiple of --slice-len"),
    ("--batch-size", "100", "--num-slices", "3"): (2, "a multiple of --num-slices (3)"),
    ("--slice-len", "4", "--num-slices", "2"): (2, "mutually exclusive"),
    ("--batch-size", "0"): (2, "batch-size"),
    ("--gamma", "0.9"): (2, "--gamma requires --n-step"),
    ("--batches", "2"): (2, "--batches requires --output"),
    ("--format", "npz"): (2, "--format requires --output"),
    ("-o", "-"): (2, "--output - requires --format"),
    ("-o", "-", "--format", "zarr"): (2, "zarr is a directory"),
    ("-o", "-", "--format", "npz", "--json"): (2, "both write to stdout"),
    ("-o", "steps.txt"): (2, "expected a name that ends in .h5"),
}


@pytest.mark.parametrize("arguments", BAD)
def test_bad_input(cli: Cli, pong: Path, arguments: tuple[str, ...]) -> None:
    code, message = BAD[arguments]
    result = cli("sample", pong, *arguments)
    assert (result.code, message in result.err) == (code, True), result.err
    assert "Traceback" not in result.err


def test_no_such_dataset(cli: Cli, tmp_path: Path) -> None:
    result = cli("sample", tmp_path / "nothing", "--json")
    assert result.code == 5
    assert json.loads(result.out)["error"]["type"] == "DatasetNotFoundError"


def test_a_dataset_that_is_being_written(cli: Cli, pong: Path) -> None:
    (pong / "rlx.json").unlink()
    result = cli("sample", pong)
    assert result.code == 1
    assert "still being written" in result.err


def test_a_dataset_that_another_process_holds(cli: Cli, pong: Path) -> None:
    with claimed(pong):
        result = cli("sample", pong)
    assert (result.code, result.out) == (1, "")
    assert "is being written by pid" in result.err


def test_datasets_that_do_not_go_together(cli: Cli, pong: Path, tmp_path: Path) -> None:
    source = write_dataset(tmp_path / "minari", "x-v0")
    rlx.convert(source, tmp_path / "other", from_="minari", jobs=1)
    result = cli("sample", pong, tmp_path / "other", "--batch-size", 4)
    assert result.code == 1
    assert "datasets differ" in result.err


def sampled(cli: Cli, ends: tuple[int, int], *arguments: object) -> bytes:
    """What ``rlx sample`` writes to the second end of a pipe or terminal comes out at the first."""
    there, here = ends
    with ThreadPoolExecutor(1) as reader, pytest.MonkeyPatch.context() as patch:
        shown = reader.submit(lambda: b"".join(iter(lambda: read(there), b"")))
        with open(here, "w") as stdout:
            patch.setattr(sys, "stdout", stdout)
            result = cli("sample", *arguments)
        found = shown.result(60)
    os.close(there)
    assert (result.code, result.err) == (0, "")
    return found


def read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # the other end of a terminal was closed
        return b""


def test_through_a_pipe(cli: Cli, pong: Path) -> None:
    piped = sampled(cli, os.pipe(), pong, "--seed", 1, "--batch-size", 4, "-o", "-", "--format", "npz")
    with np.load(io.BytesIO(piped)) as file:
        assert file["observation"].shape == (4, 84, 84)


def test_a_strip_of_frames_on_a_terminal(cli: Cli, pong: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"COLORTERM": "truecolor", "TERM": "xterm-256color", "COLUMNS": "100"}.items():
        monkeypatch.setenv(name, value)
    shown = sampled(cli, pty.openpty(), pong, "--slice-len", 8, "--batch-size", 8)
    lines = [line for line in shown.decode().splitlines() if "\N{UPPER HALF BLOCK}" in line]
    assert len(lines) == 12
    assert "\x1b[38;2;" in lines[0]


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    """Two shards of steps with texts that repeat themselves, that never do, and that were observed."""
    shards = [[make_block([30, 50], first_episode=2 * number, schema=TEXT)] for number in range(2)]
    return write_steps(tmp_path / "talk", shards, schema=TEXT).path


def test_texts_are_shown(cli: Cli, talk: Path) -> None:
    result = cli("sample", talk, "--seed", 5, "--batch-size", 8)
    assert (result.code, result.err) == (0, "")
    assert "observation/words" in result.out
    assert re.search(r"task +string", result.out)
    said = json.loads(cli("sample", talk, "--seed", 5, "--json").out)
    assert said["columns"]["next/info/said"] == {"dtype": "string", "shape": []}
    assert said["columns"]["observation/words"] == {"dtype": "string", "shape": [2]}
    assert said["head"][0]["task"].startswith("task ")


@pytest.mark.parametrize("arguments", [(), ("--slice-len", 8), ("--n-step", 3), ("--stack", 4)])
def test_every_format_holds_texts(cli: Cli, talk: Path, tmp_path: Path, arguments: tuple[Any, ...]) -> None:
    for name in FORMATS:
        path = tmp_path / f"out.{name}"
        result = cli("sample", talk, talk, "--batch-size", 32, "--seed", 3, *arguments, "-o", path)
        assert (result.code, result.err) == (0, "")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    ahead = 3 if arguments[:1] == ("--n-step",) else 1
    for line in lines:
        episode, step = divmod(int(line["observation"]["words"][0].split()[1]), 1000)
        after = min(step + ahead, [30, 50][episode % 2])
        assert line["task"] == f"task {episode}"
        assert line["next"]["observation"]["words"] == [f"observation/words {1000 * episode + after}"] * 2
        assert line["next"]["info"]["said"] == f"info/said {1000 * episode + after - 1}"
    expected = [line["task"] for line in lines]
    assert npz(tmp_path / "out.npz")["task"].tolist() == expected
    assert torch.load(tmp_path / "out.pt", weights_only=True)["task"] == expected
    with h5py.File(tmp_path / "out.h5") as file:
        assert file["task"].asstr()[:].tolist() == expected
    assert np.asarray(zarr.open_group(tmp_path / "out.zarr")["task"]).tolist() == expected
    assert parquet.read_table(tmp_path / "out.parquet")["task"].to_pylist() == expected


def test_fields_that_only_some_datasets_have_are_named(cli: Cli, tmp_path: Path, pong: Path) -> None:
    more = tmp_path / "more"
    assert cli("preprocess", pong, more, "--transform", "return_to_go").code == 0
    result = cli("sample", pong, more, "--seed", 0, "--format", "jsonl", "-o", "-")
    assert (result.code, result.err) == (0, "warning: left out: return_to_go: not all datasets have them\n")
    assert "return_to_go" not in json.loads(result.out.splitlines()[0])
