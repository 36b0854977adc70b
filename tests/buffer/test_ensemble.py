from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from rlx.buffer.ensemble import ReplayBufferEnsemble
from rlx.buffer.ensemble_parts import SamplerEnsemble, StorageEnsemble, WriterEnsemble
from rlx.buffer.replay_buffer import ReplayBuffer
from rlx.buffer.sampler.steps import RandomSampler
from rlx.buffer.storage.tensors import LazyTensorStorage
from rlx.buffer.tensordict_replay_buffer import TensorDictReplayBuffer
from rlx.buffer.transform import FrameStack, RewardSign
from rlx.buffer.writer import ImmutableDatasetWriter, RoundRobinWriter
from rlx.errors import SamplingError, SchemaMismatchError


def filled(value: int, kind: Any = ReplayBuffer, **more: Any) -> Any:
    made = kind(storage=LazyTensorStorage(10), sampler=RandomSampler(seed=value))
    made.extend(TensorDict({"a": torch.full((5,), value), **more}, [5]))
    return made


def test_all_buffers_give_a_row_each() -> None:
    ensemble = ReplayBufferEnsemble(filled(0), filled(1), filled(2), sample_from_all=True, batch_size=6)
    batch, info = ensemble.sample(return_info=True)
    assert batch["a"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert batch["index", "buffer_ids"].tolist() == batch["a"].tolist()
    assert info["buffer_ids"].tolist() == [0, 1, 2]
    assert len(ensemble) == 15
    assert ensemble.num_buffers == 3
    assert ensemble[1].sample(1)["a"].tolist() == [1]


def test_buffers_are_drawn_by_their_probabilities() -> None:
    ensemble = ReplayBufferEnsemble(filled(0), filled(1), p=[1, 3], num_buffer_sampled=4, seed=0)
    drawn = torch.cat([ensemble.sample(8)["a"][:, 0] for _ in range(500)])
    assert drawn.float().mean().item() == pytest.approx(0.75, abs=0.03)
    assert set(ReplayBufferEnsemble(filled(0), filled(1), p=[0, 1], seed=0).sample(2)["a"].flatten().tolist()) == {1}


def test_the_same_seed_gives_the_same_batches_and_goes_on() -> None:
    def make() -> ReplayBufferEnsemble:
        return ReplayBufferEnsemble(filled(0), filled(1), num_buffer_sampled=3, batch_size=3, seed=5)

    first, second = make(), make()
    assert all((first.sample() == second.sample()).all() for _ in range(10))
    batches = iter(first)
    assert (next(batches) == second.sample()).all()


def test_keys_that_not_all_have_are_left_out_and_rows_are_kept() -> None:
    ensemble = ReplayBufferEnsemble(
        filled(0, TensorDictReplayBuffer, b=torch.zeros(5)), filled(1, TensorDictReplayBuffer), sample_from_all=True
    )
    batch = ensemble.sample(4)
    assert sorted(batch.keys()) == ["a", "index"]
    assert batch["index", "index"].shape == (2, 2)


def test_texts_are_in_the_batch() -> None:
    buffers = [ReplayBuffer(storage=LazyTensorStorage(4)) for _ in range(2)]
    for number, buffer in enumerate(buffers):
        steps = TensorDict({"a": torch.arange(4)}, [4])
        steps["task"] = [f"{number}, {step * number}" for step in range(4)]
        buffer.extend(steps)
    batch = ReplayBufferEnsemble(*buffers, sample_from_all=True).sample(6)
    assert list(batch["task"][0]) == ["0, 0"] * 3
    assert list(batch["task"][1]) == [f"1, {step}" for step in batch["a"][1].tolist()]


def test_transforms_of_buffers_then_of_the_ensemble() -> None:
    def add(batch: Any) -> Any:
        return batch.set("a", batch["a"] + 1)

    def double(batch: Any) -> Any:
        return batch.set("a", batch["a"] * 2)

    one = filled(1).append_transform(add)
    ensemble = ReplayBufferEnsemble(one, filled(1), sample_from_all=True, transform=double)
    assert ensemble.sample(2)["a"].tolist() == [[4], [2]]
    collated = ReplayBufferEnsemble(one, filled(1), sample_from_all=True, collate_fn=torch.cat)  # type: ignore[arg-type]
    assert collated.sample(2)["a"].tolist() == [2, 1]


def test_arguments_that_do_not_go_together() -> None:
    one, two = filled(0), filled(1)
    for arguments, message in (
        ({"p": [1, 1], "sample_from_all": True}, "either sample_from_all or p"),
        ({"p": [1]}, "2 probabilities of at least 0"),
        ({"p": [0, 0]}, "not all 0"),
        ({"num_buffer_sampled": 0}, "num_buffer_sampled 0: expected at least 1"),
        ({"transform": FrameStack(2)}, "belongs to the buffers"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            ReplayBufferEnsemble(one, two, **arguments)
    with pytest.raises(ValueError, match="at least one"):
        ReplayBufferEnsemble()
    ensemble = ReplayBufferEnsemble(one, two, transform=RewardSign())
    with pytest.raises(SamplingError, match="batch of 3 steps: expected a multiple of 2"):
        ensemble.sample(3)
    with pytest.raises(ValueError, match="no batch size"):
        ensemble.sample()


def test_shapes_that_do_not_stack() -> None:
    other = ReplayBuffer(storage=LazyTensorStorage(10))
    other.extend(TensorDict({"a": torch.zeros(5, 3)}, [5]))
    with pytest.raises(SchemaMismatchError, match=r"do not stack: {'a': \[\[2\], \[2, 3\]\]}"):
        ReplayBufferEnsemble(filled(0), other, sample_from_all=True).sample(4)


def numbered(value: int, **options: Any) -> ReplayBuffer:
    made = TensorDictReplayBuffer(storage=LazyTensorStorage(10), sampler=RandomSampler(seed=value), **options)
    made.extend(TensorDict({"a": 100 * value + torch.arange(5)}, [5]))
    return made


def test_buffers_and_rows_are_indexed() -> None:
    ensemble = ReplayBufferEnsemble(numbered(0), numbered(1), numbered(2), p=[0, 1, 3], batch_size=6, seed=0)
    assert ensemble[-1] is ensemble[2]
    assert ensemble[1, 3]["a"].item() == 103
    assert ensemble[0, 1:3]["a"].tolist() == [1, 2]
    assert ensemble[:, 1]["a"].tolist() == [1, 101, 201]
    assert ensemble[..., [4, 0]]["a"].tolist() == [[4, 0], [104, 100], [204, 200]]
    assert ensemble[[2, 0], 1:]["a"].tolist() == [[201, 202, 203, 204], [1, 2, 3, 4]]
    assert ensemble[torch.tensor([1, 2]), torch.tensor([0])]["a"].tolist() == [[100], [200]]
    some = ensemble[1:]
    assert (some.num_buffers, len(some)) == (2, 10)
    assert some[0] is ensemble[1]
    drawn = torch.cat([some.sample()["index", "buffer_ids"][:, 0] for _ in range(500)])
    assert drawn.float().mean().item() == pytest.approx(0.75, abs=0.05)
    for wrong in (3, (0, 5), [[0]], 1.5):
        with pytest.raises(IndexError):
            ensemble[wrong]


def test_transforms_are_added_before_and_behind() -> None:
    def times(factor: int) -> Any:
        return lambda batch: batch.set("a", batch["a"] * factor)

    def add(batch: Any) -> Any:
        return batch.set("a", batch["a"] + 1)

    ensemble = ReplayBufferEnsemble(filled(1), filled(1), transform=times(2), batch_size=2)
    assert ensemble.append_transform(add) is ensemble
    assert set(ensemble.sample()["a"].flatten().tolist()) == {3}
    ensemble.insert_transform(0, add)
    assert set(ensemble.sample()["a"].flatten().tolist()) == {5}
    assert ensemble[:, 0]["a"].tolist() == [5, 5]
    with pytest.raises(ValueError, match="belongs to the buffers"):
        ensemble.append_transform(FrameStack(2))


def test_a_checkpoint_is_one_of_all_buffers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(path: Path) -> None:  # noqa: ARG001
        raise OSError("disk full")

    def make() -> ReplayBufferEnsemble:
        return ReplayBufferEnsemble(numbered(0), numbered(1), num_buffer_sampled=3, batch_size=6, seed=1)

    first, second = make(), make()
    for _ in range(3):
        first.sample()
    first[0].extend(TensorDict({"a": torch.arange(50, 53)}, [3]))
    first.dumps(tmp_path / "saved")
    second.loads(tmp_path / "saved")
    assert all((first.sample() == second.sample()).all() for _ in range(10))
    # A checkpoint that could not be finished leaves the one before.
    second[0].extend(TensorDict({"a": torch.arange(60, 61)}, [1]))
    monkeypatch.setattr(second[1], "dumps", raises)
    with pytest.raises(OSError, match="disk full"):
        second.dumps(tmp_path / "saved")
    third = make()
    third.loads(tmp_path / "saved")
    assert (third[0][:] == first[0][:]).all()
    assert len(list((tmp_path / "saved").iterdir())) == 2
    with pytest.raises(SchemaMismatchError, match="is a checkpoint of 2 parts, not 1"):
        ReplayBufferEnsemble(numbered(0)).loads(tmp_path / "saved")


def parts() -> dict[str, Any]:
    storages = StorageEnsemble(
        *(numbered(value).storage for value in (0, 1)), transforms=[None, lambda steps: steps.set("a", -steps["a"])]
    )
    samplers = SamplerEnsemble(RandomSampler(seed=1), RandomSampler(seed=2), sample_from_all=True, seed=3)
    writers = WriterEnsemble(RoundRobinWriter(), ImmutableDatasetWriter())
    return {"storages": storages, "samplers": samplers, "writers": writers}


def test_a_state_goes_on_where_it_stopped() -> None:
    first, second = (ReplayBufferEnsemble(filled(0), filled(1), num_buffer_sampled=3, batch_size=3) for _ in range(2))
    first.sample()
    second.load_state_dict(first.state_dict())
    assert all((first.sample() == second.sample()).all() for _ in range(5))


def test_parts_of_an_ensemble() -> None:
    ensemble = ReplayBufferEnsemble(filled(0), filled(1), p=[1, 3], batch_size=6)
    assert ensemble.storage.max_size == 20
    assert ensemble.storage[[1]].storages == (ensemble[1].storage,)
    assert ensemble.writer[[0]].writers == (ensemble[0].writer,)
    assert ensemble.sampler[1:].samplers == (ensemble[1].sampler,)
    assert ensemble.sampler.p is not None
    assert (ensemble.sampler.p.tolist(), ensemble.sampler.num_buffer_sampled) == ([0.25, 0.75], 2)
    ensemble.writer.load_state_dict({"writers": [{"cursor": 3}, {"cursor": 4}]})
    assert ensemble.writer.state_dict() == {"writers": [{"cursor": 3}, {"cursor": 4}]}
    ensemble.shutdown()
    ensemble.empty()
    assert (len(ensemble), ensemble.batch_size) == (0, 6)
    assert repr(ensemble).count("steps=0") == 2


def test_an_ensemble_is_made_of_parts() -> None:
    ensemble = ReplayBufferEnsemble(**parts(), batch_size=8)
    batch = ensemble.sample()
    assert (batch["a"][0] == batch["index", "index"][0]).all()
    assert (batch["a"][1] == -100 - batch["index", "index"][1]).all()
    ensemble[0].extend(TensorDict({"a": torch.arange(2)}, [2]))
    with pytest.raises(TypeError, match="read-only"):
        ensemble[1].extend(TensorDict({"a": torch.arange(2)}, [2]))
    assert ensemble.write_count == 2
    assert [len(part) for part in (ensemble.storage, ensemble.sampler, ensemble.writer)] == [2, 2, 2]
    assert ensemble.storage[0] is ensemble[0].storage
    assert ensemble.sampler[1] is ensemble[1].sampler
    assert ensemble.writer[-1] is ensemble[1].writer
    assert [steps["a"].tolist() for steps in ensemble.storage[:, 3]] == [3, 103]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"storages": None}, TypeError),
        ({"samplers": None}, TypeError),
        ({"p": [1, 2]}, TypeError),
        ({"collate_fns": [None]}, ValueError),
        ({"writers": WriterEnsemble(RoundRobinWriter())}, ValueError),
    ],
)
def test_parts_that_do_not_go_together_are_refused(change: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        ReplayBufferEnsemble(**parts() | change)
    with pytest.raises(ValueError, match="1 transforms: expected 2"):
        StorageEnsemble(LazyTensorStorage(3), LazyTensorStorage(3), transforms=[None])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("index", [(0, 3), (1, slice(1, 3)), (slice(None), 2), (slice(None), [0, 4]), ([1, 0], 2)])
def test_torchrl_indexes_the_same(index: Any) -> None:
    peers = pytest.importorskip("torchrl.data", reason="torchrl is not installed")
    theirs = []
    for value in (0, 1):
        theirs.append(peers.TensorDictReplayBuffer(storage=peers.LazyTensorStorage(10), batch_size=4))
        theirs[-1].extend(TensorDict({"a": 100 * value + torch.arange(5)}, [5]))
    expected = peers.ReplayBufferEnsemble(*theirs)[index]
    found = ReplayBufferEnsemble(numbered(0), numbered(1))[index]
    assert found["a"].tolist() == expected["a"].tolist()


def test_what_is_no_buffer_is_refused() -> None:
    with pytest.raises(TypeError, match="expected replay buffers, found object"):
        ReplayBufferEnsemble(object())  # type: ignore[arg-type]
