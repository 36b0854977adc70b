"""Downloads of one run into a dataset, from a directory or a server.

Remote files are fetched in the order of the shards, a few ahead of the conversion, and deleted after it.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rlx.engine.engines import job_count
from rlx.errors import DatasetExistsError, RlxError, SourceError, SourceNotFoundError
from rlx.files.beneath import try_remove
from rlx.files.checksum import FetchedFile, FileStat
from rlx.files.directory import Directory
from rlx.files.disk import check_room
from rlx.files.opening import open_source
from rlx.fork import temporary_directory
from rlx.formats.common.skipping import LeftOut, skipping
from rlx.formats.common.source import Source
from rlx.formats.finding import find_run
from rlx.formats.rl_unplugged.reader import ORDER
from rlx.home import home
from rlx.manifest import Manifest
from rlx.progress import Progress, Silent
from rlx.store.dataset_writer import Claim, claimed
from rlx.store.layout import SOURCE_FILES
from rlx.verbs.arguments import Options
from rlx.verbs.convert import convert_files
from rlx.verbs.hosted_datasets import Hosted, located
from rlx.verbs.ingest import Ingest, noted_origins
from rlx.verbs.inputs import fetched_from, warn, warn_of
from rlx.verbs.report import Report, check_apart, manifest_at
from rlx.verbs.runs import RemoteRun, find_remote
from rlx.verbs.sources import Base, Place, configured_bases, opened
from rlx.verbs.transfers import TRANSFERS, Fetching

logger = logging.getLogger(__name__)
_RUN = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]*)/([0-9]+)")
_STEPS_PER_SHARD = 1_000_000


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file that a download needs.

    Args:
        url: URL or path of the file.
        bytes: length of the file; None if unknown.
        crc32c: checksum as eight hex digits; None if unknown.
        state: ``done`` (its shard is listed), ``present`` (here, not yet converted), ``partial`` or ``missing``.
    """

    url: str
    bytes: int | None
    crc32c: str | None
    state: str


@dataclass(frozen=True, slots=True)
class DownloadPlan:
    """The files that a download needs.

    Args:
        files: the files of the requested shards.
    """

    files: Sequence[PlannedFile]

    @property
    def bytes(self) -> int:
        """Bytes of all files whose length the server states."""
        return sum(file.bytes or 0 for file in self.files)

    def to_json(self) -> dict[str, Any]:
        """Return the keys that scripts rely on."""
        return {"files": [asdict(file) for file in self.files], "bytes": self.bytes}


def download_run(
    run: str,
    destination: Path,
    options: Options,
    *,
    source: str | None,
    layout: str | None,
    progress: Progress,
) -> Report:
    """Download a run, or its missing shards, and convert each file while others still arrive.

    Args:
        source: base of the files: a URL or a directory; by default the configured ones, RL Unplugged's buckets unless
            there are others.
        layout: ``rlu`` or ``dopamine``; auto-detected by default.

    Raises what ``rlx.download`` does.
    """
    return download_from(_bases(source, layout), run, destination, options, progress=progress)


def _bases(source: str | None, layout: str | None) -> list[Place]:
    """Return the bases to try: the user's, which must exist, or the configured ones."""
    if source is not None:
        return [(Base(source, layout), open_source(source))]
    bases = configured_bases()
    return opened(bases if layout is None else [replace(base, layout=layout) for base in bases])


def download_from(
    bases: Sequence[Place], run: str, destination: Path, options: Options, *, progress: Progress
) -> Report:
    """Download a run from bases that are open, say with other timeouts; see ``download_run``."""
    game, number = parse_run(run)
    if (local := _local(bases)) is not None:
        base, directory = local
        check_apart(directory, destination)
        with skipping(options.skips) as left:
            found = find_run(directory, run, base.layout)
            found.shards()  # what plans them may find damage
        warn(found)
        warn_of(left, found)
        with claimed(destination, overwrite=options.overwrite) as claim:
            ingest = Ingest(found, found.root, options, progress, origin=base.url, left_out=LeftOut.of(left))
            return ingest.run(claim)
    with claimed(destination, overwrite=options.overwrite) as claim:
        return _download(find_remote(bases, game, number), claim, options, progress)


