"""``rlx preprocess``: what transforms make of a dataset, in another dataset."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlx import manifest
from rlx.errors import DatasetError, DatasetExistsError, PartialError
from rlx.manifest import FileRecord, Manifest
from rlx.pipeline.destination import check_apart
from rlx.pipeline.ingest import AtHand, Ingest
from rlx.pipeline.options import Options
from rlx.pipeline.recipe import Recipe
from rlx.pipeline.report import Report
from rlx.pipeline.transformed import AT_HAND, transform_shard
from rlx.progress import Progress
from rlx.store.dataset import Dataset
from rlx.store.dataset_writer import claimed
from rlx.store.layout import SHARDS


def preprocess(source: Path, destination: Path, recipe: Recipe, options: Options, *, progress: Progress) -> Report:
    """Write what a recipe makes of a dataset; resumes one half done by the same recipe.

    The result depends on the dataset and the recipe alone, whoever does the work and however many they are.

    Args:
        source: the dataset's directory; nothing in it is changed.
        destination: the new dataset's directory.
        recipe: what to do.
        options: how to write.
        progress: receives ``steps`` and ``shards``, and of ``bytes read`` and ``bytes written``.

    Raises:
        DatasetExistsError: the destination is the source, lies in it or contains it, or holds something else.
        TransformError: the recipe does not suit the dataset, or fails on a trajectory, which is named; shards that
            were finished before are kept.
        PartialError: a worker died; names the trajectories that it was processing.
    """
    check_apart(source, destination)
    dataset = Dataset(source)
    transformed = recipe.applied(dataset)
    parent = {"id": dataset.manifest.id, "crc32c": FileRecord.of(source / manifest.FILE_NAME).crc32c}
    ingest = Ingest(
        transformed,
        source,
        options,
        progress,
        parents=[parent],
        lineage=dataset.manifest.lineage,
        recipe={"recipe": recipe.to_json()},
        work=transform_shard,
    )
    with claimed(destination):
        there = None if options.overwrite else _present(destination)
        if there is not None:
            _check_same(destination, there, ingest.described())
        left = [transformed.inputs[number] for number in ingest.pending(there)]
        progress.expect("steps", sum(shard_input.steps for shard_input in left))
        progress.expect("bytes read", sum(shard_input.bytes for shard_input in left))
        try:
            return ingest.run(destination, AtHand())
        except PartialError as exc:
            hint = exc.hint and exc.hint.replace("--jobs", "--num-workers")  # as this command calls it
            raise PartialError(f"{exc}{_at_hand(destination)}", hint=hint) from exc


def _at_hand(destination: Path) -> str:
    """Return the trajectories that dead workers were processing."""
    notes = [path.read_text().split() for path in sorted((destination / SHARDS).glob(f"*.partial/{AT_HAND}"))]
    named = [first if first == last else f"{first} to {last}" for first, last in notes]
    return f"; unfinished trajectories are {', '.join(named)}" if named else ""


def _present(destination: Path) -> Manifest | None:
    try:
        return Manifest.load(destination)
    except DatasetError:
        return None


def _check_same(destination: Path, there: Manifest, wanted: Manifest) -> None:
    """Raise DatasetExistsError if a dataset was made otherwise, or of something else."""
    made = there.lineage[-1] if there.lineage else {}
    for name, found, expected in _differing(made, wanted.lineage[-1]):
        raise DatasetExistsError(
            f"{destination} was made otherwise: its {name} is {found}, expected {expected}",
            hint="--overwrite starts afresh; or choose another DST",
        )


def _differing(made: Mapping[str, Any], wanted: Mapping[str, Any]) -> "list[tuple[str, Any, Any]]":
    pairs = [("source", made.get("parents"), wanted["parents"])]
    recipe = made.get("recipe", {})
    pairs += [(key, recipe.get(key), wanted["recipe"].get(key)) for key in {**recipe, **wanted["recipe"]}]
    return [pair for pair in pairs if pair[1] != pair[2]]
