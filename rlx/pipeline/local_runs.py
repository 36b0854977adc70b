"""Which runs lie in a local directory, whatever their layout."""

from pathlib import Path

from rlx import manifest
from rlx.errors import DatasetExistsError, SourceNotFoundError
from rlx.source import dopamine, minari, rl_unplugged
from rlx.source.dopamine import Dopamine
from rlx.source.minari import Minari
from rlx.source.rl_unplugged import RLUnplugged

LAYOUTS = ("rlu", "dopamine", "minari")
LocalRun = RLUnplugged | Dopamine | Minari


def check_apart(source: Path, destination: Path) -> None:
    """Raises DatasetExistsError if writing the destination could remove or change the source.

    A destination below a directory of raw files is fine, one inside another dataset is not.
    """
    origin, target = source.resolve(), destination.resolve()
    if origin == target:
        raise DatasetExistsError(f"{destination} is the source itself; expected another directory")
    if origin.is_relative_to(target):
        raise DatasetExistsError(f"{destination} contains the source, {source}; expected another directory")
    if target.is_relative_to(origin) and (origin / manifest.FILE_NAME).exists():
        raise DatasetExistsError(f"{destination} lies inside the source, {source}; expected another directory")


def find_runs(directory: Path, layout: str | None = None) -> list[LocalRun]:
    """The runs in a directory or the ones a few levels below, of one layout or of any."""
    found: list[LocalRun] = []
    if layout in (None, "rlu"):
        found += rl_unplugged.find_runs(directory)
    if layout in (None, "dopamine"):
        found += dopamine.find_runs(directory)
    if layout in (None, "minari"):
        found += minari.find_runs(directory)
    return found


def find_run(directory: Path, id: str | None, layout: str | None = None) -> LocalRun:
    """The one run of a directory, or the one of this id.

    Raises:
        SourceNotFoundError: there is none, or more than one to choose from.
    """
    runs = find_runs(directory, layout)
    chosen = [run for run in runs if id is None or run.id == id]
    if len(chosen) == 1:
        return chosen[0]
    there = ", ".join(sorted({run.id for run in runs}))
    if not runs:
        raise SourceNotFoundError(
            f"no run in {directory}: expected files such as Pong/run_5-00000-of-00050, "
            "Pong/5/replay_logs/add_count_ckpt.0.gz or data/main_data.hdf5"
        )
    if not chosen:
        raise SourceNotFoundError(f"no run {id} in {directory}; there is {there}")
    hint = f"rlx download {chosen[0].id} --source {directory}"
    raise SourceNotFoundError(f"{len(chosen)} runs in {directory}: {there}; expected one", hint=hint)
