"""Recipes: the changes to a dataset, and their description in the lineage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlx.errors import TransformError
from rlx.formats.common.source import MAX_BLOCK_STEPS
from rlx.pipeline.transformed import Transformed, chosen, read_input, shard_inputs
from rlx.store.dataset import Dataset
from rlx.store.statistics import merge_statistics
from rlx.transform.chain import fitted
from rlx.transform.code import UserCode
from rlx.transform.function import Function
from rlx.transform.protocol import Learner, Selection, Transform
from rlx.transform.registry import described

_OF_REWARDS = frozenset({"clip_reward", "sign_reward", "scale_reward", "frame_skip", "n_step", "relabel"})


@dataclass(frozen=True, slots=True)
class Recipe:
    """Selections, then transforms, in this order.

    Args:
        transforms: what ``rlx.transform.registry.parse`` makes.
        steps: use only the first steps of the kept trajectories; all if not given.

    Raises:
        TransformError: a selection comes after a transform.
    """

    transforms: Sequence[Transform | Learner | Selection]
    steps: int | None = None

    def __post_init__(self) -> None:
        kinds = [isinstance(transform, Selection) for transform in self.transforms]
        if kinds != sorted(kinds, reverse=True):
            late = described(self.transforms[len(kinds) - 1 - kinds[::-1].index(True)])
            raise TransformError(
                f"{late} chooses among trajectories as the dataset has them: expected it before all that changes steps"
            )

    def applied(self, dataset: Dataset) -> Transformed:
        """Return a dataset on its way through the transforms.

        Raises:
            TransformError: they do not suit it.
        """
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
        """Return the recipe as the lineage tells it: enough to see whether another one would give the same."""
        entry: dict[str, Any] = {"transforms": [described(transform) for transform in self.transforms]}
        if code := {one.code.name: one.code.sha256 for one in self.transforms if isinstance(one, UserCode)}:
            entry["code"] = code
        if self.steps is not None:
            entry["steps"] = self.steps
        return entry


def _notes(dataset: Dataset, changes: Sequence[Transform | Learner]) -> Mapping[str, Any]:
    """Return the notes of the data, with the changes of the rewards since."""
    notes = dict(dataset.manifest.notes)
    texts = [text for text in map(described, changes) if text.partition(":")[0] in _OF_REWARDS]
    if texts:
        notes["rewards"] = ", then ".join([*([str(notes["rewards"])] if "rewards" in notes else []), *texts])
    return notes
