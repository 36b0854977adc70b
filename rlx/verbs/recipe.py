"""Recipes of transforms, applied to a dataset or to a preview of it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import TransformError
from rlx.fork import temporary_directory
from rlx.formats.common.source import MAX_BLOCK_STEPS
from rlx.schema import Schema
from rlx.store.dataset import Dataset
from rlx.store.layout import shard_name
from rlx.store.statistics import merge_statistics
from rlx.store.writer import ShardFormat, train_dictionaries, write_shard
from rlx.transform.code import UserCode
from rlx.transform.functions import Function
from rlx.transform.protocol import Learner, Selection, Transform, fitted
from rlx.transform.registry import described
from rlx.transform.selections import chosen
from rlx.verbs.arguments import Options
from rlx.verbs.transformed import Transformed, read_input, shard_inputs

_OF_REWARDS = frozenset({"clip_reward", "sign_reward", "scale_reward", "frame_skip", "n_step", "relabel"})
# Whole trajectories of at least this many steps are previewed.
_STEPS = 2048
FEW = 8  # values of a field that are shown; of more, the range


@dataclass(frozen=True, slots=True)
class Recipe:
    """Selections, then transforms, in this order.

    Args:
        transforms: what ``rlx.transform.registry.parse`` makes.
        steps: use only the first steps of the kept trajectories; all if not given.
    """

    transforms: Sequence[Transform | Learner | Selection]
    steps: int | None = None

    def __post_init__(self) -> None:
        kinds = [isinstance(transform, Selection) for transform in self.transforms]
        if kinds != sorted(kinds, reverse=True):
            late = described(self.transforms[len(kinds) - 1 - kinds[::-1].index(True)])
            raise TransformError(
                f"{late} selects trajectories of the source: expected it before all transforms of steps"
            )

    def applied(self, dataset: Dataset) -> Transformed:
        """Return a dataset on its way through the transforms."""
        selections = [one for one in self.transforms if isinstance(one, Selection)]
        changes = [one for one in self.transforms if not isinstance(one, Selection)]
        pieces = shard_inputs(dataset, chosen(dataset, selections), self.steps)
        # A function's TensorDicts are copies of the blocks, several times over.
        max_steps = min([MAX_BLOCK_STEPS, *(one.chunk_steps for one in changes if isinstance(one, Function))])
        chain = fitted(
            [(described(change).partition(":")[0], change) for change in changes],
            dataset.schema,
            lambda: read_input(dataset, pieces[0], max_steps) if pieces else iter(()),
            merge_statistics(record.statistics for record in dataset.shard_records),
            dataset.trajectories.start,
        )
        return Transformed(dataset, chain, pieces, _notes(dataset, changes), max_steps)

    def to_json(self) -> Mapping[str, Any]:
        """Return the recipe for the lineage, which two runs compare."""
        entry: dict[str, Any] = {"transforms": [described(transform) for transform in self.transforms]}
        if code := {one.code.name: one.code.sha256 for one in self.transforms if isinstance(one, UserCode)}:
            entry["code"] = code
        if self.steps is not None:
            entry["steps"] = self.steps
        return entry


def _notes(dataset: Dataset, changes: Sequence[Transform | Learner]) -> Mapping[str, Any]:
    """Return the notes of the data, with the changes of the rewards since."""
    notes = dict(dataset.manifest.inherited_notes)
    texts = [text for text in map(described, changes) if text.partition(":")[0] in _OF_REWARDS]
    if texts:
        notes["rewards"] = ", then ".join([*([str(notes["rewards"])] if "rewards" in notes else []), *texts])
    return notes


@dataclass(frozen=True, slots=True)
class Preview:
    """The expected result of a recipe.

    Args:
        schema: fields of a step of the new dataset.
        first: values of the first step by field; empty if no step would be left.
        steps_read: number of steps that would be read.
        steps: estimated number of steps of the new dataset.
        bytes: estimated size of the new dataset.
        shards: number of shards of the new dataset.
    """

    schema: Schema
    first: Mapping[str, NDArray[np.generic]]
    steps_read: int
    steps: int
    bytes: int
    shards: int

    @property
    def step(self) -> dict[str, dict[str, Any]]:
        """Schema of a step, with the first step's value of each small field and the range of the others."""
        fields = self.schema.to_json()
        for name, values in self.first.items():
            fields[name] |= _described(values)
        return fields

    def to_json(self) -> dict[str, Any]:
        """Return the keys that scripts rely on."""
        sizes = {name: getattr(self, name) for name in ("steps_read", "steps", "bytes", "shards")}
        return {**sizes, "step": self.step}


def preview(source: Path, recipe: Recipe, options: Options) -> Preview:
    """Apply a recipe to the first trajectories of a dataset; nothing is kept."""
    transformed = recipe.applied(Dataset(source))
    steps_read = sum(shard_input.steps for shard_input in transformed.inputs)
    shards = len(transformed.inputs)
    if not shards:
        return Preview(transformed.schema, {}, 0, 0, 0, 0)
    sample = _beginning(transformed)
    first = next((block for block in sample.blocks(0, Counter()) if block.steps), None)
    steps, size = _written(sample, options)
    times = steps_read / sample.inputs[0].steps
    values = {name: rows[0] for name, rows in first.data.items()} if first else {}
    return Preview(transformed.schema, values, steps_read, round(steps * times), round(size * times), shards)


def _described(values: NDArray[np.generic]) -> dict[str, Any]:
    if values.size <= FEW:
        return {"value": [_finite(value) for value in values.ravel().tolist()]}
    return {"min": _finite(values.min().item()), "max": _finite(values.max().item())}


def _finite(value: Any) -> Any:
    return value if value - value == 0 else None


def _beginning(transformed: Transformed) -> Transformed:
    """Return the first trajectories of the recipe's input, of two thousand steps or more."""
    shard_input = transformed.inputs[0]
    ends = np.cumsum(transformed.dataset.trajectories.length[shard_input.trajectories])
    count = int(np.searchsorted(ends, _STEPS)) + 1
    steps = min(int(ends[:count][-1]), shard_input.steps)
    return replace(
        transformed, inputs=[replace(shard_input, trajectories=shard_input.trajectories[:count], steps=steps)]
    )


def _written(sample: Transformed, options: Options) -> tuple[int, int]:
    """Return steps and bytes of a shard made of the sample."""
    shards = ShardFormat(sample.schema, options.store, options.effective_codec)
    shards = replace(shards, dictionaries=train_dictionaries(sample.blocks(0, Counter()), shards))
    with temporary_directory() as folder:
        record = write_shard(folder / "sample", shard_name(0), shards, sample.blocks(0, Counter()))
    return record.steps, record.bytes
