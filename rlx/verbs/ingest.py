"""Ingest of a source into a dataset: received shards are converted while others are still fetched."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Protocol, runtime_checkable

from rlx.distribution import version
from rlx.engine.engines import open_engine, threads_per_task
from rlx.errors import CorruptShardError, DatasetExistsError, PartialError, SourceError, SourceNotFoundError
from rlx.files.directory import Directory
from rlx.files.urls import HUB
from rlx.formats.common.skipping import DAMAGED_SHARD, DAMAGES, HINT, LeftOut, is_skipping, skipping
from rlx.formats.common.source import PlannedSource, SkimmedSource, Source
from rlx.manifest import FILE_NAME, FileRecord, Manifest
from rlx.progress import Progress
from rlx.store.dataset import Dataset
from rlx.store.dataset_writer import Claim, DatasetWriter, open_writer
from rlx.store.dictionary import Beginning
from rlx.store.layout import shard_name
from rlx.store.writer import ShardFormat, train_dictionaries, write_shard
from rlx.verbs.arguments import Options
from rlx.verbs.citation import given_citations, write_citations
from rlx.verbs.report import FROM, Report, manifest_at, other_work
from rlx.verbs.shard_task import ShardResult, ShardTask, SharedSource, attempt, convert_shard
from rlx.verbs.transfers import Delivery
from rlx.wording import number_ranges, plural

logger = logging.getLogger(__name__)
ORIGIN = "origin"  # the note with the location of a source's files


@runtime_checkable
class RecordedSource(Protocol):
    """A source that knows length and checksum of its files, such as a dataset."""

    def records(self, shard: int) -> Mapping[str, FileRecord]:
        """Return the records of a shard's files, by name."""


