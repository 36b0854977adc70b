"""What ``rlx convert`` says of files that are not what they should be, and what it leaves behind: nothing.

A dataset that rlx has written in every format is damaged in every way that the format allows. ``tests/formats`` has
more of each format's own.
"""

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

import rlx.errors
from rlx.errors import RlxError
from rlx.verbs.export import EXPORT_FORMATS
from tests.bad_files import CASES, LAYOUTS, NAMES, NOT_FOUND, REFUSED
from tests.conftest import Cli
from tests.hdf5_files import write_d4rl

GOLDEN = Path(__file__).parents[1] / "golden"
HDF5 = ("minari", "d4rl", "robomimic", "d3rlpy")


@pytest.mark.parametrize(("format", "kind"), [(format, kind) for format in CASES for kind in CASES[format]])
def test_bad_input(format: str, kind: str, exported: Path, cli: Cli, tmp_path: Path) -> None:
    damage, message = CASES[format][kind]
    shutil.copytree(exported / format, tmp_path / "in")
    path = tmp_path / "in" / NAMES.get(format, "a.h5")
    damage(path)
    (tmp_path / "out").mkdir()
    result = cli("convert", path, tmp_path / "out/new", "--jobs", 1, "--json")
    error = json.loads(result.out)["error"]
    assert issubclass(getattr(rlx.errors, error["type"]), RlxError)
    case = f"{kind} of {format}"
    assert result.code == (5 if case in NOT_FOUND else 1 if case in REFUSED else 3)
    said, _, layout = error["message"].partition("; expected ")
    assert (message in said, LAYOUTS[format] in layout) == (True, True), error["message"]
    other = cli("convert", path, tmp_path / "out/other.npz", "--to", "npz", "--json")
    assert (other.code, json.loads(other.out)["error"]) == (result.code, error)
    assert list((tmp_path / "out").iterdir()) == []


def test_every_format_has_every_kind() -> None:
    assert set(CASES) == set(EXPORT_FORMATS)
    for format, cases in CASES.items():
        assert {"missing key", "unequal lengths", "objects", "infinite rewards", "cut off"} <= set(cases), format


@pytest.mark.parametrize("format", CASES)
def test_what_is_whole(format: str, exported: Path, cli: Cli, tmp_path: Path) -> None:
    """Else the damage above might not be what is told of."""
    path = exported / format / NAMES.get(format, "a.h5")
    assert cli("convert", path, tmp_path / "new", "--jobs", 1).code == 0


@pytest.mark.parametrize(
    ("format", "message"),
    [
        ("rlu", "no run found in {}; expected RL Unplugged's layout: GAME/run_R-IIIII-of-NNNNN"),
        ("dopamine", "no run found in {}; expected Dopamine's layout: in replay_logs"),
        ("minari", "{}/metadata.json is missing; expected Minari's layout"),
        ("lerobot", "{}/meta/info.json is missing; expected LeRobot's layout"),
        ("rlds", "{}/dataset_info.json is missing; expected a version of a dataset of TensorFlow Datasets"),
        ("torchrl", "{}/meta.json is missing; expected what TensorDict.memmap writes"),
        ("d4rl", "{} is a directory, expected a file; expected D4RL's layout"),
        ("npz", "{} is a directory, expected a file; expected arrays of one row per step"),
        ("mds", "{}/index.json is missing; expected an MDS dataset"),
        ("lance", "{}/_versions has no *.manifest; expected a Lance dataset"),
        ("array_record", "{} has no file named *.array_record; expected ArrayRecord files"),
    ],
)
def test_nothing_of_the_format_that_is_asked_for(format: str, message: str, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    result = cli("convert", tmp_path / "in", tmp_path / "new", "--from", format)
    assert (result.code, result.out) == (5, "")
    assert result.err.startswith("error: " + message.format(tmp_path / "in"))


def test_hdf5_of_no_format(cli: Cli, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["speed"], file["pixels/left"] = np.zeros(3), np.zeros(3)
    result = cli("convert", tmp_path / "a.h5", tmp_path / "b")
    assert (result.code, result.out) == (5, "")
    assert result.err.startswith(f"error: no run found in {tmp_path / 'a.h5'}: found pixels, speed; expected d3rlpy's")
    assert all(LAYOUTS[format] in result.err for format in HDF5)
    assert not (tmp_path / "b").exists()


def test_many_names_are_not_all_shown(cli: Cli, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(30):
            file[f"x{number:02}"] = 0
    result = cli("convert", tmp_path / "a.h5", tmp_path / "b")
    assert "x18, x19, ...; expected" in result.err
    with h5py.File(tmp_path / "a.h5", "w"):
        pass
    assert "found no groups or datasets; expected" in cli("convert", tmp_path / "a.h5", tmp_path / "b").err


def test_hdf5_cut_off(cli: Cli, tmp_path: Path) -> None:
    write_d4rl(tmp_path / "a.h5")
    whole = (tmp_path / "a.h5").read_bytes()
    (tmp_path / "a.h5").write_bytes(whole[: len(whole) // 2])
    result = cli("convert", tmp_path / "a.h5", tmp_path / "b")
    assert result.code == 3
    assert result.err.startswith(f"error: {tmp_path / 'a.h5'} is missing or damaged: ")
    assert "truncated file" in result.err
    assert all(LAYOUTS[format] in result.err for format in HDF5)


@pytest.mark.parametrize("content", [b"", b"GIF89a..."])
def test_a_file_of_no_format(content: bytes, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(content)
    result = cli("convert", tmp_path / "a.bin", tmp_path / "b")
    assert result.code == 5
    said = f"error: no run found in {tmp_path / 'a.bin'}: expected HDF5, Parquet or npz, found {content[:8]!r}\n"
    assert result.err.startswith(said)


def test_frames_that_went_through_jpeg_are_said_to_be_lossy(cli: Cli, tmp_path: Path) -> None:
    result = cli("convert", GOLDEN / "rlds", tmp_path / "new", "--jobs", 1)
    assert result.code == 0
    assert "warning: walks: observation/photo was compressed as JPEG, which is lossy, by the source\n" in result.err
