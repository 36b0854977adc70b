"""Which runs lie in a local directory, whatever their layout."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from rlx import manifest
from rlx.errors import DatasetExistsError, SourceNotFoundError
from rlx.formats.buffer import reader as buffer_checkpoint
from rlx.formats.common.checks import expecting
from rlx.formats.common.hdf5.file import holds, is_hdf5, names, opened
from rlx.formats.common.provenance import LocalRun, with_spaces
from rlx.formats.d3rlpy import layout as d3rlpy_layout
from rlx.formats.d3rlpy import reader as d3rlpy
from rlx.formats.d4rl import layout as d4rl_layout
from rlx.formats.d4rl import reader as d4rl
from rlx.formats.dopamine import layout as dopamine_layout
from rlx.formats.dopamine import reader as dopamine
from rlx.formats.lerobot import reader as lerobot
from rlx.formats.minari import layout as minari_layout
from rlx.formats.minari import reader as minari
from rlx.formats.npz import reader as npz
from rlx.formats.parquet import reader as parquet
from rlx.formats.rl_unplugged import layout as rl_unplugged_layout
from rlx.formats.rl_unplugged import reader as rl_unplugged
from rlx.formats.rlds import reader as rlds
from rlx.formats.robomimic import layout as robomimic_layout
from rlx.formats.robomimic import reader as robomimic
from rlx.formats.torchrl import reader as torchrl_memmap
from rlx.pipeline.format_choice import FormatChoice
from rlx.suggestion import command


@dataclass(frozen=True, slots=True)
class ForeignFormat:
    """A format of which a path holds one dataset.

    Args:
        recognises: whether what lies at a path is of the format, and of no other.
        open: the dataset there, with the options by name; raises if it is damaged.
        options: type of every option that a user may give.
    """

    recognises: Callable[[Path], bool]
    open: Callable[..., LocalRun]
    options: Mapping[str, type[int] | type[str]] = field(default_factory=dict)


# Layouts that keep several runs below a directory.
_RUNS: Mapping[str, Callable[[Path], Sequence[LocalRun]]] = MappingProxyType(
    {"rlu": rl_unplugged.find_runs, "dopamine": dopamine.find_runs, "minari": minari.find_runs}
)
_FORMATS: Mapping[str, ForeignFormat] = MappingProxyType(
    {
        "d4rl": ForeignFormat(d4rl.recognises, d4rl.open_d4rl),
        "robomimic": ForeignFormat(robomimic.recognises, robomimic.open_robomimic),
        "d3rlpy": ForeignFormat(d3rlpy.recognises, d3rlpy.open_d3rlpy),
        "lerobot": ForeignFormat(lerobot.recognises, lerobot.open_lerobot),
        "rlds": ForeignFormat(rlds.recognises, rlds.open_rlds, {"split": str}),
        "torchrl": ForeignFormat(torchrl_memmap.recognises, torchrl_memmap.open_torchrl, {"time_dim": int}),
        "buffer": ForeignFormat(buffer_checkpoint.recognises, buffer_checkpoint.open_buffer),
        "parquet": ForeignFormat(parquet.recognises, parquet.open_parquet),
        "npz": ForeignFormat(npz.recognises, npz.open_npz),
    }
)
# Marks of a format, found although others are missing: members of an HDF5 file, or files of a directory.
_MARKS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "minari": ("data/metadata.json", "data/main_data.hdf5", "main_data.hdf5"),
        "d4rl": d4rl_layout.KEYS,
        "robomimic": ("data", "mask"),
        "d3rlpy": ("version", "num_episodes", "columns"),
        "lerobot": ("meta/info.json", "meta/episodes"),
        "rlds": ("features.json", "dataset_info.json"),
        "torchrl": ("meta.json", "next/meta.json", "next/reward.memmap"),
    }
)
LAYOUTS = (*_RUNS, *_FORMATS)
_HDF5 = "; or ".join(
    [
        minari_layout.LAYOUT,
        *(one.LAYOUT.removeprefix("expected ") for one in (d4rl_layout, robomimic_layout, d3rlpy_layout)),
    ]
)
_SHOWN_NAMES = 20
_SHOWN_BYTES = 8


def check_apart(source: Path, destination: Path) -> None:
    """Raise DatasetExistsError if writing the destination could remove or change the source.

    A destination below a directory of raw files is fine, one inside another dataset is not.
    """
    origin, target = source.resolve(), destination.resolve()
    if origin == target:
        raise DatasetExistsError(f"{destination} is the source itself; expected another directory")
    if origin.is_relative_to(target):
        raise DatasetExistsError(f"{destination} contains the source, {source}; expected another directory")
    if target.is_relative_to(origin) and (origin / manifest.FILE_NAME).exists():
        raise DatasetExistsError(f"{destination} lies inside the source, {source}; expected another directory")


def find_runs(path: Path, layout: str | None = None) -> list[LocalRun]:
    """Return the runs at a path or a few levels below, of one layout or of any.

    Args:
        path: a file or a directory.
        layout: one of ``LAYOUTS``, perhaps with options: ``torchrl:time_dim=0``.

    Raises:
        SourceError: the path is not of the layout, where that is a format of one dataset; or the layout has no such
            option.
    """
    choice = FormatChoice.parse(layout)
    if choice.name is not None and choice.name in _FORMATS:
        chosen = _FORMATS[choice.name]
        return [with_spaces(chosen.open(path, **choice.read(chosen.options)))]
    choice.read({})
    found = [run for name, find in _RUNS.items() if choice.name in (None, name) for run in find(path)]
    if choice.name is None:
        found += [format.open(path) for format in _FORMATS.values() if format.recognises(path)]
    return [*map(with_spaces, found)]


def find_run(directory: Path, id: str | None, layout: str | None = None) -> LocalRun:
    """Return the one run of a directory, or the one of this id.

    Raises:
        SourceNotFoundError: no run was found, or more than one.
        SourceError: the path resembles a format, but lacks the part that the message names.
    """
    runs = find_runs(directory, layout)
    name = FormatChoice.parse(layout).name
    if not runs and (resembled := name or _resembled(directory)) is not None:
        runs = (
            [with_spaces(minari.open_minari(directory))] if resembled == "minari" else find_runs(directory, resembled)
        )
    chosen = [run for run in runs if id is None or run.id == id]
    if len(chosen) == 1:
        return chosen[0]
    there = ", ".join(sorted({run.id for run in runs}))
    if not runs:
        raise _nothing_known(directory, name)
    if not chosen:
        raise SourceNotFoundError(f"no run {id} in {directory}; there is {there}")
    hint = command("rlx", "download", chosen[0].id, "--source", directory)
    raise SourceNotFoundError(f"{len(chosen)} runs in {directory}: {there}; expected one", hint=hint)


def _nothing_known(path: Path, layout: str | None) -> SourceNotFoundError:
    """Return the error that what lies at a path resembles no format; raises another where it cannot be read."""
    if layout is not None:
        expected = dopamine_layout.LAYOUT if layout == "dopamine" else rl_unplugged_layout.LAYOUT
        return SourceNotFoundError(f"no run found in {path}; {expected}")
    hint = f"--from {'|'.join(LAYOUTS)} gives a diagnosis"
    if not path.is_file():
        return SourceNotFoundError(
            f"no run found in {path}: expected files such as Pong/run_5-00000-of-00050, "
            "Pong/5/replay_logs/add_count_ckpt.0.gz or data/main_data.hdf5",
            hint=hint,
        )
    if is_hdf5(path):
        with expecting(_HDF5), opened(path) as file:
            found = names(file)
            shown = ", ".join([*found[:_SHOWN_NAMES], *(["..."] if len(found) > _SHOWN_NAMES else [])])
            return SourceNotFoundError(f"no run found in {path}: found {shown or 'nothing in it'}; {_HDF5}", hint=hint)
    with path.open("rb") as file:
        head = file.read(_SHOWN_BYTES)
    return SourceNotFoundError(f"no run found in {path}: expected HDF5, Parquet or npz, found {head!r}", hint=hint)


def _resembled(path: Path) -> str | None:
    """Return the format that most files at a path belong to, so that its error can name the missing ones."""
    is_file = path.is_file()
    found = {
        name: sum(holds(path, (mark,)) if is_file else (path / mark).exists() for mark in marks)
        for name, marks in _MARKS.items()
    }
    best = max(found, key=found.__getitem__)
    if found[best]:
        return best
    return "npz" if is_file and path.suffix == ".npz" else None
