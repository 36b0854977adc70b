"""Storages of rlx in TorchRL's buffers, and TorchRL's samplers in rlx's, beside TorchRL alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rlx
from rlx.errors import OptionError

pytest.importorskip("torchrl.data", reason="TorchRL is not installed")
pytest.importorskip("gymnasium", reason="gymnasium is not installed")

from torchrl.data import LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer
from torchrl.data.replay_buffers import samplers
from torchrl.data.replay_buffers.writers import ImmutableDatasetWriter

from rlx.integrations.torchrl import Sampler, Storage
from tests.factories import collected

_SAMPLERS = {
    "random": lambda: samplers.RandomSampler(),
    "without replacement": lambda: samplers.SamplerWithoutReplacement(),
    "slices": lambda: samplers.SliceSampler(slice_len=4),
    "slices by done": lambda: samplers.SliceSampler(slice_len=4, end_key=("next", "done"), traj_key=None),
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> rlx.Dataset:
    return rlx.open(collected("CartPole-v1", tmp_path_factory.mktemp("torchrl") / "data", steps=300, seed=0))


def _buffer(storage: Any, sampler: Any, **options: Any) -> Any:
    made = ReplayBuffer(storage=storage, sampler=sampler, batch_size=16, collate_fn=lambda batch: batch, **options)
    made.set_rng(torch.Generator().manual_seed(7))
    return made


def _check_equal(one: Any, other: Any) -> None:
    keys = set(one.keys(True, True)) & set(other.keys(True, True))
    assert {"observation", ("next", "reward"), ("next", "truncated")} <= keys
    for key in keys:
        assert torch.equal(one[key], other[key]), key


@pytest.mark.parametrize("kind", _SAMPLERS)
def test_a_dataset_gives_the_batches_of_torchrls_own_storage(dataset: rlx.Dataset, kind: str) -> None:
    own = _buffer(LazyTensorStorage(len(dataset)), _SAMPLERS[kind]())
    own.extend(dataset[:])
    ours = _buffer(Storage(dataset), _SAMPLERS[kind](), writer=ImmutableDatasetWriter())
    for _ in range(3):
        torch.manual_seed(1)
        expected = own.sample()
        torch.manual_seed(1)
        _check_equal(ours.sample(), expected)
    _check_equal(ours[3], own[3])
    _check_equal(ours[5:9], own[5:9])


def test_steps_are_written_as_in_torchrls_own_storage(dataset: rlx.Dataset) -> None:
    buffers = [
        TensorDictReplayBuffer(storage=storage, collate_fn=lambda batch: batch, batch_size=16)
        for storage in (LazyTensorStorage(80), Storage(rlx.buffer.CompressedStorage(80)))
    ]
    for buffer in buffers:
        for start in range(0, 300, 30):  # more than there is room for
            buffer.extend(dataset[start : start + 30])
        buffer[3:5] = buffer[7:9]
    own, ours = buffers
    assert len(ours) == len(own) == 80
    _check_equal(ours[torch.arange(80)], own[torch.arange(80)])
    assert torch.equal(ours[:]["observation"], own[:]["observation"])
    assert ("next", "reward") in [*ours[:]]
    ours.empty()
    assert len(ours) == 0


@pytest.mark.parametrize("kind", _SAMPLERS)
@pytest.mark.parametrize("is_dataset", [True, False], ids=["dataset", "memory"])
def test_torchrls_samplers_draw_from_rlx(dataset: rlx.Dataset, kind: str, is_dataset: bool) -> None:
    storage = dataset if is_dataset else rlx.buffer.LazyTensorStorage(len(dataset))
    buffer = rlx.ReplayBuffer(storage=storage, sampler=Sampler(_SAMPLERS[kind]()), batch_size=16)
    if not is_dataset:
        buffer.extend(dataset[:])
    batch, info = buffer.sample(return_info=True)
    rows = info["index"]
    assert torch.equal(batch["observation"], dataset[rows]["observation"])
    if "slices" in kind:
        assert (np.diff(rows.reshape(4, 4)) == 1).all()
        ids = batch["collector", "traj_ids"].reshape(4, 4)
        assert (ids == ids[:, :1]).all()
        assert batch["next", "truncated"].reshape(4, 4)[:, -1].all()  # as TorchRL marks the end of a slice
    if kind == "without replacement":
        drawn = [*rows.tolist(), *(row for batch in buffer for row in batch["index"].tolist())]
        assert len({*drawn}) == len(drawn) == len(dataset)


def test_the_state_of_torchrls_samplers(dataset: rlx.Dataset) -> None:
    def made() -> rlx.ReplayBuffer:
        sampler = Sampler(samplers.SamplerWithoutReplacement())
        buffer = rlx.ReplayBuffer(storage=rlx.buffer.LazyTensorStorage(60), sampler=sampler, batch_size=20)
        buffer.extend(dataset[:60])
        return buffer

    buffer, other = made(), made()
    first = buffer.sample()["index"]
    with pytest.warns(UserWarning, match="not prioritized"):
        buffer.update_priority(first, 2.0)
    other.sampler.load_state_dict(buffer.sampler.state_dict())
    rest = [other.sample()["index"] for _ in range(2)]
    assert sorted(torch.cat([first, *rest]).tolist()) == [*range(60)]
    assert other.sampler.ran_out
    assert not buffer.sampler.ran_out
    with pytest.raises(OptionError, match="requires a sampler of rlx"):
        buffer.sampler.shard(0, 2)
    buffer.empty()
    assert len(buffer) == 0


def test_what_torchrl_cannot_do_is_named(dataset: rlx.Dataset, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="2 dimensions: expected 1"):
        Storage(rlx.buffer.LazyTensorStorage(10, ndim=2))
    for save in (
        lambda: Storage(rlx.buffer.ListStorage(3)).state_dict(),
        lambda: Storage(rlx.buffer.ListStorage(3)).dumps(tmp_path),
    ):
        with pytest.raises(OptionError, match=r"rlx.ReplayBuffer\(storage=storage.steps\).dumps"):
            save()
    assert Storage(dataset).state_dict() == {}
    with pytest.raises(KeyError):
        Storage(dataset)[:]["nonsense"]
