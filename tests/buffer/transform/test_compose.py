from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

import rlx
from rlx.buffer.replay_buffer import ReplayBuffer
from rlx.buffer.storage.tensors import LazyTensorStorage
from rlx.buffer.transform import Compose, FrameStack, Inverted, NStep, RewardSign
from rlx.errors import TransformError
from rlx.transform.images import Resize


class Add:
    """Adds on the way out what it takes off on the way in."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, batch: TensorDictBase) -> TensorDictBase:
        return batch.set("a", batch["a"] + self.number)

    def inv(self, steps: TensorDictBase) -> TensorDictBase:
        return steps.set("a", steps["a"] - self.number)


def double(batch: TensorDictBase) -> TensorDictBase:
    return batch.set("a", batch["a"] * 2)


def numbers(*values: int) -> Any:
    return TensorDict({"a": torch.tensor(values)}, [len(values)])


def test_order_out_and_in() -> None:
    both = Compose(Add(1), Compose(double, Add(10)))
    assert len(both) == 3
    assert both(numbers(5))["a"].tolist() == [22]
    assert both.inv(numbers(5))["a"].tolist() == [-6]


def test_appending_and_inserting() -> None:
    both = Compose(double).append(Add(1)).insert(0, Add(3))
    assert both(numbers(1))["a"].tolist() == [9]
    with pytest.raises(IndexError, match="expected -3 to 3"):
        both.insert(4, double)


def buffer(*transforms: Any) -> ReplayBuffer:
    made = ReplayBuffer(storage=LazyTensorStorage(4), transform=Compose(*transforms))
    made.extend(numbers(5))
    return made


def test_a_buffer_applies_inv_to_what_is_written_and_the_transform_to_what_is_read() -> None:
    made = buffer(Add(2))
    assert made.storage.get(torch.tensor([0]).numpy())["a"].tolist() == [3]
    assert made.sample(1)["a"].tolist() == made[[0]]["a"].tolist() == [5]
    made[[0]] = numbers(9)
    assert made.storage.get(torch.tensor([0]).numpy())["a"].tolist() == [7]


def test_inverted_swaps_the_two() -> None:
    made = ReplayBuffer(storage=LazyTensorStorage(4)).append_transform(Add(2), invert=True)
    made.extend(numbers(5))
    assert made.storage.get(torch.tensor([0]).numpy())["a"].tolist() == [7]
    assert made.sample(1)["a"].tolist() == [5]
    assert Inverted(double)(numbers(3))["a"].tolist() == [3]


def test_neighbours_cannot_be_looked_at_before_they_are_stored() -> None:
    with pytest.raises(TypeError, match="needs stored steps"):
        Inverted(FrameStack(2))


def test_a_transform_that_returns_nothing_is_named() -> None:
    def forgetful(batch: TensorDictBase) -> None:
        batch["a"] += 1

    wrong: Any = forgetful
    with pytest.raises(TransformError, match=r"forgetful .* returned None, expected the batch"):
        buffer(wrong).sample(1)
    with pytest.raises(TransformError, match="returned None, expected the batch"):
        buffer(wrong, FrameStack(2, keys=["a"])).sample(1)
    with pytest.raises(TransformError, match="returned None, expected the batch"):
        buffer(wrong)[0]
    with pytest.raises(TransformError, match="returned None, expected the batch"):
        next(iter(rlx.loader(buffer(double), 1, transform=wrong)))


def test_inserting_into_a_buffer() -> None:
    made = buffer(double).insert_transform(0, Add(1)).append_transform(Add(100))
    assert made.sample(1)["a"].tolist() == [112]


@pytest.mark.parametrize("wrong", [object(), [RewardSign()], Resize(42, 42)])
def test_what_is_no_transform_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"transform: expected a function .* or a transform of rlx\.buffer, found"):
        ReplayBuffer(transform=wrong)
    with pytest.raises(TypeError, match="transform: expected"):
        ReplayBuffer().append_transform(wrong)


@pytest.mark.parametrize("kind", [RewardSign, NStep])
def test_a_class_of_transforms_is_no_transform(kind: Any) -> None:
    with pytest.raises(TypeError, match=f"found the class {kind.__name__} itself: give {kind.__name__}"):
        ReplayBuffer(transform=kind)
