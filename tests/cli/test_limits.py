"""Numbers beyond all bounds: refused at once, in words."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.factories import make_block, write_dataset

ENDLESS: list[Sequence[str]] = [
    ["sample", "DATA", "--batch-size", "1000000000000"],
    ["sample", "DATA", "--stack", "2147483648"],
    ["sample", "DATA", "--n-step", "2147483648"],
    ["sample", "DATA", "--slice-len", "2147483648"],
    ["sample", "DATA", "--num-slices", "99999999999999999999"],
    *(
        ["sample", "DATA", "--batches", "100000000000000000000", "-o", f"OUT.{suffix}"]
        for suffix in ("npz", "pt", "h5", "zarr", "parquet", "jsonl")
    ),
    ["sample", "DATA", "--batches", "100000000000000000000", "-o", "-", "--format", "npz"],
    ["preprocess", "DATA", "OUT", "--transform", "n_step:n=99999999999"],
    ["collect", "CartPole-v1", "-o", "OUT", "--envs", "100000000"],
    ["collect", "CartPole-v1", "-o", "OUT", "--workers", "100000000"],
    ["convert", "DATA", "OUT", "--jobs", "100000000"],
    ["view", "DATA", "-o", "OUT.png", "--episode", "99999999999999999999"],
]


@pytest.mark.parametrize("arguments", ENDLESS, ids=" ".join)
def test_a_number_without_bounds(arguments: Sequence[str], cli: Cli, tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", [[make_block([3, 5])]]).path
    started = time.monotonic()
    words = [word.replace("DATA", str(data)).replace("OUT", str(tmp_path / "out")) for word in arguments]
    result = cli(*words)
    assert time.monotonic() - started < 60
    assert result.code in (1, 2), result
    assert result.err.startswith("error: "), result.err[-1500:]
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("suffix", ["npz", "pt", "h5", "zarr", "parquet", "jsonl"])
def test_an_epoch_ends_before_its_batches_do(suffix: str, cli: Cli, tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", [[make_block([3, 5])]]).path
    endless = ("--batches", "100000000000000000000", "--batch-size", "4", "--without-replacement")
    result = cli("sample", data, *endless, "-o", tmp_path / f"out.{suffix}", "--json")
    assert result.code == 0, result
    assert json.loads(result.out)["steps"] == 8


def test_exit_codes_of_what_is_misspelt(cli: Cli, tmp_path: Path) -> None:
    data, out = write_dataset(tmp_path / "data", [[make_block([3, 5])]]).path, tmp_path / "out"
    for code, command in (
        (5, ("collect", "CartPole-v1", "--policy", tmp_path / "none.py:act", "-o", out, "--steps", "9")),
        (2, ("sample", data, "-o", tmp_path / "a.txt")),
        (2, ("view", data, "-o", tmp_path / "a.txt")),
        (2, ("inspect", data, "--plot", tmp_path / "a.txt")),
        (2, ("convert", data, out, "--to", "nothing")),
        (2, ("split", data, "--fractions", "0.5,0.9")),
        (2, ("split", data, "--fractions", "2")),
        (2, ("split", data, "--fractions", "half")),
        (2, ("convert", data, out, "--codec", "nothing")),
        (5, ("inspect", tmp_path / "none")),
    ):
        result = cli(*command)
        assert result.code == code, (command, result)
        assert any(line.startswith("error: ") for line in result.err.splitlines()), (command, result)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--envs", "100000000", "'--envs': expected at most 65536, found 100000000"),
        ("--envs", "0", "'--envs': expected at least 1, found 0"),
        ("--envs", "many", "'--envs': expected a whole number, found many"),
        ("--epsilon", "much", "'--epsilon': expected a number, found much"),
        ("--epsilon", "2", "'--epsilon': expected at most 1, found 2"),
    ],
)
def test_numbers_are_refused_in_the_words_of_rlx(option: str, value: str, message: str, cli: Cli) -> None:
    result = cli("collect", "CartPole-v1", option, value)
    assert (result.code, result.err.splitlines()[0]) == (2, f"error: invalid value for {message}")
