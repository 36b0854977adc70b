"""What ``rlx convert`` says of files that are not what they should be, and what it leaves behind: nothing."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.conftest import Cli
from tests.hdf5_files import write_d4rl

LAYOUTS = ("Minari's layout: ", "; or D4RL's layout: ", "; or robomimic's layout: ", "; or d3rlpy's layout: ")


def test_hdf5_of_no_format(cli: Cli, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["speed"], file["pixels/left"] = np.zeros(3), np.zeros(3)
    result = cli("convert", tmp_path / "a.h5", tmp_path / "b")
    assert (result.code, result.out) == (5, "")
    assert result.err.startswith(f"error: no run in {tmp_path / 'a.h5'}: found pixels, speed; expected Minari's")
    assert all(layout in result.err for layout in LAYOUTS)
    assert not (tmp_path / "b").exists()


def test_many_names_are_not_all_shown(cli: Cli, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(30):
            file[f"x{number:02}"] = 0
    result = cli("convert", tmp_path / "a.h5", tmp_path / "b")
    assert "x18, x19, ...; expected" in result.err
    with h5py.File(tmp_path / "a.h5", "w"):
        pass
    assert "found nothing in it; expected" in cli("convert", tmp_path / "a.h5", tmp_path / "b").err


def test_hdf5_cut_off(cli: Cli, tmp_path: Path) -> None:
    write_d4rl(tmp_path / "a.h5")
    whole = (tmp_path / "a.h5").read_bytes()
    (tmp_path / "a.h5").write_bytes(whole[: len(whole) // 2])
    result = cli("convert", tmp_path / "a.h5", tmp_path / "b")
    assert result.code == 3
    assert result.err.startswith(f"error: {tmp_path / 'a.h5'} is missing or damaged: ")
    assert "truncated file" in result.err
    assert all(layout in result.err for layout in LAYOUTS)


@pytest.mark.parametrize("content", [b"", b"GIF89a..."])
def test_a_file_of_no_format(content: bytes, cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(content)
    result = cli("convert", tmp_path / "a.bin", tmp_path / "b")
    assert result.code == 5
    said = f"error: no run in {tmp_path / 'a.bin'}: expected HDF5, Parquet or npz, found {content[:8]!r}\n"
    assert result.err.startswith(said)
