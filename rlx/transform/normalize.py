"""Observations with a mean of 0 and a standard deviation of 1."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rlx.block import Block
from rlx.errors import TransformError
from rlx.schema import Field, Role, Schema
from rlx.transform.keys import refuse_text
from rlx.transform.protocol import PerBlock, Seen, Transform


@dataclass(frozen=True)
class Normalize:
    """Transform that subtracts the mean of all numbers of a field, and divides by their standard deviation.

    Both are the dataset's, as its manifest gives them: of pictures they are of every sixteenth. So it has to stand
    before whatever changes the field.

    Args:
        keys: which fields; all observations that are numbers where none are named.
        eps: the standard deviation counts as this where it is less.
    """

    keys: tuple[str, ...] = ()
    eps: float = 1e-8

    def __post_init__(self) -> None:
        if not self.eps > 0:
            raise TransformError(f"eps is {self.eps}, expected more than 0")

    def learned(self, seen: Seen) -> Transform:
        """Return the transform with the means and deviations of these data.

        Raises:
            TransformError: they are not known.
        """
        moments: dict[str, tuple[float, float]] = {}
        refuse_text(seen.schema, self.keys)
        numeric = [name for name in seen.schema.names(Role.OBSERVATION) if not seen.schema[name].is_text]
        for key in self.keys or numeric:
            found = seen.statistics.get(key, {})
            if found.get("mean") is None or found.get("std") is None:
                raise TransformError(
                    f"the manifest has no mean of {key}: expected an observation that no transform has changed before"
                )
            moments[key] = (found["mean"], max(found["std"], self.eps))
        return LearnedNormalize(moments)


@dataclass(frozen=True)
class LearnedNormalize(PerBlock):
    """Subtracts and divides by numbers that are known.

    Args:
        moments: mean and standard deviation by field.
    """

    moments: Mapping[str, tuple[float, float]]

    def schema(self, schema: Schema) -> Schema:
        """Return the same with numbers of float32, or float64 where they were that."""
        changed = {key: _floating(schema[key]) for key in self.moments}
        return Schema({**schema.fields, **changed})

    def apply(self, block: Block, schema: Schema) -> Block:
        """Return the block with normalized numbers."""
        data = dict(block.data)
        for key, (mean, std) in self.moments.items():
            numbers = data[key].astype(_floating(schema[key]).dtype)
            numbers -= mean
            numbers /= std
            data[key] = numbers
        return replace(block, data=data)


def _floating(field: Field) -> Field:
    return replace(field, dtype="float64" if field.dtype == "float64" else "float32", space=None)
