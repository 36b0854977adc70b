from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

import rlx
from rlx.buffer.replay_buffer import ReplayBuffer
from rlx.buffer.storage.tensors import LazyTensorStorage
from rlx.buffer.transform import Compose, FrameStack, Inverted, NStep, ReturnToGo, RewardSign
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


NEIGHBOURLY = [
    NStep(3, 0.5),
    ReturnToGo(0.9),
    FrameStack(3),
    FrameStack(2, padding="zeros"),
    Compose(FrameStack(2), RewardSign(), ReturnToGo(0.5), NStep(2, 0.5), double),
]


def rows_of_steps(*shape: int, ids: bool) -> TensorDict:
    """Steps of many episodes, numbered, which continue from row to row for all that they say themselves."""
    number = torch.arange(torch.Size(shape).numel()).reshape(*shape, 1)
    done = number % 5 == 3
    after = {"a": number + 1, "reward": number.float(), "done": done}
    steps = TensorDict({"a": number, "observation": number, "next": {**after, "observation": number + 1}}, shape)
    return steps.set("episode", torch.zeros(shape, dtype=torch.int64)) if ids else steps


@pytest.mark.parametrize("transform", NEIGHBOURLY, ids=lambda one: repr(one).partition(" at 0x")[0])
@pytest.mark.parametrize("shape", [(9,), (1, 9), (4, 7), (2, 3, 4), (3, 1), (0, 4)])
@pytest.mark.parametrize("ids", [False, True])
def test_a_call_with_a_batch_gives_what_a_buffer_of_each_row_does(
    transform: Any, shape: tuple[int, ...], ids: bool
) -> None:
    batch = rows_of_steps(*shape, ids=ids)
    kept = batch.clone()
    found = transform(batch)
    assert found.shape == batch.shape
    assert bool((batch == kept).all()), "the batch is left as it is"
    for row, its in zip(batch.reshape(-1, shape[-1]), found.reshape(-1, shape[-1]), strict=True):
        stored = ReplayBuffer(storage=LazyTensorStorage(shape[-1]), transform=transform)
        stored.extend(row)
        assert bool((stored[:] == its).all())
        assert set(stored[:].keys(True, True)) == set(its.keys(True, True))


@pytest.mark.parametrize("transform", NEIGHBOURLY, ids=lambda one: repr(one).partition(" at 0x")[0])
def test_a_call_with_a_padded_batch_leaves_the_padding_out(transform: Any) -> None:
    lengths = [3, 1, 0, 3]
    batch = rows_of_steps(4, 3, ids=False)  # the second row would continue the first
    batch["collector", "mask"] = torch.arange(3) < torch.tensor(lengths)[:, None]
    found = transform(batch)
    assert torch.equal(found["collector", "mask"], batch["collector", "mask"])
    for row, its, length in zip(batch, found, lengths, strict=True):
        whole = transform(row[:length].exclude("collector"))
        assert not length or bool((whole == its[:length].exclude("collector")).all())
        assert not any(leaf.any() for leaf in its[length:].exclude("collector").values(True, True))


def test_a_call_needs_a_dimension_of_time() -> None:
    with pytest.raises(TransformError, match=r"shape \[\]: expected \[\*B, T\] steps"):
        NStep(3)(rows_of_steps(3, ids=True)[0])
