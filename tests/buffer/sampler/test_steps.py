import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlx.buffer.protocol import Rows
from rlx.buffer.sampler.steps import ConsumingSampler, RandomSampler, SamplerWithoutReplacement
from rlx.errors import SamplingError
from rlx.testing.sampler import ListedStorage, SamplerContract, episodes, saved
from tests.buffer.sampler.chance import drawn_like


def filled(steps: int, max_size: int = 100, lanes: int = 1) -> ListedStorage:
    storage = ListedStorage(max_size, lanes)
    for lane in range(lanes):
        storage.write(*[(lane, "")] * (steps // lanes), lane=lane)
    return storage


def flat(batches: list[list[int]]) -> list[int]:
    return [row for batch in batches for row in batch]


def epoch(sampler: SamplerWithoutReplacement, storage: ListedStorage, batch_size: int) -> list[list[int]]:
    """The batches up to the end of an epoch."""
    batches: list[list[int]] = []
    while not batches or not sampler.ran_out:
        batches.append(sampler.sample(storage, batch_size)[0].tolist())
    return batches


class TestRandomSampler(SamplerContract):
    def make(self, **seeding: Any) -> RandomSampler:
        return RandomSampler(**seeding)

    @pytest.mark.parametrize("lanes", [1, 4])
    def test_every_stored_step_is_as_likely(self, lanes: int) -> None:
        storage = filled(60, lanes=lanes)
        rows = RandomSampler(seed=0).sample(storage, 60_000)[0]
        assert drawn_like(rows, dict.fromkeys(storage.steps, 1.0))

    def test_it_never_runs_out(self) -> None:
        sampler = RandomSampler()
        sampler.sample(filled(3), 50)
        assert not sampler.ran_out


class TestSamplerWithoutReplacement(SamplerContract):
    def make(self, **seeding: Any) -> SamplerWithoutReplacement:
        return SamplerWithoutReplacement(**seeding)

    @given(steps=st.integers(1, 60), batch_size=st.integers(1, 70), seed=st.integers(0, 99), lanes=st.integers(1, 4))
    def test_every_step_comes_once_an_epoch(self, steps: int, batch_size: int, seed: int, lanes: int) -> None:
        storage, sampler = filled(steps * lanes, 61 * lanes, lanes), SamplerWithoutReplacement(seed=seed)
        for _ in range(3):
            batches = epoch(sampler, storage, batch_size)
            assert sorted(flat(batches)) == sorted(storage.steps)
            assert {len(batch) for batch in batches[:-1]} <= {batch_size}

    def test_another_order_every_epoch(self) -> None:
        storage, sampler = filled(20), SamplerWithoutReplacement(seed=0)
        assert len({tuple(flat(epoch(sampler, storage, 7))) for _ in range(50)}) == 50

    def test_in_the_order_of_the_rows(self) -> None:
        sampler = SamplerWithoutReplacement(shuffle=False)
        for _ in range(2):
            assert epoch(sampler, filled(10), 4) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]

    def test_the_short_batch_can_be_left_out(self) -> None:
        storage, sampler = filled(10), SamplerWithoutReplacement(drop_last=True, seed=0)
        for _ in range(3):
            batches = epoch(sampler, storage, 4)
            assert [len(batch) for batch in batches] == [4, 4]
            assert len(set(flat(batches))) == 8

    def test_a_larger_batch_than_is_left_of_the_epoch(self) -> None:
        storage, sampler = filled(10), SamplerWithoutReplacement(drop_last=True, seed=0)
        sampler.sample(storage, 6)
        rows = sampler.sample(storage, 8)[0]
        assert len(set(rows.tolist())) == 8
        assert sampler.ran_out

    def test_no_batch_would_be_left(self) -> None:
        with pytest.raises(SamplingError, match="shard 0 of 1 needs 8 steps to draw from, it has 5 of the 5"):
            SamplerWithoutReplacement(drop_last=True).sample(filled(5), 8)

    def test_growth_waits_for_the_next_epoch(self) -> None:
        storage, sampler = filled(10), SamplerWithoutReplacement(seed=0)
        batches = [sampler.sample(storage, 4)[0].tolist()]
        sampler.extended(storage, storage.write(*[(0, "")] * 25))
        batches += epoch(sampler, storage, 4)
        assert sorted(flat(batches)) == list(range(10))
        assert sorted(flat(epoch(sampler, storage, 4))) == list(range(35))

    def test_growth_in_several_lanes_waits_too(self) -> None:
        storage, sampler = filled(12, 40, lanes=4), SamplerWithoutReplacement(seed=0)
        before = sorted(storage.steps)
        batches = [sampler.sample(storage, 5)[0].tolist()]
        for lane in range(4):
            storage.write(*[(lane, "")] * 7, lane=lane)
        batches += epoch(sampler, storage, 5)
        assert sorted(flat(batches)) == before

    def test_overwritten_rows_come_once(self) -> None:
        storage, sampler = filled(10, 10), SamplerWithoutReplacement(seed=0)
        batches = [sampler.sample(storage, 4)[0].tolist()]
        sampler.extended(storage, storage.write(*[(0, "")] * 7))
        batches += epoch(sampler, storage, 4)
        assert sorted(flat(batches)) == list(range(10))

    @pytest.mark.parametrize("count", [1, 2, 3, 7, 10])
    @pytest.mark.parametrize("shuffle", [True, False])
    def test_shards_make_up_the_whole(self, count: int, shuffle: bool) -> None:
        storage, sampler = filled(10), SamplerWithoutReplacement(seed=4, shuffle=shuffle)
        for _ in range(2):
            shards = [sampler.shard(index, count) for index in range(count)]
            parts = [flat(epoch(shard, storage, 3)) for shard in shards]
            assert sorted(flat(parts)) == list(range(10))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1

    def test_a_shard_of_nothing(self) -> None:
        with pytest.raises(SamplingError, match="shard 3 of 4 needs 1 steps to draw from, it has 0 of the 2"):
            SamplerWithoutReplacement().shard(3, 4).sample(filled(2), 1)

    def test_a_shard_goes_on_where_it_stopped(self) -> None:
        storage, shard = filled(50), SamplerWithoutReplacement(seed=4).shard(1, 3)
        shard.sample(storage, 4)
        again = SamplerWithoutReplacement()
        again.load_state_dict(saved(shard.state_dict()))
        assert epoch(again, storage, 4) == epoch(shard, storage, 4)

    def test_millions_take_no_memory(self) -> None:
        class Large(ListedStorage):
            def __len__(self) -> int:
                return self.max_size

        sampler = SamplerWithoutReplacement(seed=0)
        rows: list[Rows] = [sampler.sample(Large(50_000_000), 1000)[0] for _ in range(10)]
        assert len(np.unique(np.concatenate(rows))) == 10_000
        assert sum(len(str(value)) for value in sampler.state_dict().values()) < 200


class TestConsumingSampler(SamplerContract):
    def make(self, **seeding: Any) -> ConsumingSampler:
        return ConsumingSampler(8, **seeding)  # as often as the suite draws

    @given(
        limit=st.integers(1, 3),
        lanes=st.integers(1, 3),
        seed=st.integers(0, 99),
        acts=st.lists(st.tuples(st.sampled_from(["write", "draw", "save", "empty"]), st.integers(1, 9)), max_size=30),
    )
    def test_it_counts_as_a_list_does(self, limit: int, lanes: int, seed: int, acts: list[tuple[str, int]]) -> None:
        storage, sampler = ListedStorage(6 * lanes, lanes), ConsumingSampler(limit, seed=seed)
        left: dict[int, int] = {}
        for act, number in acts:
            if act == "write":
                rows = np.concatenate([storage.write(*[(0, "")] * number, lane=lane) for lane in range(lanes)])
                sampler.extended(storage, rows)
                left |= dict.fromkeys(rows.tolist(), limit)
            elif act == "empty":
                storage.steps.clear()
                sampler.emptied()
                left.clear()
            elif act == "save":
                state = saved(sampler.state_dict())
                sampler = ConsumingSampler(limit)
                sampler.load_state_dict(state)
            elif not sum(left.values()):
                with pytest.raises(SamplingError, match=f"cannot draw {number} steps: "):
                    sampler.sample(storage, number)
            else:
                open_rows = {row for row, times in left.items() if times}
                found = sampler.sample(storage, number)[0].tolist()
                assert len(found) == len(set(found)) == min(number, len(open_rows))
                assert set(found) <= open_rows
                for row in found:
                    left[row] -= 1
                assert sampler.ran_out == (not sum(left.values()))
            assert sampler.available(storage) == sum(map(bool, left.values()))

    @pytest.mark.parametrize("batches", [0, 1, 5])
    def test_writes_after_restoring(self, batches: int) -> None:
        storage, sampler, again = filled(20, 30), ConsumingSampler(2, seed=1), ConsumingSampler(2)
        for _ in range(batches):
            sampler.sample(storage, 7)
        again.load_state_dict(saved(sampler.state_dict()))
        for written in (3, 25, 1, 8):  # fills the ring, and wraps it
            rows = storage.write(*[(0, "")] * written)
            for each in (sampler, again):
                each.extended(storage, rows)
            for size in (4, 9):
                one, other = (each.sample(storage, size)[0] for each in (sampler, again))
                assert np.array_equal(one, other)

    def test_every_step_is_as_likely(self) -> None:
        storage = filled(12)
        rows = [ConsumingSampler(seed=seed).sample(storage, 4)[0] for seed in range(1500)]
        assert drawn_like(np.concatenate(rows), dict.fromkeys(storage.steps, 1.0))

    def test_what_was_stored_before_it_came_is_drawn_too(self) -> None:
        storage, sampler = filled(5), ConsumingSampler()
        assert sorted(sampler.sample(storage, 9)[0].tolist()) == [0, 1, 2, 3, 4]
        sampler.extended(storage, storage.write((0, ""), (0, "")))
        assert sorted(sampler.sample(storage, 9)[0].tolist()) == [5, 6]

    def test_shards_make_up_the_whole(self) -> None:
        storage, sampler = filled(10), ConsumingSampler(seed=4)
        sampler.sample(storage, 3)
        shards = [sampler.shard(index, 3) for index in range(3)]
        parts = [shard.sample(storage, 9)[0].tolist() for shard in shards if shard.available(storage)]
        assert len(flat(parts)) == len(set(flat(parts))) == sampler.available(storage) == 7

    def test_a_state_of_another_limit(self) -> None:
        with pytest.raises(SamplingError, match="max_sample_count 3: expected 2, as in the state"):
            ConsumingSampler(3).load_state_dict(ConsumingSampler(2).state_dict())


def test_another_class_without_replacement() -> None:
    sampler: Any = RandomSampler(replacement=False, drop_last=True, shuffle=False, seed=3)
    assert type(sampler) is SamplerWithoutReplacement
    assert (sampler.drop_last, sampler.shuffle, sampler.seed) == (True, False, 3)
    assert type(SamplerWithoutReplacement(replacement=False)) is SamplerWithoutReplacement
    assert type(pickle.loads(pickle.dumps(RandomSampler()))) is RandomSampler


class Own(RandomSampler):
    def __init__(self, seed: int = 0, **options: Any) -> None:
        super().__init__(seed=seed, **options)


def test_a_subclass_has_arguments_of_its_own() -> None:
    assert Own(5).seed == copy.deepcopy(Own(5)).seed == 5


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (RandomSampler, {"drop_last": True}),
        (RandomSampler, {"shuffle": False}),
        (Own, {"replacement": False}),
        (SamplerWithoutReplacement, {"replacement": True}),
    ],
)
def test_replacement_that_a_sampler_does_not_have(kind: Any, options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"{kind.__name__}: .*replacement"):
        kind(**options)


def test_contract_storage_is_what_it_says() -> None:
    storage = episodes(ListedStorage(10), 4, 3)
    assert storage.paths == [[0, 1, 2, 3], [4, 5, 6]]
    assert storage.starts(4) == [0]
    storage.write(*[(2, "")] * 5)
    assert storage.paths == [[2, 3], [4, 5, 6], [7, 8, 9, 0, 1]]
    assert storage.from_reset == [False, True, True]
