"""A user's function of TED TensorDicts as a transform."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import TransformError
from rlx.schema import Schema
from rlx.seeding import seeded
from rlx.transform.code import Code
from rlx.transform.protocol import Seen, Transform
from rlx.transform.segments import join, whole
from rlx.transform.stitching import Stitching
from rlx.transform.transitions import Transitions, transitions_of

if TYPE_CHECKING:
    from rlx.transform.ted import Made

CHUNK_STEPS = 1024


class Per(StrEnum):
    """The unit in which a function is given steps."""

    BLOCK = "block"
    TRAJECTORY = "trajectory"
    STEP = "step"


@dataclass(frozen=True)
class Function:
    """A user's function, applied to steps as ``dataset[i:j]`` gives them; it returns the new ones.

    It may change values, shapes and types, add fields and leave some out. It may leave out steps, if it keeps ``index``
    or gives back all of them: where steps are left out, one trajectory ends and another one of the same episode begins.
    A field at the root and under ``next`` is an observation, which is stored once: what one step leads to is what the
    next one begins with. Randomness of torch, numpy and Python within it is seeded by the steps' place in the dataset.

    Args:
        code: the function.
        per: whether it gets a block of steps [n], one whole trajectory [n], or one step [].
        chunk_steps: steps in a block at most.
    """

    code: Code
    per: Per = Per.BLOCK
    chunk_steps: int = CHUNK_STEPS

    def __post_init__(self) -> None:
        if self.chunk_steps < 1:
            raise TransformError(f"blocks of {self.chunk_steps} steps: expected 1 or more")

    def __str__(self) -> str:
        size = f",chunk={self.chunk_steps}" if self.per == Per.BLOCK else ""
        return f"fn:{self.code.name},per={self.per}{size}"

    def learned(self, seen: Seen) -> Transform:
        """Return the function with the schema of what it makes of the first steps of which it leaves any.

        Raises:
            TransformError: it fails on them, or no step reaches it.
        """
        first: tuple[Made, Transitions] | None = None
        for given in self.transitions(seen.blocks(), seen.schema, seen.start):
            first = self.made(given, seen.schema), given
            if len(first[0].places):  # where all steps are left out, nothing is said of what a step holds
                break
        if first is None:
            raise TransformError(f"{self.code.name} has no step to be applied to")
        with self.at(first[1]):
            return LearnedFunction(self, seen.start, _with_spaces(*first, seen.schema))

    def transitions(self, blocks: Iterator[Block], schema: Schema, start: NDArray[np.int64]) -> Iterator[Transitions]:
        """Yield the steps as the function is given them, but for ``step``: of those, a thousand at a time."""
        if self.per == Per.TRAJECTORY:
            blocks = (join(group) for group in whole(blocks))
        for given in transitions_of(blocks, schema, start):
            if self.per == Per.TRAJECTORY:
                stops = np.flatnonzero(given.is_last) + 1
            else:
                size = self.chunk_steps if self.per == Per.BLOCK else CHUNK_STEPS
                stops = np.append(np.arange(size, given.steps, size), given.steps)
            for first, stop in pairwise([0, *stops.tolist()]):
                yield given.part(first, stop)

    def made(self, given: Transitions, schema: Schema) -> "Made":
        """Return the result of the function for some steps.

        Raises:
            TransformError: it fails, or what it gives back cannot be stored; names the trajectory.
        """
        from rlx.transform.ted import made, stacked, ted  # noqa: PLC0415  (torch takes seconds to import)

        steps = ted(given, schema)
        if self.per != Per.STEP:
            result = self._called(steps, given, 0, given.steps)
        else:
            results = [self._called(step, given, place, place + 1) for place, step in enumerate(steps.unbind(0))]
            with self.at(given):
                result = stacked(results)
        with self.at(given):
            return made(result, given)

    def _called(self, steps: Any, given: Transitions, start: int, stop: int) -> Any:
        """Return the result of the function for the steps from start to stop."""
        function = self.code.load()
        try:
            with seeded(int(given.index[start])):
                return function(steps)
        except (Exception, SystemExit) as exc:  # whatever a user's function raises
            where = given.part(start, stop)
            raise TransformError(f"{self.code.name} fails on {where}: {type(exc).__name__}: {exc}") from exc

    @contextmanager
    def at(self, given: Transitions) -> Iterator[None]:
        """Name the function and the trajectories in errors within this context."""
        try:
            yield
        except TransformError as exc:
            raise TransformError(f"{self.code.name}: {given}: {exc}") from exc


@dataclass(frozen=True)
class LearnedFunction:
    """A function of which it is known what a step holds afterwards.

    Args:
        function: which.
        start: [N] number of the first step of every trajectory.
        after: what a step holds afterwards.
    """

    function: Function
    start: NDArray[np.int64]
    after: Schema

    def schema(self, schema: Schema) -> Schema:  # noqa: ARG002  (it is known)
        """Return the schema of the result."""
        return self.after

    def blocks(self, blocks: Iterator[Block], schema: Schema) -> Iterator[Block]:
        """Yield the results of the function."""
        from rlx.transform.ted import no_steps  # noqa: PLC0415  (torch takes seconds to import)

        stitching = Stitching(self.after)
        for given in self.function.transitions(blocks, schema, self.start):
            made = self.function.made(given, schema)
            if not len(made.places):
                made = no_steps(self.after)
            with self.function.at(given):
                _check(made, self.after)
            block = stitching.block(given, made.places, made.data, made.next)
            if len(block.lengths):
                yield block


def _with_spaces(made: "Made", given: Transitions, before: Schema) -> Schema:
    """Return the schema of the result; fields that the function left unchanged keep their spaces."""
    after = made.schema()
    kept = {
        name: replace(field, space=before[name].space)
        for name, field in after.fields.items()
        if name in before.fields
        and replace(before[name], space=None) == field
        and np.array_equal(made.data[name], given.data[name][made.places], equal_nan=field.dtype.startswith("float"))
    }
    return Schema({**after.fields, **kept})


def _check(made: "Made", after: Schema) -> None:
    """Raise TransformError where the result does not fit the schema."""
    found = made.schema()
    if differing := [name for name in sorted({*found, *after}) if _kind(found, name) != _kind(after, name)]:
        name = differing[0]
        raise TransformError(
            f"it makes {name} {_kind(found, name)}, expected {_kind(after, name)} as of the first steps"
        )
    for name, field in after.fields.items():
        if field.dtype.startswith("float") and (name == "reward" or field.space is not None):
            rows = [made.data[name], *([made.next[name]] if name in made.next else [])]
            if any(np.isnan(values).any() for values in rows):
                raise TransformError(f"it makes NaN of {name}: expected numbers")


def _kind(schema: Schema, name: str) -> str:
    field = schema.fields.get(name)
    return "nothing" if field is None else f"{field.role} {field.dtype}{list(field.shape)}"
