"""``rlx merge``: several datasets as one, without copying what hard links can share."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlx.errors import DatasetError, SchemaMismatchError
from rlx.pipeline.assembly import Assembly, ShardPart, assemble
from rlx.pipeline.destination import check_apart
from rlx.pipeline.ingest import number_ranges
from rlx.pipeline.options import Options
from rlx.pipeline.report import Report
from rlx.progress import Progress
from rlx.store.codec import Codec
from rlx.store.dataset import Dataset

logger = logging.getLogger(__name__)
_NAMED = 4  # parents that a merged dataset is named after


def merge(
    sources: Sequence[Path], destination: Path, options: Options, *, encode: bool = False, progress: Progress
) -> Report:
    """Put the shards of several datasets into one, in the order given; resume an unfinished merge.

    Shards are renumbered. Trajectories keep the episode numbers of their source, so a number may occur twice. Notes
    that differ between the datasets name the shards that they are about.

    Args:
        sources: the datasets' directories.
        destination: the directory of the new one.
        options: how to write it; the store and codec count only with ``encode``.
        encode: whether to re-encode shards of another store or codec than the options'. Otherwise all datasets must
            have those of the first.
        progress: receives ``bytes`` of linked files, and ``shards`` and ``steps`` of re-encoded ones.

    Raises:
        DatasetNotFoundError: the dataset does not exist.
        DatasetError: a dataset is given twice, or the datasets differ in store or codec.
        SchemaMismatchError: the datasets have different fields.
        DatasetExistsError: the destination is one of the sources, or contains it, or holds another dataset.
        CorruptDatasetError: a dataset is damaged.
    """
    datasets = [Dataset(source) for source in sources]
    for dataset in datasets:
        check_apart(dataset.path, destination)
    _check_distinct(datasets)
    _check_schemas(datasets)
    if not encode:
        _check_forms(datasets)
        first = datasets[0].manifest
        options = replace(options, store=first.store, codec=Codec.from_json(first.codec))
    for dataset in datasets:
        if missing := dataset.manifest.missing:
            logger.warning("%s is not complete: %d of its shards are missing", dataset.path, len(missing))
    places = [ShardPart(dataset, place) for dataset in datasets for place in range(len(dataset.shard_names))]
    ids = list(dict.fromkeys(dataset.manifest.id for dataset in datasets))
    id = "+".join([*ids[:_NAMED], *([f"{len(ids) - _NAMED} more"] if len(ids) > _NAMED else [])])
    assembly = Assembly(id, datasets[0].schema, _notes(datasets), dict(enumerate(places)))
    return assemble(assembly, datasets, destination, options, progress)


def _check_distinct(datasets: Sequence[Dataset]) -> None:
    seen: set[Path] = set()
    for dataset in datasets:
        path = dataset.path.resolve()
        if path in seen:
            raise DatasetError(f"{dataset.path} is given twice: expected every dataset once")
        seen.add(path)


def _check_schemas(datasets: Sequence[Dataset]) -> None:
    first = datasets[0]
    for other in datasets[1:]:
        there, wanted = other.schema.to_json(), first.schema.to_json()
        for name in [*wanted, *there]:
            if there.get(name) != wanted.get(name):
                found, expected = there.get(name, "not there"), wanted.get(name, "none")
                raise SchemaMismatchError(
                    f"{other.path}: field {name} is {found}, expected {expected} as in {first.path}",
                    hint=f"rlx preprocess {other.path} DST --transform ... makes it the same",
                )


def _check_forms(datasets: Sequence[Dataset]) -> None:
    first = datasets[0]
    for other in datasets[1:]:
        forms = [(one.manifest.store, str(Codec.from_json(one.manifest.codec))) for one in (other, first)]
        for what, found, expected in zip(("store", "codec"), *forms, strict=True):
            if found != expected:
                hint = f"--to {forms[1][0]}" + (f" --codec {forms[1][1]}" if forms[1][0] == "zarr" else "")
                raise DatasetError(
                    f"{other.path}: {what} is {found}, expected {expected} as in {first.path}",
                    hint=f"{hint} re-encodes shards that use another store or codec",
                )


def _notes(datasets: Sequence[Dataset]) -> Mapping[str, Any]:
    """Return the notes of all datasets, each that differs with the shards for which it is true."""
    notes: dict[str, Any] = {}
    for key in dict.fromkeys(key for dataset in datasets for key in dataset.manifest.notes):
        said = [dataset.manifest.notes.get(key) for dataset in datasets]
        if all(one == said[0] for one in said):
            notes[key] = said[0]
            continue
        start, parts = 0, {}
        for dataset, one in zip(datasets, said, strict=True):
            stop = start + len(dataset.shard_names)
            if one is not None and stop > start:
                parts[f"shards {number_ranges(range(start, stop))}"] = one
            start = stop
        notes[key] = parts
    return notes
