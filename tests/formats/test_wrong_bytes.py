"""Every format, with wrong bytes in its files: reading gives steps or an error that names the path."""

from functools import partial
from pathlib import Path

import pytest

import rlx
from rlx.formats.finding import find_run
from rlx.progress import Silent
from rlx.testing.dataset_exporter import whole_dataset
from rlx.testing.source import fuzz
from rlx.verbs.export import EXPORT_FORMATS, export
from tests.bad_files import NAMES
from tests.verbs.datasets import write_rlu

_CASES = range(2_000)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("format", EXPORT_FORMATS)
def test_wrong_bytes(format: str, tmp_path: Path) -> None:
    dataset = whole_dataset(tmp_path / "data", "pictures" if format in ("dopamine", "hf_parquet") else "vectors")
    path = tmp_path / "out" / NAMES.get(format, "a.h5")
    export(dataset.path, path, format, progress=Silent())
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    name = "parquet" if format == "hf_parquet" else format
    found = fuzz(partial(find_run, id=None, layout=name), path, files, _CASES)
    assert found["error"] > len(_CASES) // 100, found


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("format", ["rlu", "buffer"])
def test_wrong_bytes_of_what_others_write(format: str, tmp_path: Path) -> None:
    """A run of RL Unplugged, and the checkpoint of a replay buffer."""
    path = tmp_path / "out"
    if format == "rlu":
        write_rlu(path)
    else:
        buffer = rlx.ReplayBuffer()
        buffer.extend(rlx.open(whole_dataset(tmp_path / "data", "vectors").path)[:])
        buffer.dumps(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    found = fuzz(partial(find_run, id=None, layout=format), path, files, _CASES)
    assert found["error"] > len(_CASES) // 100, found
