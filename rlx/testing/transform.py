"""What every transform of datasets keeps to: a suite that a transform's own test file subclasses.

A subclass says how to make one, and perhaps what data suit it::

    class TestNegateReward(TransformContract):
        transform = NegateReward()
        text = "negate_reward"
"""

import pickle
from collections.abc import Sequence
from dataclasses import is_dataclass
from typing import ClassVar

import numpy as np
import pytest

from rlx.block import Block
from rlx.schema import Role, Schema
from rlx.testing.factories import SMALL, cut, make_block
from rlx.testing.source import merge, same
from rlx.transform.protocol import Transform
from rlx.transform.registry import described, parse


class TransformContract:
    """The tests; ``transform`` and ``text`` come from the subclass.

    Attributes:
        transform: one that is made.
        text: what ``rlx preprocess --transform`` takes for it; empty for one that has no name.
        data: schema of the steps that it is given.
    """

    transform: ClassVar[Transform]
    text: ClassVar[str] = ""
    data: ClassVar[Schema] = SMALL

    def block(self) -> Block:
        """Whole trajectories, the first of one step."""
        return make_block([1, 7, 4], schema=self.data)

    def transformed(self, blocks: Sequence[Block]) -> list[Block]:
        return list(self.transform.blocks(iter(blocks), self.data))

    def test_its_parameters_are_fields(self) -> None:
        assert is_dataclass(self.transform)
        assert pickle.loads(pickle.dumps(self.transform)) == self.transform

    def test_its_text_comes_back(self) -> None:
        if not self.text:
            pytest.skip("it has no name")
        assert parse(self.text) == self.transform
        assert parse(described(self.transform)) == self.transform

    def test_blocks_have_the_schema(self) -> None:
        schema = self.transform.schema(self.data)
        for block in self.transformed([self.block()]):
            assert block.data.keys() == schema.fields.keys()
            for name, field in schema.fields.items():
                rows, finals = block.data[name], int(block.lengths.size) if field.role == Role.OBSERVATION else 0
                assert len(rows) in (block.steps, block.steps + finals), name
                assert (rows.dtype, rows.shape[1:]) == (field.numpy_dtype, field.shape), name

    def test_its_input_is_left_alone(self) -> None:
        block = self.block()
        before = {name: rows.copy() for name, rows in block.data.items()}
        for rows in block.data.values():
            rows.setflags(write=False)
        self.transformed([block])
        for name, rows in block.data.items():
            np.testing.assert_array_equal(rows, before[name])

    @pytest.mark.parametrize("steps", [[1], [2, 2], [3, 1, 5], [1] * 11])
    def test_where_blocks_end_makes_no_difference(self, steps: Sequence[int]) -> None:
        schema, block = self.transform.schema(self.data), self.block()
        whole = merge(self.transformed([block]), schema)
        assert sum(trajectory.steps for trajectory in whole) or not block.steps
        assert same(merge(self.transformed(cut(block, steps)), schema), whole)

    def test_trajectories_are_told_apart(self) -> None:
        """Several blocks of whole trajectories give what each gives by itself."""
        schema = self.transform.schema(self.data)
        blocks = [make_block([n], first_episode=n, schema=self.data) for n in (1, 5)]
        together = merge(self.transformed(blocks), schema)
        apart = [one for block in blocks for one in merge(self.transformed([block]), schema)]
        assert same(together, apart)
