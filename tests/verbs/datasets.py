"""Runs to make datasets of, and what is asked of the datasets: equal bytes, equal values, nothing half done."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import rlx
from rlx.files.http import HttpFiles
from rlx.files.location import Location
from rlx.files.retry import RetryPolicy
from rlx.formats.common.source import Source
from rlx.manifest import FILE_NAME, Manifest
from rlx.progress import Silent
from rlx.store.verification import UNLISTED, verify
from rlx.testing.source import Trajectory, merge, read
from rlx.verbs.arguments import Options
from rlx.verbs.convert import convert_files
from rlx.verbs.fetching import download_from, download_run
from rlx.verbs.inputs import Fetched
from rlx.verbs.report import Report
from rlx.verbs.sources import Base, Place
from tests.dopamine_files import Episode, Ring
from tests.gcs_server import GcsServer
from tests.rlu_files import write_run

ROOT = Path(__file__).parents[2]
SAMPLE_RUN = ROOT / "scripts/sample_run"
SHARED = ROOT / "../shared/data"
QUICK = RetryPolicy(attempts=4, first_delay_s=0.001, max_delay_s=0.002, max_retry_after_s=0.01)
RLU_SHARDS = {0: [30, 12], 1: [25], 2: [8, 1, 9], 3: [40]}
RLU_NAMES = [f"Pong/run_5-{shard:05d}-of-00050" for shard in RLU_SHARDS]
DOPAMINE_LENGTHS = (23, 19, 31, 22, 46, 43, 45)
_LOOK_S = 0.002


def write_rlu(root: Path) -> Path:
    """The first shards of Pong/5, tiny."""
    write_run(root, "Pong", 5, RLU_SHARDS)
    return root


def write_dopamine(root: Path, *, prefix: str = "", shape: tuple[int, int] = (84, 84)) -> Path:
    """Pong/1 in four files of 64 rows, some of whose episodes go on in the next."""
    ring = Ring(root / f"{prefix}Pong/1/replay_logs", 64, shape=shape)
    ring.run(Episode(length) for length in DOPAMINE_LENGTHS)
    assert len(ring.logged) == 4
    return root


def quick(server: GcsServer, prefix: str = "", *, read_timeout_s: float = 5.0) -> HttpFiles:
    """The server as a base that loses no time."""
    return HttpFiles(server.url + prefix, retry=QUICK, read_timeout_s=read_timeout_s)


def fetch(
    base: Location | Sequence[Place], destination: Path, run: str = "Pong/5", *, jobs: int = 1, **options: Any
) -> Report:
    """Downloads the shards of RLU_SHARDS, or what is asked for, from one base or the first of several that can."""
    if run == "Pong/5":
        options = {"shards": list(RLU_SHARDS), **options}
    chosen = Options(jobs=jobs, command="rlx download", **options)
    bases = [(Base(base.url), base)] if isinstance(base, Location) else base
    return download_from(bases, run, destination, chosen, progress=Silent())


def from_directory(source: Path, destination: Path, run: str = "Pong/5", *, jobs: int = 1, **options: Any) -> Report:
    """Downloads a run from a directory."""
    chosen = Options(jobs=jobs, command="rlx download", **options)
    return download_run(run, destination, chosen, source=str(source), layout=None, progress=Silent())


def converted(source: Path, destination: Path, *, jobs: int = 1, **options: Any) -> Report:
    """Converts a directory or a dataset."""
    chosen = Options(jobs=jobs, command="rlx convert", **options)
    return convert_files(Fetched(source), destination, chosen, source_format=None, progress=Silent())


def tree(dataset: Path) -> dict[str, str]:
    """A digest of every file below a dataset, but for its lock."""
    return {
        path.relative_to(dataset).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(dataset.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def tree_from_anywhere(dataset: Path) -> dict[str, str]:
    """The same, whichever base the files came from: the manifest without the note of its origin."""
    listed = json.loads((dataset / "rlx.json").read_text())
    listed["notes"].pop("origin", None)
    for shard in listed["shards"]:
        shard["origin"].pop("bases", None)
    del listed["crc32c"]
    return {**tree(dataset), "rlx.json": json.dumps(listed)}


def shard_trees(dataset: Path) -> dict[str, str]:
    """The same of the shards alone."""
    return {name: digest for name, digest in tree(dataset).items() if name.startswith("shards/")}


def trajectories(dataset: Path) -> list[Trajectory]:
    """All of a dataset, verified."""
    opened = rlx.open(dataset, verify=True)
    return merge(opened.blocks(), opened.schema)


def of_source(source: Source, shards: Sequence[int] | None = None) -> list[Trajectory]:
    """All of a source, or of some shards."""
    return [one for shard in source.shards() if shards is None or shard in shards for one in read(source, shard)]


def listed(dataset: Path) -> list[str]:
    """Names of the shards that a dataset lists, if it has come as far."""
    if not (dataset / FILE_NAME).exists():
        return []
    return [shard.name for shard in Manifest.load(dataset).shards]


def check_listed(dataset: Path) -> list[str]:
    """The same, and every bit of them is checked; what nobody lists does not matter."""
    names = listed(dataset)
    assert not names or not [found for found in verify(dataset).problems if found.problem != UNLISTED]
    return names


def ted_digests(dataset: Path, actions: str) -> Iterator[dict[str, object]]:
    """What expected.json says of an episode, of every trajectory as it is read through ``dataset[i:j]``.

    ``actions`` is the dtype of its actions; those of a dataset are int64.
    """
    opened = rlx.open(dataset, verify=True)
    table = opened.trajectories
    for start, length, recorded in zip(table.start, table.length, table.final_recorded, strict=True):
        steps = opened[int(start) : int(start + length)]
        observations, after = steps["observation"].numpy(), steps["next", "observation"].numpy()
        assert (after[:-1] == observations[1:]).all()
        frames = np.concatenate([observations, after[-1:]]) if recorded else observations
        reward = steps["next", "reward"].numpy()
        assert steps["action"].numpy().dtype == np.int64
        yield {
            "steps": int(length),
            "clipped_return": float(reward.sum()),
            "obs_sha256": _sha256(frames),
            "action_sha256": _sha256(steps["action"].numpy().astype(actions)),
            "reward_sha256": _sha256(reward),
        }


def _sha256(array: np.ndarray[Any, Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


@cache
def expected(layout: str) -> dict[str, list[dict[str, object]]]:
    """The contents of the sample files, as whoever wrote them said."""
    loaded: dict[str, list[dict[str, object]]] = json.loads((SHARED / layout / "expected.json").read_text())
    return loaded


def wait_until(holds: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Returns once something holds; fails if it does not come to that."""
    for _ in range(int(timeout_s / _LOOK_S)):  # not by the clock: a machine may stand still for a minute
        if holds():
            return
        time.sleep(_LOOK_S)
    raise AssertionError("waited in vain")
