"""Random shifts against a loop over padded images, in buffers and loaders that resume; and the order of channels."""

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from torch.utils.data import DataLoader

import rlx
from rlx.buffer import ChannelOrder, Compose, FrameStack, LazyTensorStorage, RandomSampler, RandomShift, ReplayBuffer
from rlx.buffer.transform.images import shifted
from rlx.errors import OptionError, TransformError
from rlx.store.dataset import Dataset
from rlx.transform.protocol import BatchChance
from tests.factories import LARGE, make_block, write_dataset


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Images whose every pixel differs, so that a shift shows."""
    block = make_block([30, 10], schema=LARGE)
    pictures = np.arange(42 * 600, dtype=np.uint16).reshape(42, 20, 30)
    block = replace(block, data={**block.data, "observation": pictures})
    return write_dataset(tmp_path_factory.mktemp("shift") / "data", [[block]], schema=LARGE)


@given(
    shape=st.lists(st.integers(1, 3), max_size=2),
    size=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    count=st.integers(0, 4),
    pad=st.integers(1, 7),
    seed=st.integers(0, 2**32),
    dtype=st.sampled_from([torch.uint8, torch.float32, torch.uint16]),
)
def test_a_shift_is_a_crop_of_the_padded_image(
    shape: list[int], size: tuple[int, int], count: int, pad: int, seed: int, dtype: torch.dtype
) -> None:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 200, (count, *shape, *size))
    shifts = rng.integers(-pad, pad + 1, (count, 2))
    found = shifted(torch.from_numpy(images).to(dtype), torch.from_numpy(shifts))
    for image, (down, right), mine in zip(images, shifts + pad, found, strict=True):
        padded = np.pad(image, [(0, 0)] * len(shape) + [(pad, pad)] * 2, mode="edge")
        cut = padded[..., down : down + size[0], right : right + size[1]]
        assert np.array_equal(mine.numpy(), cut)
    assert found.dtype == dtype


def test_all_shifts_are_equally_likely_and_those_of_next_are_apart() -> None:
    images = torch.arange(9 * 9).reshape(1, 9, 9).expand(20000, 9, 9).clone()
    batch = TensorDict({"observation": images, "next": {"observation": images.clone()}}, [20000])
    made = RandomShift(1, seed=3)(batch)
    shifts = made["observation"][:, 4, 4] - 40
    after = made["next", "observation"][:, 4, 4] - 40
    counts = torch.stack([torch.bincount(10 + moved, minlength=21) for moved in (shifts, after)])
    expected = [10 + 9 * down + right for down in (-1, 0, 1) for right in (-1, 0, 1)]
    assert ((counts[:, expected] - 20000 / 9).abs() < 250).all()
    assert len({*zip(shifts.tolist(), after.tolist(), strict=True)}) == 81


def _batches(buffer: Any, count: int) -> list[list[int]]:
    return [buffer.sample()["observation"].reshape(-1).tolist() for _ in range(count)]


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("kind", ["dataset", "memory"])
def test_a_buffer_resumes_to_the_bit(data: Dataset, kind: str, prefetch: int) -> None:
    def buffer() -> ReplayBuffer:
        made = ReplayBuffer(
            storage=data if kind == "dataset" else LazyTensorStorage(40),
            sampler=RandomSampler(seed=2),
            transform=Compose(FrameStack(2), RandomShift(3, seed=5), RandomShift(1, seed=5)),
            batch_size=4,
            prefetch=prefetch,
        )
        if kind == "memory":
            made.extend(data[:].select("observation", "action", "next"))
        return made

    one = buffer()
    whole = _batches(buffer(), 7)
    assert _batches(one, 3) == whole[:3]
    other = buffer()
    other.load_state_dict(one.state_dict())
    # torch cannot unpickle memory of uint16.
    moved = pickle.loads(pickle.dumps(one)) if kind == "dataset" else other
    assert _batches(one, 4) == whole[3:]
    assert _batches(moved, 4) == whole[3:]
    assert moved is other or _batches(other, 4) == whole[3:]


@pytest.mark.parametrize("slice_len", [None, 2])
def test_a_loader_gives_the_same_for_any_ranks_and_workers_and_resumes(data: Dataset, slice_len: int | None) -> None:
    def loader(**options: Any) -> Any:
        shift = RandomShift(3, seed=5)
        return rlx.loader(data, 8, slice_len=slice_len, transform=shift, seed=1, **options)

    def images(batches: Any) -> list[torch.Tensor]:
        return [batch["observation"] for batch in batches]

    whole = images(loader())
    ranks = [images(loader(rank=rank, world_size=2)) for rank in range(2)]
    assert all(torch.equal(batch, torch.cat(parts)) for batch, *parts in zip(whole, *ranks, strict=True))
    workers = images(DataLoader(loader(), batch_size=None, num_workers=2, collate_fn=rlx.buffer.unchanged))
    assert all(torch.equal(batch, other) for batch, other in zip(whole, workers, strict=True))
    one, two = loader(prefetch=3, threads=2), loader()
    batches = iter(one)
    next(batches)
    two.load_state_dict(one.state_dict())
    assert all(torch.equal(batch, other) for batch, other in zip(whole[1:], images(two), strict=True))
    again = loader()
    first, second = images(again), images(again)
    assert not torch.equal(torch.cat(first).sort(0).values, torch.cat(second).sort(0).values)


def test_sources_are_shifted_by_their_place_in_the_batch(data: Dataset) -> None:
    def batches(**ranks: Any) -> list[Any]:
        return list(rlx.loader([data, data], 8, transform=RandomShift(2, seed=0), seed=4, **ranks))

    parts = [batches(rank=rank, world_size=2) for rank in range(2)]
    for whole, one, other in zip(batches(), *parts, strict=True):
        assert torch.equal(whole["observation"], torch.cat([one["observation"], other["observation"]]))


def test_a_chance_is_a_function_of_its_place() -> None:
    assert BatchChance(3, np.empty(0, np.int64)).uniform(0, 0, 2).shape == (0, 2)
    assert (BatchChance(3).uniform(-1, 4, 1) != BatchChance(4).uniform(-1, 4, 1)).all()


def test_channels_move() -> None:
    last = torch.arange(2 * 5 * 4 * 3).reshape(2, 5, 4, 3)
    batch = TensorDict({"observation": last, "next": {"observation": last + 1}}, [2])
    made = ChannelOrder("first")(batch.clone())
    for step in range(2):
        for channel in range(3):
            assert torch.equal(made["observation"][step, channel], last[step, :, :, channel])
    assert made["next", "observation"].is_contiguous()
    assert torch.equal(ChannelOrder("last")(made)["observation"], last)
    stack = TensorDict({"pixels": torch.zeros(2, 7, 5, 4, 3)}, [2])
    assert ChannelOrder("first", keys="pixels")(stack)["pixels"].shape == (2, 7, 3, 5, 4)


def test_what_does_not_fit_is_refused(data: Dataset) -> None:
    with pytest.raises(TransformError, match="put FrameStack first"):
        Compose(RandomShift(), FrameStack(2))
    with pytest.raises(TransformError, match=r"\[5, 4, 3\]: expected images") as caught:
        RandomShift()(TensorDict({"observation": torch.zeros(2, 5, 4, 3)}, [2]))
    assert caught.value.hint == "ChannelOrder('first') moves channels before the height"
    with pytest.raises(TransformError, match=r"\[5, 4\]: expected images with channels"):
        ChannelOrder("first")(TensorDict({"observation": torch.zeros(2, 5, 4)}, [2]))
    with pytest.raises(TransformError, match="expected 'first' or 'last'"):
        ChannelOrder("middle")  # type: ignore[arg-type]
    with pytest.raises(TransformError, match="pad 0: expected at least 1"):
        RandomShift(0)
    with pytest.raises(OptionError, match="belongs to the loader"):
        rlx.loader(ReplayBuffer(storage=data, transform=RandomShift()), 4)
    one, other = (ReplayBuffer(storage=data, transform=RandomShift(seed=1))[:2]["observation"] for _ in range(2))
    assert torch.equal(one, other)