@dataclass(frozen=True, slots=True)
class Ingest:
    """The conversion of one source into one dataset.

    Args:
        root: directory that the source's file names are relative to; None if it has no files in one directory.
        parents: datasets that the source consists of.
        recipe: other lineage entries that determine the data.
        work: function that writes one shard.
        origin: URL or directory that the source's files come from, for the notes.
        citations: BibTeX entries that the source's files were published with.
        left_out: the episodes that could not be read when the source was opened.
        renumbers: whether shard numbers change with the parents: then a resumed dataset needs the same parents, and
            otherwise the same files of each of its shards.
    """

    source: Source
    root: Path | None
    options: Options
    progress: Progress
    parents: Sequence[Dataset] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)
    work: Callable[[ShardTask, Progress], ShardResult] = convert_shard
    origin: str | None = None
    citations: Sequence[str] = ()
    left_out: LeftOut = field(default_factory=LeftOut)
    renumbers: bool = False

    def numbers(self) -> list[int]:
        """Return the numbers of the requested shards."""
        return chosen_shards(self.source, self.options.shards)

    def described(self) -> Manifest:
        """Return the manifest of the new dataset, without shards."""
        options = self.options
        parents = [*map(_parent, self.parents)]
        made = {"command": options.command, "rlx": version(), "parents": parents, **self.recipe}
        if self.origin is not None and self.origin.startswith(HUB):
            made[FROM] = self.origin  # whose commit the command need not say
        return Manifest(
            self.source.id,
            options.store,
            options.effective_codec.to_json(),
            self.source.schema,
            planned=[shard_name(number) for number in self.numbers()],
            notes={
                **self.source.notes,
                **({} if self.origin is None else {ORIGIN: self.origin}),
                **self.left_out.note(),
            },
            lineage=[*_lineage(self.parents), made],
        )

    def check_resumable(self, destination: Path) -> Manifest | None:
        """Return the manifest of the dataset that is resumed; None if a new one is begun."""
        there = manifest_at(destination)
        if there is None:
            return None
        described = self.described()
        different = other_work(there, described, of_parents=self.renumbers)
        if different is None and not self.renumbers and not there.difference(described):
            different = self._other_files(there)
        if different is not None:
            raise DatasetExistsError(
                f"{destination} was created in another way: {different}",
                hint="`overwrite` starts afresh; or choose another directory",
            )
        return there

    def _other_files(self, there: Manifest) -> str | None:
        """Return, in words, the shard that was converted from other files than the source has now.

        Files are compared by checksum for the first shard, or if they come from elsewhere, and by size for the others.
        """
        numbers, is_first = set(self.source.shards()), True
        is_elsewhere = self.origin is not None and self.origin not in noted_origins(there)
        for shard in there.shards:
            number, found = shard.origin.get("shard"), shard.origin.get("files")
            if not isinstance(found, dict) or not isinstance(number, int) or number not in numbers:
                continue  # nothing to compare: only conversions record the files
            if found != self._files_now(number, found, summed=is_first or is_elsewhere):
                return f"its shard {shard.name} is of other files than those of {self.source.id}"
            is_first = False
        return None

    def _files_now(self, number: int, recorded: Mapping[str, Any], *, summed: bool) -> Mapping[str, Any]:
        """Return the records of the source's files of a shard; as recorded, for files that cannot be compared."""
        if isinstance(self.source, RecordedSource):
            return {name: asdict(file) for name, file in self.source.records(number).items()}
        if self.root is None:
            return recorded
        found = dict[str, Any]()
        for name in self.source.files(number):
            path, before = self.root / name, recorded.get(name)
            if not path.exists():
                found[name] = before  # deleted since it was converted
            elif summed or not isinstance(before, dict) or path.stat().st_size != before.get("bytes"):
                found[name] = asdict(FileRecord.of(path))
            else:
                found[name] = before
        return found

    def run(self, claim: Claim, delivery: Delivery | None = None) -> Report:
        """Write the dataset, or its missing shards, into a directory that is claimed already.

        A shard whose files are missing or damaged does not stop the others; its error is in the report, and a
        dataset that was to be replaced stays.

        Args:
            delivery: brings the source's files; None if they are on this machine.
        """
        started = time.monotonic()
        described = self.described()
        writer = open_writer(claim.place, described)
        pending = self.pending(writer.manifest)
        if pending and ORIGIN in described.notes:
            writer.manifest = _also_from(writer.manifest, described.notes[ORIGIN])
        self.progress.expect("shards", len(pending))
        shards = _PendingShards(self, writer, delivery or Delivery(), pending)
        if pending:
            shards.write()
        failures = shards.failures
        if not writer.manifest.shards and not failures:
            writer.save()
        if (left := LeftOut.noted(writer.manifest.notes)).count and not (failures or writer.manifest.steps):
            raise CorruptShardError(f"{self.source.id} has only {left}")
        if not failures:
            claim.finish()
            given = [entry for one in self.parents for entry in given_citations(one.manifest, Directory(one.path))]
            write_citations(claim.path, [*self.citations, *given])
        skipped = len(self.numbers()) - len(pending)
        seconds, path = time.monotonic() - started, claim.place if failures else claim.path
        return Report.of(
            path, writer.manifest, seconds, shards.steps_written, skipped_shards=skipped, failures=failures
        )

    def pending(self, listed: Manifest | None) -> list[int]:
        """Return the numbers of the requested shards that are not listed."""
        names = listed.listed if listed else set()
        return [number for number in self.numbers() if shard_name(number) not in names]


def _lineage(parents: Sequence[Dataset]) -> list[Mapping[str, Any]]:
    """Return the lineages of all parents, with the steps that several have in common once."""
    steps: list[Mapping[str, Any]] = []
    for parent in parents:
        steps += [step for step in parent.manifest.lineage if step not in steps]
    return steps


def _parent(dataset: Dataset) -> Mapping[str, Any]:
    """Return the entry of a lineage for a dataset's parent."""
    return {"id": dataset.manifest.id, "crc32c": FileRecord.of(dataset.path / FILE_NAME).crc32c}


def noted_origins(manifest: Manifest) -> list[Any]:
    """Return the origins of the files that a dataset was converted from."""
    noted = manifest.notes.get(ORIGIN, [])
    return noted if isinstance(noted, list) else [noted]


def _also_from(manifest: Manifest, origin: str) -> Manifest:
    """Return the manifest of a dataset whose next shards come from this base;
    those before may have come from another."""
    bases = list(dict.fromkeys([*noted_origins(manifest), origin]))
    return replace(manifest, notes={**manifest.notes, ORIGIN: bases if len(bases) > 1 else origin})