def _local(bases: Sequence[Place]) -> tuple[Base, Path] | None:
    """Return the only base, if it is a directory: its files are read there."""
    (base, location), *others = bases
    if others or isinstance(location, RlxError) or location.directory is None:
        return None
    return replace(base, address=str(location.directory.resolve())), location.directory


@dataclass(frozen=True, slots=True)
class _Planned:
    """A run of some bases, and the files to fetch."""

    remote: RemoteRun
    index: Mapping[str, FetchedFile]
    ingest: Ingest
    pending: Sequence[int]
    stats: Mapping[str, FileStat]


def _planned(
    runs: Iterator[RemoteRun],
    directory: Path,
    options: Options,
    progress: Progress,
    listed: Manifest | None,
    *,
    is_every: bool,
) -> _Planned:
    """Return the run of the first bases that have any of its files, and the same run that a dataset was begun with.

    Args:
        is_every: whether to plan the files of all requested shards, and not only of those that are not listed.
    """
    errors: list[RlxError] = []
    for remote in runs:
        try:
            index = remote.fetch_index(directory)
            source = remote.layout.source(directory)
            with skipping(options.skips) as left:
                source.shards()  # what plans them may find damage
            ingest = Ingest(source, directory, options, progress, left_out=LeftOut.of(left))
            pending = ingest.pending(listed)
            if listed is not None and listed.shards and pending:
                _check_order(listed, ingest.source, remote.base.url)
            wanted = _files(ingest.source, ingest.numbers() if is_every else pending)
            return _Planned(remote, index, ingest, pending, remote.stats(wanted))
        except (SourceError, DatasetExistsError) as exc:
            errors.append(exc)
    for error in errors[1:]:
        logger.warning("%s", error)
    raise errors[0]


def _check_order(listed: Manifest, source: Source, url: str) -> None:
    there, wanted = (ORDER in notes for notes in (listed.notes, source.notes))
    if there != wanted:
        names = ("atari_episodes_ordered", "atari_episodes")
        raise DatasetExistsError(
            f"{url} has {names[wanted]}, the dataset shards of {names[there]}: mixing them could repeat episodes",
            hint="`overwrite` starts afresh; or choose another directory",
        )


def _download(runs: Iterator[RemoteRun], claim: Claim, options: Options, progress: Progress) -> Report:
    destination = claim.path
    directory = destination / SOURCE_FILES
    listed = manifest_at(claim.place)
    plan = _planned(runs, directory, options, progress, listed, is_every=False)
    remote, index, ingest, pending = plan.remote, plan.index, plan.ingest, plan.pending
    warn(ingest.source)
    warn_of(ingest.left_out.reasons, ingest.source)
    sizes = {name: stat.bytes or 0 for name, stat in plan.stats.items() if name not in index}
    progress.expect("bytes", sum(sizes.values()))
    to_come = {name: max(0, size - _bytes_here(directory / name)) for name, size in sizes.items()}
    with job_count(options.engine, options.jobs, options.ray_address) as jobs:
        ahead = jobs + TRANSFERS
        needed = _needed(remote, ingest, pending, sizes, to_come, ahead)
        check_room(destination, needed, remedy="choose another directory with `output`, or fewer shards with `shards`")
        delivery = Fetching(
            remote.base, ingest.source, directory, progress, present=index, ahead=ahead, keep=options.keep_source
        )
        report = ingest.run(claim, delivery)
    if not report.failures and not options.keep_source:
        try_remove(directory)
    return report


def _files(source: Source, shards: Sequence[int]) -> list[str]:
    """Return names of all files that these shards need, each once, in the order of their need."""
    return list(dict.fromkeys(name for shard in shards for name in source.files(shard)))


