from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rlx.buffer.ensemble_parts import BufferDraw, SamplerEnsemble, StorageEnsemble
from rlx.buffer.sampler.prioritized import PrioritizedSampler
from rlx.buffer.sampler.steps import RandomSampler, SamplerWithoutReplacement
from rlx.buffer.storage.tensors import LazyTensorStorage
from rlx.errors import SamplingError, SchemaMismatchError
from rlx.testing.sampler import ListedStorage, episodes, same, saved
from tests.buffer.sampler.chance import fits


@pytest.fixture
def storages() -> list[ListedStorage]:
    return [episodes(ListedStorage(40), 4, 5), episodes(ListedStorage(40), 7, 8, 9), episodes(ListedStorage(40), 3)]


def ensemble(seed: int = 0, **options: Any) -> SamplerEnsemble:
    samplers = RandomSampler(seed=seed), SamplerWithoutReplacement(seed=seed), PrioritizedSampler(40, 1, 1, seed=seed)
    return SamplerEnsemble(*samplers, seed=seed, **options)


def counts(sampler: SamplerEnsemble, storages: Sequence[ListedStorage], batches: int = 400) -> list[int]:
    found = Counter(portion.buffer for _ in range(batches) for portion in sampler.sample(storages, 12))
    return [found[buffer] for buffer in range(3)]


def equal(one: list[BufferDraw], other: list[BufferDraw]) -> bool:
    return len(one) == len(other) and all(
        a.buffer == b.buffer and np.array_equal(a.rows, b.rows) and same(a.info, b.info)
        for a, b in zip(one, other, strict=True)
    )


def test_portions_are_of_their_storages(storages: list[ListedStorage]) -> None:
    for portion in ensemble().sample(storages, 12):
        assert set(portion.rows.tolist()) <= set(storages[portion.buffer].steps)
        assert ("priority_weight" in portion.info) == (portion.buffer == 2)


@pytest.mark.parametrize(("options", "expected"), [({}, [1, 1, 1]), ({"p": [0.5, 0, 2]}, [1, 0, 4])])
def test_storages_by_their_probabilities(
    storages: list[ListedStorage], options: dict[str, Any], expected: list[int]
) -> None:
    assert fits(counts(ensemble(**options), storages), expected)


def test_probabilities_in_a_tensor(storages: list[ListedStorage]) -> None:
    assert fits(counts(ensemble(p=torch.tensor([1.0, 2.0, 1.0])), storages), [1, 2, 1])


def test_all_storages(storages: list[ListedStorage]) -> None:
    portions = ensemble(sample_from_all=True).sample(storages, 12)
    assert [(portion.buffer, len(portion.rows)) for portion in portions] == [(0, 4), (1, 4), (2, 4)]


@pytest.mark.parametrize("number", [1, 2, 6])
def test_some_storages(storages: list[ListedStorage], number: int) -> None:
    portions = ensemble(num_buffer_sampled=number).sample(storages, 12)
    assert [len(portion.rows) for portion in portions] == [12 // number] * number


@pytest.mark.parametrize("batch_size", [10, 0, 2])
def test_batches_that_cannot_be_divided(storages: list[ListedStorage], batch_size: int) -> None:
    with pytest.raises(SamplingError, match=f"batch of {batch_size} steps: expected a multiple of 3"):
        ensemble().sample(storages, batch_size)


def test_it_goes_on_where_it_stopped(storages: list[ListedStorage]) -> None:
    sampler, again = ensemble(), ensemble(seed=9)
    counts(sampler, storages, 5)
    again.load_state_dict(saved(sampler.state_dict()))
    assert all(equal(sampler.sample(storages, 12), again.sample(storages, 12)) for _ in range(20))


def test_shards(storages: list[ListedStorage]) -> None:
    sampler = ensemble(sample_from_all=True)
    one, other = sampler.shard(0, 2), sampler.shard(1, 2)
    rows: list[int] = []
    for shard in (one, other):
        while not shard.ran_out:
            rows += shard.sample(storages, 12)[1].rows.tolist()
    assert sorted(rows) == sorted(storages[1].steps), "no step twice from a storage without replacement"
    assert equal(sampler.sample(storages, 12), ensemble(sample_from_all=True).sample(storages, 12))


def test_bad_arguments(storages: list[ListedStorage]) -> None:
    with pytest.raises(ValueError, match="at least one sampler"):
        SamplerEnsemble()
    for p in ([1, 1], [1, -1, 1], [0, 0, 0], [1, np.nan, 1]):
        with pytest.raises(ValueError, match="3 probabilities of at least 0, not all 0"):
            ensemble(p=p)
    with pytest.raises(TypeError, match="either sample_from_all or p"):
        ensemble(sample_from_all=True, p=[1, 1, 1])
    with pytest.raises(ValueError, match="num_buffer_sampled 0: expected at least 1"):
        ensemble(num_buffer_sampled=0)
    with pytest.raises(ValueError, match="3 storages, found 2"):
        ensemble().sample(storages[:2], 12)
    with pytest.raises(SamplingError, match="states of 3 samplers, found 1"):
        ensemble().load_state_dict(saved(SamplerEnsemble(RandomSampler()).state_dict()))


def test_rows_of_a_storage_by_two_indices_and_what_it_prints() -> None:
    storages = [LazyTensorStorage(4) for _ in range(2)]
    for number, storage in enumerate(storages):
        storage.append(TensorDict({"a": torch.arange(4) + 10 * number}, [4]))
    ensemble = StorageEnsemble(*storages)
    assert ensemble[1, 2]["a"].item() == 12
    assert ensemble[1, 1:3]["a"].tolist() == [11, 12]
    assert [steps["a"].tolist() for steps in ensemble[:, :2]] == [[0, 1], [10, 11]]
    assert repr(ensemble) == f"StorageEnsemble({storages[0]!r}, {storages[1]!r})"


def test_storages_are_written_to_one_directory(tmp_path: Path) -> None:
    def made() -> StorageEnsemble:
        return StorageEnsemble(LazyTensorStorage(4), LazyTensorStorage(4))

    before, after = made(), made()
    for number in range(2):
        before[number].append(TensorDict({"a": torch.arange(3) + 10 * number}, [3]))
    before.dumps(tmp_path / "storages")
    after.loads(tmp_path / "storages")
    assert [after[number][:]["a"].tolist() for number in range(2)] == [[0, 1, 2], [10, 11, 12]]
    with pytest.raises(SchemaMismatchError, match="is a checkpoint of 2 parts, not 1"):
        StorageEnsemble(LazyTensorStorage(4)).loads(tmp_path / "storages")