def _also_without(manifest: Manifest, left_out: LeftOut) -> Manifest:
    """Return the manifest of a dataset that also lacks these episodes of its source; logs them."""
    logger.warning("%s: left out: %s", manifest.id, left_out)
    return replace(manifest, notes={**manifest.notes, **(LeftOut.noted(manifest.notes) + left_out).note()})


class _PendingShards:
    """The shards that are to be written, from the arrival of their files until they are listed.

    One thread does all of it. Others put events: the files of a shard are here, or could not be fetched, or a worker is
    done with it.
    """

    def __init__(self, ingest: Ingest, writer: DatasetWriter, delivery: Delivery, pending: Sequence[int]) -> None:
        self._ingest = ingest
        self._writer = writer
        self._delivery = delivery
        self._events: SimpleQueue[tuple[int, BaseException | Future[ShardResult] | None]] = SimpleQueue()
        self._pending = pending
        self._left = set(pending)  # neither listed nor failed
        self._here: set[int] = set()  # whose files are here, and which no worker has yet
        self._unlisted: dict[int, int] = {}  # steps of those that are written, and not listed yet
        self._untried = list(pending)  # that the dictionaries may be made from, in order
        threads = threads_per_task(ingest.options.engine, ingest.options.jobs, len(pending))
        self._plain = replace(writer.format(), threads=threads)
        is_complete = self._plain.dictionaries or not self._plain.coded()
        self._format: ShardFormat | None = self._plain if is_complete else None
        self.failures: dict[str, SourceError] = {}
        self.steps_written = 0

    def write(self) -> None:
        """Return when every shard is listed or has failed."""
        options, source = self._ingest.options, SharedSource(self._ingest.source)
        tasks, work = len(self._pending), partial(attempt, self._ingest.work)
        with open_engine(
            options.engine, options.jobs, self._ingest.progress, options.ray_address, tasks=tasks
        ) as engine:
            try:
                self._delivery.start(self._pending, self._happened)
                while self._left:
                    if self._unlisted and (self._unlisted.keys() == self._left or not self._writer.due_s):
                        self._list()
                    elif self._here and self._format is not None and self._events.empty():
                        shard = min(self._here)
                        self._here.remove(shard)
                        # One that this process writes is done now: it is listed before the next one begins, so that a
                        # kill costs no more than that.
                        engine.submit(work, self._task(source, shard, self._format)).add_done_callback(
                            partial(self._happened, shard)
                        )
                    else:
                        with suppress(Empty):  # the written ones are due to be listed
                            self._take(*self._events.get(timeout=self._writer.due_s if self._unlisted else None))
            except BrokenExecutor as exc:
                raise PartialError(
                    "a worker process died; finished shards are kept",
                    hint="run the same command again; if memory was short, with `jobs` 1",
                ) from exc
            finally:
                try:
                    self._list()
                finally:
                    self._delivery.stop()

    def _happened(self, shard: int, event: "BaseException | Future[ShardResult] | None") -> None:
        """Put an event, from any thread."""
        self._events.put((shard, event))

    def _take(self, shard: int, event: "BaseException | Future[ShardResult] | None") -> None:
        """Handle an event."""
        error = event.exception() if isinstance(event, Future) else event
        if isinstance(error, SourceError):
            if isinstance(event, Future) and self._comes_again(shard, error):
                return
            self._fail(shard, error)
        elif error is not None:
            raise error
        elif isinstance(event, Future):
            self._add(shard, event.result())
            return
        else:
            self._here.add(shard)
        if self._format is None:
            self._format = self._trained()

    def _trained(self) -> ShardFormat | None:
        """Return the format with the dictionaries of the first shard that has steps, whichever arrives first; None if
        that is not here yet.

        A failed shard is passed over: it is not known to hold steps, and the others must not wait for it.
        """
        while self._untried and (self._untried[0] in self._here or self._untried[0] not in self._left):
            shard = self._untried.pop(0)
            if shard not in self._left:
                continue
            try:
                with skipping(self._ingest.options.skips):
                    dictionaries = train_dictionaries(_beginning(self._ingest.source, shard), self._plain)
            except SourceError as exc:
                self._here.discard(shard)
                if self._comes_again(shard, exc):
                    self._untried.insert(0, shard)
                    return None
                self._fail(shard, exc)
                continue
            if dictionaries:
                return replace(self._plain, dictionaries=dictionaries)
        return None if self._untried else self._plain

    def _task(self, source: SharedSource, shard: int, shards: ShardFormat) -> ShardTask:
        ingest, name = self._ingest, shard_name(shard)
        fetched = self._delivery.fetched(shard)
        if isinstance(ingest.source, RecordedSource):  # which is verified when it is read
            fetched = {**ingest.source.records(shard), **fetched}
        directory, skips = self._writer.partial(name), ingest.options.skips
        return ShardTask(source, ingest.root, shard, name, directory, shards, fetched, skips=skips)

    def _add(self, shard: int, result: ShardResult) -> None:
        """Take a written shard, which is listed when that is due."""
        bases = self._delivery.origin(shard)
        for base in bases:
            self._writer.manifest = _also_from(self._writer.manifest, base)
        if result.left_out.count:
            self._writer.manifest = _also_without(self._writer.manifest, result.left_out)
        origin = {**result.origin, **({"bases": bases} if bases else {})}
        self._writer.add(result.record, origin=origin, dropped=result.dropped)
        self._unlisted[shard] = result.record.steps

    def _list(self) -> None:
        """List the written shards. Their files may be deleted only then."""
        unlisted, self._unlisted = self._unlisted, {}
        self._writer.flush()
        for shard, steps in unlisted.items():
            self.steps_written += steps
            self._left.discard(shard)
            self._delivery.finished(shard)
            self._ingest.progress.advance("shards", 1)

    def _comes_again(self, shard: int, error: SourceError) -> bool:
        """Let a damaged shard come from another base; return whether it will."""
        if not (isinstance(error, CorruptShardError) and self._delivery.again(shard, self._happened)):
            return False
        logger.warning("shard %d: %s", shard, error)
        return True

    def _fail(self, shard: int, error: SourceError) -> None:
        skips = self._ingest.options.skips
        if skips is not None and isinstance(self._ingest.source, PlannedSource) and isinstance(error, DAMAGES):
            if skips:
                self._leave_out(shard, self._ingest.source, error)
                return
            error.hint = error.hint or HINT
        logger.warning("shard %d failed: %s", shard, error)
        self.failures[shard_name(shard)] = error
        self._left.discard(shard)
        self._delivery.finished(shard)

    def _leave_out(self, shard: int, source: PlannedSource, error: SourceError) -> None:
        """List an empty shard in place of one that is damaged."""
        name, (episodes, steps) = shard_name(shard), source.planned(shard)
        record = write_shard(self._writer.partial(name), name, self._plain, [])
        reason = f"{plural(steps, 'step')}: {error}"
        self._writer.manifest = _also_without(self._writer.manifest, LeftOut(episodes, {f"shard {shard}": reason}))
        origin = {"source": self._ingest.source.id, "shard": shard}
        self._writer.add(record, origin=origin, dropped={DAMAGED_SHARD: steps})
        self._unlisted[shard] = 0


def _beginning(source: Source, shard: int) -> Iterable[Beginning]:
    """Return the steps of a shard, decoded as far as needed: a worker decodes all of them."""
    if isinstance(source, SkimmedSource) and not is_skipping():  # rows that are decoded later may be damaged
        return source.skim(shard)
    return source.blocks(shard, Counter())


def chosen_shards(source: Source, shards: Sequence[int] | None) -> list[int]:
    """Return the numbers of the requested shards of a source; all by default."""
    there = list(source.shards())
    if shards is None:
        return there
    if missing := sorted(set(shards) - set(there)):
        raise SourceNotFoundError(
            f"{source.id} has no shard {missing[0]}: expected one of {number_ranges(there)}",
            hint=f"`shards` {number_ranges(there)}",
        )
    return sorted(set(shards))