def _bytes_here(path: Path) -> int:
    """Return how much of a file has arrived already."""
    for found in (path, path.with_name(f"{path.name}.partial")):
        if found.is_file():
            return found.stat().st_size
    return 0


def _needed(
    remote: RemoteRun,
    ingest: Ingest,
    pending: Sequence[int],
    sizes: Mapping[str, int],
    to_come: Mapping[str, int],
    ahead: int,
) -> int:
    """Return the additional disk space that a download takes at most, estimated in bytes."""
    options, total = ingest.options, sum(sizes.values())
    written = int(total * remote.growth)
    if options.effective_codec.name == "none":
        # How well the source's files are compressed is unknown: assume whole shards, unless the run is a small sample.
        steps = _STEPS_PER_SHARD * len(pending) if total > 2**28 else 0
        written = steps * ingest.source.schema.raw_bytes(1, 0)
    waiting = sum(to_come.values()) if options.keep_source else sum(sorted(to_come.values())[-ahead:])
    return written + waiting


def plan_run(
    run: str, destination: Path, options: Options, *, source: str | None, layout: str | None
) -> list[PlannedFile]:
    """Return the files that ``download_run`` would need, and which of them are here already. The destination is not
    touched.
    """
    game, number = parse_run(run)
    bases = _bases(source, layout)
    listed = manifest_at(destination)
    if (known := _local(bases)) is not None:
        base, directory = known
        local = find_run(directory, run, base.layout)
        stats = Directory(local.root)
        return [
            PlannedFile(stat.url, stat.bytes, None, state)
            for name, state in _states(Ingest(local, local.root, options, Silent()), listed, None).items()
            for stat in [stats.stat(name)]
        ]
    with temporary_directory() as scratch:
        runs = find_remote(bases, game, number)
        plan = _planned(runs, scratch, options, Silent(), listed, is_every=True)
        states = _states(plan.ingest, listed, destination / SOURCE_FILES)
    return [PlannedFile(stat.url, stat.bytes, stat.crc32c, states[name]) for name, stat in plan.stats.items()]


def _states(ingest: Ingest, listed: Manifest | None, directory: Path | None) -> dict[str, str]:
    """Return state of every file that the shards asked for need; see ``PlannedFile``."""
    pending = _files(ingest.source, ingest.pending(listed))
    states = dict.fromkeys(_files(ingest.source, ingest.numbers()), "done")
    for name in pending:
        states[name] = "present" if directory is None or (directory / name).exists() else "missing"
        if directory is not None and (directory / f"{name}.partial").exists():
            states[name] = "partial"
    return states


def download_hosted(run: Hosted, destination: Path | None, options: Options, *, progress: Progress) -> Report:
    """Fetch a dataset of another project from the hub and convert it; its commit is recorded."""
    found, location = located(run)
    place = home() / found.id if destination is None else destination
    return convert_files(fetched_from(location, progress), place, options, source_format=None, progress=progress)


def plan_hosted(run: Hosted, destination: Path | None) -> list[PlannedFile]:
    """Return the files that ``download_hosted`` would need; ``present`` are those in the cache of huggingface_hub."""
    found, location = located(run)
    listed = manifest_at(home() / found.id if destination is None else destination)
    files = location.cached_files()
    state = {True: "present", False: "missing"}
    # Of another commit, what the hub has is fetched and compared.
    is_done = listed is not None and not listed.missing and location.pinned in noted_origins(listed)
    return [
        PlannedFile(file.url, file.bytes, None, "done" if is_done else state[is_cached]) for file, is_cached in files
    ]


def parse_run(run: str) -> tuple[str, int]:
    """Return game and number of a run.

    Example:
        >>> parse_run("Pong/5")
        ('Pong', 5)
    """
    matched = _RUN.fullmatch(run)
    if matched is None:
        raise SourceNotFoundError(f"run {run!r}: expected GAME/NUMBER, such as Pong/5", hint="rlx list --remote")
    return matched[1], int(matched[2])
