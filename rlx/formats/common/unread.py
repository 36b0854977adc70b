"""Files of other projects that rlx does not read: it names their layout, and says how to make one that it reads."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rlx.errors import SourceError
from rlx.files.disk import listed
from rlx.formats.common.hdf5 import file as hdf5_file
from rlx.formats.common.source import begins_with
from rlx.wording import command

_AS_NPZ = (
    "write its arrays with numpy.savez under the names observation, action, next/reward and next/done, with "
    "collector/traj_ids for several episodes"
)
_ZARR = (".zgroup", "zarr.json", ".zarray")
# Names in the groups of an episode of ACT (ALOHA), and of a replay buffer of Diffusion Policy.
_ACT = ("action", "observations/qpos")
_ENDS = "meta/episode_ends"
# The first bytes of zip, gzip and Python's pickles.
_SIGNATURES = {b"PK\x03\x04": "a zip archive", b"\x1f\x8b": "a gzip file", b"\x80": "a pickle"}


@dataclass(frozen=True, slots=True)
class _Layout:
    title: str
    hint: Callable[[Path], str]
    found: Callable[[Path], bool]


def check_known(path: Path) -> None:
    """Raise SourceError, which names the layout, if a path has one of those that rlx does not read."""
    for layout in _LAYOUTS:
        if layout.found(path):
            raise SourceError(f"{path} is {layout.title}, which rlx does not read", hint=layout.hint(path))


def _saved_to_disk(path: Path) -> bool:
    return (path / "dataset_dict.json").is_file() or (
        (path / "state.json").is_file() and (path / "dataset_info.json").is_file()
    )


def _to_parquet(path: Path) -> str:
    split = next((part.name for part in listed(path, "*") if part.is_dir()), None)
    whole = (path / "dataset_dict.json").is_file()
    chosen = f"[{split!r}]" if whole and split else ""
    code = f"import datasets; datasets.load_from_disk({str(path)!r}){chosen}.to_parquet('steps.parquet')"
    return f"{command('python', '-c', code)}, then rlx convert steps.parquet DATASET"


def _begins(start: bytes, path: Path) -> bool:
    return path.suffix != ".npz" and begins_with(path, start)


def _is_zarr(path: Path) -> bool:
    return any((path / name).is_file() for name in _ZARR)


def _is_act(path: Path) -> bool:
    first = path if path.is_file() else next(iter(listed(path, "*.hdf5")), path)
    return hdf5_file.holds(first, _ACT)


_LAYOUTS = (
    _Layout("a dataset of Dataset.save_to_disk", _to_parquet, _saved_to_disk),
    _Layout("a replay buffer of Diffusion Policy in zarr", lambda _: _AS_NPZ, lambda path: (path / _ENDS).is_dir()),
    _Layout("a zarr group", lambda _: _AS_NPZ, _is_zarr),
    _Layout("an episode in the layout of ACT", lambda _: _AS_NPZ, _is_act),
    *(_Layout(title, lambda _: _AS_NPZ, partial(_begins, start)) for start, title in _SIGNATURES.items()),
)
