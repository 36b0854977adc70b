"""Paths that rlx does not read: it says what they are, never that something is missing which is there."""

import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr

from rlx.errors import SourceError
from rlx.formats.finding import find_run
from rlx.formats.registry import readable

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 12345\n"
APPLE_DOUBLE = b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X"
SUFFIXES = ("hdf5", "h5", "npz", "parquet", "array_record", "tfrecord", "zarr")


def saved_to_disk(path: Path) -> None:
    path.mkdir()
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (path / "dataset_info.json").write_text(json.dumps({"features": {}}))


def saved_splits(path: Path) -> None:
    path.mkdir()
    (path / "dataset_dict.json").write_text(json.dumps({"splits": ["train"]}))
    saved_to_disk(path / "train")


def diffusion_policy(path: Path) -> None:
    group = zarr.open_group(path, mode="w", zarr_format=2)
    group.create_array("data/action", data=np.ones((12, 2), "f4"))
    group.create_array("meta/episode_ends", data=np.array([5, 12]))


def other_zarr(path: Path) -> None:
    zarr.open_group(path, mode="w").create_array("data/mask", data=np.ones(3))


def act(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["action"], file["observations/qpos"] = np.zeros((5, 14)), np.zeros((5, 14))


def acts(path: Path) -> None:
    path.mkdir()
    act(path / "episode_0.hdf5")


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps([{"observations": [1, 2]}]))


@pytest.mark.parametrize(
    ("make", "title", "hint"),
    [
        (saved_to_disk, "a dataset of Dataset.save_to_disk", r"load_from_disk\(.*\)\.to_parquet"),
        (saved_splits, "a dataset of Dataset.save_to_disk", r"\['.*train'.*\]\.to_parquet"),
        (diffusion_policy, "a replay buffer of Diffusion Policy in zarr", "numpy.savez"),
        (other_zarr, "a zarr group", "numpy.savez"),
        (act, "an episode in the layout of ACT", "numpy.savez"),
        (acts, "an episode in the layout of ACT", "numpy.savez"),
        (pickled, "a pickle", "numpy.savez"),
    ],
)
def test_layouts_that_rlx_does_not_read(make: Callable[[Path], None], title: str, hint: str, tmp_path: Path) -> None:
    make(tmp_path / "it")
    with pytest.raises(SourceError, match=f"it is {title}, which rlx does not read") as caught:
        find_run(tmp_path / "it", None)
    assert caught.value.hint is not None
    assert re.search(hint, caught.value.hint)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_pointer_of_git_lfs(suffix: str, tmp_path: Path) -> None:
    (tmp_path / f"it.{suffix}").write_bytes(POINTER)
    with pytest.raises(SourceError, match="is a Git LFS pointer") as caught:
        find_run(tmp_path / f"it.{suffix}", None)
    assert caught.value.hint == f"git -C {tmp_path} lfs pull downloads it"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_in_which_macos_notes_another(suffix: str, tmp_path: Path) -> None:
    (tmp_path / f"._it.{suffix}").write_bytes(APPLE_DOUBLE)
    with pytest.raises(SourceError, match="what macOS notes of a file"):
        find_run(tmp_path / f"._it.{suffix}", None)


@pytest.mark.parametrize("format", readable())
def test_a_directory_is_never_said_to_be_missing(format: str, tmp_path: Path) -> None:
    (tmp_path / "data/mask").mkdir(parents=True)
    with pytest.raises(SourceError) as caught:
        find_run(tmp_path, None, format)
    assert f"{tmp_path} is missing" not in str(caught.value)


@pytest.mark.parametrize("name", ["data", "mask", "observations", "version", "next", "meta"])
def test_one_common_name_is_no_format(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(SourceError, match="no run found in"):
        find_run(tmp_path, None)


def test_what_is_missing_is_said_with_what_was_found(tmp_path: Path) -> None:
    np.savez(tmp_path / "it.npz", states=np.zeros((3, 2)), acts=np.zeros(3), rews=np.zeros(3))
    with pytest.raises(SourceError, match="next/reward is missing, found states, acts, rews; expected"):
        find_run(tmp_path / "it.npz", None)
    with h5py.File(tmp_path / "it.hdf5", "w") as file:
        file["observations"], file["actions"] = np.zeros((3, 2)), np.zeros((3, 2))
    with pytest.raises(SourceError, match="rewards is missing, found actions, observations; expected"):
        find_run(tmp_path / "it.hdf5", None)


@pytest.mark.parametrize("folder", ["", "data"])
def test_a_directory_of_pointers(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / "a.parquet").write_bytes(POINTER)
    with pytest.raises(SourceError, match=r"a\.parquet is a Git LFS pointer") as error:
        find_run(tmp_path, None)
    assert "lfs pull" in str(error.value.hint)


def test_what_is_there_instead_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "read_me.txt").write_text("x")
    with pytest.raises(SourceError, match=r": found data, read_me\.txt; expected files such as"):
        find_run(tmp_path, None)
