"""A buffer of a dataset and of one's own steps: exact fractions, annealed, and continued where they stopped."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

import rlx
from rlx.buffer import (
    LazyTensorStorage,
    NStep,
    OfflineToOnlineReplayBuffer,
    ReplayBuffer,
    RewardClip,
    SliceSampler,
    TensorDictReplayBuffer,
    TensorStorage,
)
from rlx.errors import OptionError, SamplingError, SchemaMismatchError
from tests.factories import make_block, write_dataset


def steps(start: int, stop: int, **more: Any) -> TensorDict:
    number = torch.arange(start, stop)
    return TensorDict({"a": number, "next": {"reward": number[:, None].float()}, **more}, [stop - start])


def buffer(**options: Any) -> OfflineToOnlineReplayBuffer:
    """Of 100 steps from 0, and others from 1000."""
    options = {"online_capacity": 50, "seed": 0, **options}
    return OfflineToOnlineReplayBuffer(TensorStorage(steps(0, 100)), **options)


def counts(batch: Any) -> tuple[int, int]:
    """Steps of the dataset, and others, of a batch in which the first ones come first."""
    ids = batch["index", "buffer_ids"]
    assert torch.equal(ids, (batch["a"] >= 1000).long())
    assert torch.equal(ids, ids.sort().values)
    assert torch.equal(batch["index", "index"], torch.where(ids == 1, batch["a"] - 1000, batch["a"]))
    return int((ids == 0).sum()), int(ids.sum())


@given(fraction=st.floats(0.001, 0.999), size=st.integers(1, 70), step=st.integers(0, 120), total=st.integers(1, 100))
def test_every_batch_has_the_fraction(fraction: float, size: int, step: int, total: int) -> None:
    made = buffer(offline_fraction=fraction, batch_size=size)
    assert counts(made.sample()) == (size, 0), "nothing is online yet"
    made.extend(steps(1000, 1030))
    assert len(made) == 130
    for expected in (fraction, fraction * max(0.0, 1 - step / total)):
        assert made.offline_fraction == expected
        offline = round(expected * size)
        assert counts(made.sample()) == counts(made.sample(size)) == (offline, size - offline)
        made.anneal(step, total)


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5, 0.62, 0.9])
def test_torchrl_draws_as_many(fraction: float) -> None:
    theirs = pytest.importorskip("torchrl.data", reason="TorchRL is not installed")
    offline = theirs.ReplayBuffer(storage=theirs.LazyTensorStorage(100))
    offline.extend(steps(0, 100))
    other = theirs.OfflineToOnlineReplayBuffer(offline, online_capacity=50, offline_fraction=fraction)
    made = buffer(offline_fraction=fraction)
    for each in (made, other):
        each.extend(steps(1000, 1030))
    for step in range(0, 12, 2):
        for each in (made, other):
            each.anneal(step, 10)
        assert made.offline_fraction == other.offline_fraction
        for size in range(1, 20):
            assert torch.equal(made.sample(size)["a"] >= 1000, other.sample(size)["a"] >= 1000)


@pytest.mark.parametrize("how", ["state_dict", "dumps", "checkpoint"])
def test_it_continues_where_it_stopped(how: str, tmp_path: Path) -> None:
    one, other = buffer(batch_size=9, offline_fraction=0.7), buffer(batch_size=9, seed=8)
    one.extend(steps(1000, 1040))
    one.anneal(1, 3)
    one.sample()
    if how == "state_dict":
        other.load_state_dict(one.state_dict())
    elif how == "dumps":
        one.dumps(tmp_path / "saved")
        other.loads(tmp_path / "saved")
    else:
        with rlx.Checkpoint(tmp_path / "saved", buffer=one) as checkpoint:
            checkpoint.save(1)
        with rlx.Checkpoint(tmp_path / "saved", buffer=other) as checkpoint:
            assert checkpoint.restore() == 1
    for step in range(1, 5):
        batches = []
        for each in (one, other):
            assert len(each) == (140 if step == 1 else 150)
            each.extend(steps(1040, 1060))  # wraps
            each.anneal(step, 4)
            batches.append(each.sample())
        assert bool((batches[0] == batches[1]).all())


def test_the_seed_decides() -> None:
    def drawn(**options: Any) -> list[int]:
        made = buffer(batch_size=20, **options)
        made.extend(steps(1000, 1040))
        numbers: list[int] = made.sample()["a"].tolist()
        return numbers

    assert drawn() == drawn()
    assert drawn(seed=1) != drawn(seed=2)
    by_generator = [drawn(seed=None, generator=torch.Generator().manual_seed(3)) for _ in range(2)]
    assert by_generator[0] == by_generator[1]


def test_a_dataset_by_itself_by_its_path_or_in_a_buffer(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", [[make_block([5, 4])]])
    sources: list[Any] = [dataset, str(tmp_path / "data"), tmp_path / "data", TensorDictReplayBuffer(storage=dataset)]
    for source in sources:
        made = OfflineToOnlineReplayBuffer(source, online_storage=LazyTensorStorage(20), batch_size=8)
        made.extend(dataset[:4])
        batch = made.sample()
        assert batch["index", "buffer_ids"].tolist() == [0] * 4 + [1] * 4
        assert len(made) == 13
        assert made.offline_buffer.storage.is_read_only
        assert np.array_equal(batch["observation"], dataset[batch["index", "index"]]["observation"])


def test_slices_of_the_dataset_and_a_transform_of_whole_batches() -> None:
    offline = TensorDictReplayBuffer(
        storage=LazyTensorStorage(50), sampler=SliceSampler(slice_len=4, traj_key="episode")
    )
    offline.extend(steps(0, 40, episode=torch.arange(40) // 10))
    made = OfflineToOnlineReplayBuffer(
        offline, online_capacity=9, batch_size=16, transform=RewardClip(0, 5), offline_fraction=0.75
    )
    made.add(steps(1000, 1001)[0])
    batch = made.sample()
    assert (batch["a"][:12].reshape(3, 4).diff(dim=1) == 1).all()
    assert batch["a"][12:].tolist() == [1000] * 4
    assert batch["next", "reward"].max() == 5
    assert "episode" not in batch.keys(), "only keys of both"  # noqa: SIM118
    made.shutdown()


def test_steps_that_do_not_go_together() -> None:
    made = buffer(batch_size=4)
    made.extend(TensorDict({"a": torch.zeros(3, 2)}, [3]))
    with pytest.raises(SchemaMismatchError, match=r"do not stack: {'a': \[\[2\], \[2, 2\]\]}"):
        made.sample()


def test_what_it_refuses() -> None:
    storage = LazyTensorStorage(10)
    for fraction in (0.0, 1.0, -0.5, 7, float("nan")):
        with pytest.raises(OptionError, match="expected more than 0 and less than 1"):
            buffer(offline_fraction=fraction)
    with pytest.raises(OptionError, match="batch_size 0: expected at least 1"):
        buffer(batch_size=0)
    with pytest.raises(TypeError, match="either online_storage or online_capacity"):
        buffer(online_capacity=None)
    with pytest.raises(TypeError, match="either online_storage or online_capacity"):
        buffer(online_storage=storage)
    with pytest.raises(TypeError, match="either seed or generator"):
        buffer(generator=torch.Generator())
    with pytest.raises(ValueError, match="needs neighbours belongs to the buffers"):
        buffer(transform=NStep(3))
    with pytest.raises(ValueError, match="no batch size"):
        buffer().sample()
    with pytest.raises(OptionError, match="batch_size 0: expected at least 1"):
        buffer().sample(0)
    for step, total in ((-1, 4), (1, 0), (0.5, 2)):
        with pytest.raises(OptionError, match=r"expected (at least|a whole number)"):
            buffer().anneal(step, total)  # type: ignore[arg-type]
    with pytest.raises(SamplingError, match="the storage is empty"):
        OfflineToOnlineReplayBuffer(ReplayBuffer(), online_storage=storage).sample(3)
    with pytest.raises(TypeError, match=r"expected a rlx.buffer.Storage"):
        OfflineToOnlineReplayBuffer(3, online_storage=storage)  # type: ignore[arg-type]
