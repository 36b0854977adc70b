"""The file that HDF5 writes to."""

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from rlx.formats.common.hdf5.output import Disk


def test_what_hdf5_calls_is_found_while_an_exception_is_on_its_way() -> None:
    """Python looks for a method in a class, then asks whether there is an exception, then looks in the base classes."""
    assert {"seek", "tell", "readinto", "write", "truncate", "flush"} <= vars(Disk).keys()


def test_hdf5_may_close_after_the_file_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """An interrupt between the creation of a file and its block leaves HDF5's objects to be freed that late."""
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    with (tmp_path / "late.hdf5").open("xb+", buffering=0) as raw:
        disk = Disk(raw)
        file = h5py.File(disk, "w")
        file["rows"] = np.arange(100)
    assert disk.tell() == 0
    del file
    assert (ignored, capfd.readouterr().err) == ([], "")
    with pytest.raises(ValueError, match="closed"):
        disk.check()
