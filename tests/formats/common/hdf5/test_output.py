"""The file that HDF5 writes to."""

import subprocess
import sys
from pathlib import Path

from rlx.formats.common.hdf5.output import Disk

# An interrupt between the creation of a file and its block leaves HDF5's objects to be freed after ours are closed.
CLOSED_BELOW = """
import sys
from pathlib import Path
import h5py, numpy as np
from rlx.formats.common.hdf5.output import Disk
with Path(sys.argv[1]).open("xb+", buffering=0) as raw:
    file = h5py.File(Disk(raw), "w")
    file["rows"] = np.arange(100)
del file
"""


def test_what_hdf5_calls_is_found_while_an_exception_is_on_its_way() -> None:
    """Python looks for a method in a class, then asks whether there is an exception, then looks in the base classes."""
    assert {"seek", "tell", "readinto", "write", "truncate", "flush"} <= vars(Disk).keys()


def test_hdf5_may_close_after_the_file_below(tmp_path: Path) -> None:
    path = tmp_path / "late.hdf5"
    ended = subprocess.run([sys.executable, "-c", CLOSED_BELOW, str(path)], capture_output=True, text=True, check=True)
    assert path.exists()
    assert ended.stderr == ""
