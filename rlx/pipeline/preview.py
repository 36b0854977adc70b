"""The preview of a recipe for a dataset: its first step, and the size of the result."""

import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.pipeline.options import Options
from rlx.pipeline.recipe import Recipe
from rlx.pipeline.transformed import Transformed
from rlx.schema import Schema
from rlx.store.dataset import Dataset
from rlx.store.layout import shard_name
from rlx.store.writer import ShardFormat, train_dictionaries, write_shard

# Whole trajectories of at least this many steps are previewed.
_STEPS = 2048
FEW = 8  # values of a field that are shown; of more, the range


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


def _described(values: NDArray[np.generic]) -> dict[str, Any]:
    if values.size <= FEW:
        return {"value": [_finite(value) for value in values.ravel().tolist()]}
    return {"min": _finite(values.min().item()), "max": _finite(values.max().item())}


def _finite(value: Any) -> Any:
    return value if value - value == 0 else None


def preview(source: Path, recipe: Recipe, options: Options) -> Preview:
    """Apply a recipe to the first trajectories of a dataset; nothing is kept.

    Raises:
        TransformError: the recipe does not suit the dataset.
    """
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
    with tempfile.TemporaryDirectory(prefix="rlx-") as folder:
        record = write_shard(Path(folder) / "sample", shard_name(0), shards, sample.blocks(0, Counter()))
    return record.steps, record.bytes
