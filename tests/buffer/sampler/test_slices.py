import copy
import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rlx.buffer.protocol import Rows
from rlx.buffer.sampler.slices import PrioritizedSliceSampler, SliceSampler, SliceSamplerWithoutReplacement
from rlx.errors import SamplingError, SliceTooLongError
from rlx.testing.sampler import ListedStorage, RingedStorage, SamplerContract, episodes, saved
from tests.buffer.sampler.chance import drawn_like

Info = Mapping[Any, NDArray[Any]]
DONE, TRUNCATED, SLICE_END = ("next", "done"), ("next", "truncated"), ("collector", "slice_end")


@st.composite
def rings(draw: st.DrawFn) -> ListedStorage:
    """Rings of one to three lanes, into which workers wrote their trajectories in turns."""
    lanes, size = draw(st.integers(1, 3)), draw(st.integers(1, 20))
    storage = draw(st.sampled_from([ListedStorage, RingedStorage]))(lanes * size, lanes, extra=["is_init"])
    ends = st.sampled_from(["", "", "", "terminated", "truncated"])
    chunks = st.lists(st.tuples(st.integers(0, 3), st.lists(ends, min_size=1, max_size=6)), min_size=1, max_size=12)
    for lane in range(lanes):
        for ident, flags in draw(chunks):
            storage.write(*[(10 * lane + ident, end) for end in flags], lane=lane)
    return storage


def slices(rows: Rows, info: Info) -> list[list[int]]:
    """The rows of each slice of a batch that is marked by ``is_init``."""
    return [part.tolist() for part in np.split(rows, np.flatnonzero(info["is_init"].ravel())[1:])]


def flat(batches: list[list[int]]) -> list[int]:
    return [row for batch in batches for row in batch]


def check_path(storage: ListedStorage, rows: list[int]) -> None:
    """Rows follow each other in one trajectory."""
    path, place = storage.place[rows[0]]
    assert storage.paths[path][place : place + len(rows)] == rows


def check_marks(storage: ListedStorage, rows: Rows, info: Info, last: NDArray[np.bool_]) -> None:
    ends = [storage.steps[row]["end"] for row in rows.tolist()]
    stored_truncated, stored_done = np.array([[e == "truncated"] for e in ends]), np.array([[e != ""] for e in ends])
    added = last[:, None] & ~stored_done
    assert np.array_equal(info[SLICE_END], added)
    assert np.array_equal(info[TRUNCATED], stored_truncated | added)
    assert np.array_equal(info[DONE], stored_done | added)
    assert np.array_equal(info[TRUNCATED] & ~info[SLICE_END], stored_truncated), "what was stored can be told"
    assert ("next", "terminated") not in info


class TestSliceSampler(SamplerContract):
    def make(self, **seeding: Any) -> SliceSampler:
        return SliceSampler(slice_len=4, **seeding)


class TestSliceSamplerByTrajectory(SamplerContract):
    def make(self, **seeding: Any) -> SliceSampler:
        return SliceSampler(num_slices=2, weighting="trajectory", strict_length=False, **seeding)


class TestSliceSamplerWithoutReplacement(SamplerContract):
    def make(self, **seeding: Any) -> SliceSamplerWithoutReplacement:
        return SliceSamplerWithoutReplacement(num_slices=2, **seeding)


@given(
    storage=rings(), slice_len=st.integers(1, 6), seed=st.integers(0, 9), without=st.booleans(), strict=st.booleans()
)
def test_slices_are_paths(storage: ListedStorage, slice_len: int, seed: int, without: bool, strict: bool) -> None:
    kind = SliceSamplerWithoutReplacement if without else SliceSampler
    sampler = kind(slice_len=slice_len, strict_length=strict, seed=seed)
    starts = storage.starts(slice_len, strict=strict)
    if not starts:
        with pytest.raises(SliceTooLongError, match=f"the longest of .* has {max(map(len, storage.paths))}$"):
            sampler.sample(storage, 3 * slice_len)
        return
    for _ in range(3):
        rows, info = sampler.sample(storage, 3 * slice_len)
        drawn = slices(rows, info)
        for piece in drawn:
            check_path(storage, piece)
            assert piece[0] in starts
            assert len(piece) == min(slice_len, len(storage.paths[storage.place[piece[0]][0]]))
        last = np.concatenate([np.arange(len(piece)) == len(piece) - 1 for piece in drawn])
        check_marks(storage, rows, info, last)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("slice_len", [1, 3, 7, 9])
def test_every_start_is_as_likely(slice_len: int, strict: bool) -> None:
    """Of 9 steps most are no start: this takes the count, the others rejection."""
    storage = episodes(ListedStorage(60), 9, 2, 5, 1, 7, 3, 3, 3, 3, 3, 3)
    sampler = SliceSampler(slice_len=slice_len, strict_length=strict, seed=slice_len)
    starts = storage.starts(slice_len, strict=strict)
    drawn: list[int] = []
    for _ in range(600):
        drawn += _starts_of(storage, sampler.sample(storage, 10 * slice_len)[0].tolist(), slice_len)
    assert drawn_like(drawn, dict.fromkeys(starts, 1.0))


def _starts_of(storage: ListedStorage, rows: list[int], slice_len: int) -> list[int]:
    """The first rows of a flat batch of slices that are as long as they can be."""
    firsts, at = [], 0
    while at < len(rows):
        firsts.append(rows[at])
        at += min(slice_len, len(storage.paths[storage.place[rows[at]][0]]))
    return firsts


@pytest.mark.parametrize("kind", [ListedStorage, RingedStorage])
def test_every_start_is_as_likely_in_interleaved_lanes(kind: type[ListedStorage]) -> None:
    storage = kind(40, 2)
    for chunk in range(9):
        for lane in range(2):
            storage.write(*[(10 * lane + chunk % 2, "")] * 3, lane=lane)
    starts = storage.starts(4)
    assert 0 < len(starts) < len(storage)
    rows = SliceSampler(slice_len=4, seed=0).sample(storage, 4 * 6000)[0]
    assert drawn_like(rows[::4], dict.fromkeys(starts, 1.0))


@pytest.mark.parametrize("kind", [ListedStorage, RingedStorage])
def test_every_trajectory_is_as_likely(kind: type[ListedStorage]) -> None:
    storage = episodes(kind(60), 12, 4, 3, 2)
    rows = SliceSampler(slice_len=3, weighting="trajectory", seed=0).sample(storage, 3 * 6000)[0]
    assert drawn_like(rows[::3], dict.fromkeys(range(10), 1 / 10) | {12: 1 / 2, 13: 1 / 2} | {16: 1.0})


def test_whole_trajectories() -> None:
    storage = episodes(ListedStorage(60), 12, 4, 3, 2)
    sampler = SliceSampler(num_slices=5, whole_trajectories=True, seed=0)
    drawn: list[int] = []
    for _ in range(400):
        rows, info = sampler.sample(storage, 32)
        drawn += _starts_of(storage, rows.tolist(), 99)
        assert not info[SLICE_END].any(), "each ends where its trajectory does"
    assert len(drawn) == 2000
    assert drawn_like(drawn, dict.fromkeys([0, 12, 16, 19], 1.0))


def test_whole_trajectories_that_are_not_too_long() -> None:
    storage = episodes(ListedStorage(60), 12, 4, 3, 2)
    sampler = SliceSampler(slice_len=4, whole_trajectories=True, pad_output=True, seed=0)
    rows, info = sampler.sample(storage, 4 * 900)
    assert drawn_like(rows[::4], dict.fromkeys([12, 16, 19], 1.0))
    assert info["collector", "mask"].reshape(-1, 4).sum(1).tolist() == [{12: 4, 16: 3, 19: 2}[r] for r in rows[::4]]
    with pytest.raises(SamplingError, match="at most 1 steps asked for, the shortest of 4 has 2"):
        SliceSampler(slice_len=1, whole_trajectories=True).sample(storage, 3)


def test_slices_from_resets() -> None:
    storage = episodes(ListedStorage(14), 6, 5, 4)
    assert storage.from_reset == [False, True, True]
    sampler = SliceSampler(slice_len=3, start_at_reset=True, seed=0)
    assert drawn_like(sampler.sample(storage, 3 * 1000)[0][::3], dict.fromkeys([6, 11], 1.0))
    with pytest.raises(SliceTooLongError, match="slices of 9 steps asked for, the longest of 3 trajectories has 5"):
        SliceSampler(slice_len=9, start_at_reset=True).sample(storage, 9)
    storage = ListedStorage(4)
    storage.write(*[(0, "")] * 6)
    with pytest.raises(SamplingError, match="no stored episode has its first step"):
        SliceSampler(slice_len=2, start_at_reset=True).sample(storage, 2)


def test_padding_repeats_the_last_step() -> None:
    storage = episodes(ListedStorage(20, extra=["is_init"]), 2)
    storage.write((1, ""), (1, "truncated"), (2, ""), (2, ""))
    sampler = SliceSampler(slice_len=4, strict_length=False, pad_output=True, seed=0)
    rows, info = sampler.sample(storage, 40)
    assert rows.shape == (40,)
    assert info["collector", "mask"].shape == (40,)
    assert info["collector", "mask"].reshape(-1, 4).tolist() == [[True, True, False, False]] * 10
    expected = {0: [0, 1, 1, 1], 2: [2, 3, 3, 3], 4: [4, 5, 5, 5]}
    assert all(piece == expected[piece[0]] for piece in rows.reshape(-1, 4).tolist())
    check_marks(storage, rows, info, np.tile([False, True, True, True], 10))
    assert info["is_init"].reshape(-1, 4).tolist() == [[True, False, False, False]] * 10


def test_first_steps_are_marked_beside_those_that_are_stored() -> None:
    storage = episodes(ListedStorage(20, extra=["is_init"]), 6)
    info = SliceSampler(slice_len=2, seed=0).sample(storage, 100)[1]
    assert info["is_init"].shape == (100, 1)
    assert info["is_init"][::2].all()
    assert not info["is_init"][1::2].any()
    assert "is_init" not in SliceSampler(slice_len=2, init_key=None).sample(storage, 100)[1]
    assert "is_init" not in SliceSampler(slice_len=2).sample(episodes(ListedStorage(20), 6), 100)[1]


def test_ends_can_stay_as_they_are() -> None:
    assert SliceSampler(slice_len=2, truncated_key=None).sample(episodes(ListedStorage(20), 6), 10)[1] == {}


def test_ends_are_marked_where_no_flags_are_stored() -> None:
    class Bare(ListedStorage):
        def has(self, key: Any) -> bool:  # noqa: ARG002
            return False

    _, info = SliceSampler(slice_len=2).sample(episodes(Bare(20), 6), 4)
    assert all(info[key].tolist() == [[False], [True]] * 2 for key in (DONE, TRUNCATED, SLICE_END))


@pytest.mark.parametrize(
    ("sizes", "batch_size"), [({"num_slices": 3}, 10), ({"slice_len": 4}, 10), ({"slice_len": 20}, 10)]
)
def test_batches_that_cannot_be_divided(sizes: dict[str, int], batch_size: int) -> None:
    with pytest.raises(SamplingError, match=r"batch_size \(10\) must be a positive multiple of"):
        SliceSampler(**sizes).sample(episodes(ListedStorage(60), 50), batch_size)  # type: ignore[arg-type]


@pytest.mark.parametrize("sizes", [{}, {"num_slices": 3, "slice_len": 4}])
def test_one_of_both_sizes(sizes: dict[str, int]) -> None:
    with pytest.raises(TypeError, match="either num_slices or slice_len"):
        SliceSampler(**sizes)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [SliceSampler, SliceSamplerWithoutReplacement])
def test_names_that_exclude_each_other(kind: type[SliceSampler]) -> None:
    with pytest.raises(TypeError, match="either traj_key or trajectory_key, found both"):
        kind(slice_len=1, traj_key="a", trajectory_key="b")
    with pytest.raises(TypeError, match="either end_key or end_keys, found both"):
        kind(slice_len=1, end_key="a", end_keys=["b"])
    with pytest.raises(ValueError, match="slice_len 0: expected at least 1"):
        kind(slice_len=0)


def test_an_unknown_weighting() -> None:
    with pytest.raises(ValueError, match="'step' or 'trajectory', found 'row'"):
        SliceSampler(slice_len=1, weighting="row")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [SliceSampler, SliceSamplerWithoutReplacement])
def test_keys_reach_the_index(kind: type[SliceSampler]) -> None:
    asked: list[Any] = []

    class Asked(ListedStorage):
        def index(self, traj_key: Any = None, end_key: Any = None) -> Any:
            asked.append((traj_key, end_key))
            return super().index(traj_key, end_key)

    storage = episodes(Asked(20), 6)
    for keys in (
        {"traj_key": "episode"},
        {"trajectory_key": ("collector", "traj_ids")},
        {"end_key": ("next", "done"), "cache_values": True},
        {"end_keys": [("next", "done"), "over"]},
    ):
        kind(slice_len=2, **keys).sample(storage, 4)
    assert asked == [
        ("episode", None),
        (("collector", "traj_ids"), None),
        (None, ("next", "done")),
        (None, [("next", "done"), "over"]),
    ]


def test_a_write_changes_what_is_drawn() -> None:
    storage = episodes(ListedStorage(40), 3)
    sampler = SliceSampler(slice_len=3, weighting="trajectory", seed=0)
    assert sampler.sample(storage, 3)[0].tolist() == [0, 1, 2]
    storage.write(*[(1, "")] * 5)
    assert drawn_like(sampler.sample(storage, 3 * 1000)[0][::3], {0: 1, 3: 1 / 3, 4: 1 / 3, 5: 1 / 3})


@pytest.mark.parametrize("option", [{"span": True}, {"slice_length": 3}])
def test_without_replacement_takes_no_argument_that_it_would_ignore(option: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"SliceSamplerWithoutReplacement takes no {next(iter(option))}"):
        SliceSamplerWithoutReplacement(slice_len=3, **option)


def one_epoch(sampler: SliceSamplerWithoutReplacement, storage: ListedStorage, batch_size: int) -> list[list[int]]:
    batches: list[list[int]] = []
    while not batches or not sampler.ran_out:
        batches.append(sampler.sample(storage, batch_size)[0].tolist())
    return batches


class TestEpochsOfTrajectories:
    @pytest.fixture
    def storage(self) -> ListedStorage:
        return episodes(ListedStorage(60), 5, 2, 3, 4, 8, 3, 3)

    def test_every_long_enough_trajectory_comes_once(self, storage: ListedStorage) -> None:
        sampler = SliceSamplerWithoutReplacement(slice_len=3, seed=0)
        orders = set()
        for _ in range(20):
            batches = one_epoch(sampler, storage, 12)
            assert [len(batch) for batch in batches] == [12, 6]
            order = [storage.place[row][0] for row in flat(batches)[::3]]
            assert sorted(order) == [0, 2, 3, 4, 5, 6]
            orders.add(tuple(order))
        assert len(orders) > 10

    def test_every_start_of_a_trajectory_is_as_likely(self, storage: ListedStorage) -> None:
        sampler = SliceSamplerWithoutReplacement(slice_len=3, seed=0)
        starts = [row for _ in range(400) for row in flat(one_epoch(sampler, storage, 18))[::3] if 14 <= row < 22]
        assert drawn_like(starts, dict.fromkeys(range(14, 20), 1.0))

    def test_in_the_order_of_writing(self, storage: ListedStorage) -> None:
        sampler = SliceSamplerWithoutReplacement(slice_len=3, shuffle=False)
        for _ in range(2):
            order = [storage.place[row][0] for row in flat(one_epoch(sampler, storage, 3))[::3]]
            assert order == [0, 2, 3, 4, 5, 6]

    def test_the_short_batch_can_be_left_out(self, storage: ListedStorage) -> None:
        sampler = SliceSamplerWithoutReplacement(slice_len=3, drop_last=True, seed=0)
        for _ in range(2):
            assert [len(batch) for batch in one_epoch(sampler, storage, 12)] == [12]
        with pytest.raises(SamplingError, match="shard 0 of 1 needs 7 trajectories to draw from, it has 6 of the 6"):
            sampler.sample(storage, 21)

    def test_a_write_begins_an_epoch(self, storage: ListedStorage) -> None:
        sampler = SliceSamplerWithoutReplacement(slice_len=3, seed=0)
        sampler.sample(storage, 9)
        sampler.extended(storage, storage.write(*[(9, "")] * 3))
        assert sorted(storage.place[row][0] for row in flat(one_epoch(sampler, storage, 9))[::3]) == [
            0,
            2,
            3,
            4,
            5,
            6,
            7,
        ]

    @pytest.mark.parametrize("count", [1, 2, 4])
    def test_shards_make_up_the_whole(self, storage: ListedStorage, count: int) -> None:
        sampler = SliceSamplerWithoutReplacement(slice_len=3, seed=0)
        shards = [sampler.shard(index, count) for index in range(count)]
        for _ in range(3):
            rows = [row for shard in shards for row in flat(one_epoch(shard, storage, 3))[::3]]
            assert sorted(storage.place[row][0] for row in rows) == [0, 2, 3, 4, 5, 6]

    def test_an_epoch_goes_on_where_it_stopped(self, storage: ListedStorage) -> None:
        sampler = SliceSamplerWithoutReplacement(slice_len=3, seed=0)
        sampler.sample(storage, 9)
        again = SliceSamplerWithoutReplacement(slice_len=3)
        again.load_state_dict(saved(sampler.state_dict()))
        assert one_epoch(again, storage, 6) == one_epoch(sampler, storage, 6)
        assert one_epoch(again, storage, 6) == one_epoch(sampler, storage, 6)

    def test_whole_trajectories(self, storage: ListedStorage) -> None:
        sampler = SliceSamplerWithoutReplacement(num_slices=2, whole_trajectories=True, seed=0)
        assert sorted(flat(one_epoch(sampler, storage, 1))) == sorted(storage.steps)


ARGUMENTS: dict[str, Any] = {
    "slice_len": 3,
    "traj_key": "episode",
    "end_keys": ("end", ("next", "done")),
    "truncated_key": ("next", "cut"),
    "init_key": "first",
    "strict_length": False,
    "pad_output": True,
    "cache_values": True,
}
ALL = (SliceSampler, SliceSamplerWithoutReplacement, PrioritizedSliceSampler)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        *((kind, ARGUMENTS) for kind in ALL),
        *((kind, {"num_slices": 2, "trajectory_key": "id", "end_key": "end"}) for kind in ALL),
        *((kind, {"num_slices": 2, "whole_trajectories": True, "start_at_reset": True}) for kind in ALL[:2]),
        (SliceSampler, {"slice_len": 2, "span": (False, 1), "weighting": "trajectory"}),
        (SliceSampler, {"slice_len": 2, "span": (True, False)}),
        (SliceSamplerWithoutReplacement, {"slice_len": 2, "drop_last": True, "shuffle": False}),
        (PrioritizedSliceSampler, {"slice_len": 2, "span": (False, 1), "reduction": "min"}),
    ],
)
def test_arguments_are_attributes(kind: Any, more: dict[str, Any]) -> None:
    priorities = {"max_capacity": 9, "alpha": 0.5, "beta": 0.5} if kind is PrioritizedSliceSampler else {}
    sampler = kind(**more, **priorities)
    assert {name: getattr(sampler, name) for name in more} == more


def test_arguments_that_were_not_given() -> None:
    sampler = SliceSampler(slice_len=2)
    assert sampler.num_slices is None
    assert sampler.traj_key is None
    assert sampler.span == SliceSampler(slice_len=2, span=[False, False]).span == (False, False)
    with pytest.raises(TypeError, match=r"span \(1, 1, 1\): expected a number, or two"):
        SliceSampler(slice_len=2, span=[1, 1, 1])


def test_another_class_without_replacement() -> None:
    sampler: Any = SliceSampler(replacement=False, slice_len=2, drop_last=True, shuffle=False, seed=3)
    assert type(sampler) is SliceSamplerWithoutReplacement
    assert (sampler.slice_len, sampler.drop_last, sampler.shuffle, sampler.seed) == (2, True, False, 3)
    assert type(SliceSamplerWithoutReplacement(replacement=False, slice_len=2)) is SliceSamplerWithoutReplacement
    assert type(pickle.loads(pickle.dumps(sampler))) is SliceSamplerWithoutReplacement


class Own(SliceSampler):
    def __init__(self, length: int = 2, **options: Any) -> None:
        super().__init__(**{"slice_len": length, **options})


def test_a_subclass_has_arguments_of_its_own() -> None:
    assert Own(5).slice_len == copy.deepcopy(Own(5)).slice_len == 5


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (SliceSampler, {"drop_last": True}),
        (SliceSampler, {"shuffle": False}),
        (Own, {"replacement": False}),
        (SliceSamplerWithoutReplacement, {"replacement": True}),
        (PrioritizedSliceSampler, {"replacement": False, "max_capacity": 9, "alpha": 0.5, "beta": 0.5}),
    ],
)
def test_replacement_that_a_sampler_does_not_have(kind: Any, options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="replacement"):
        kind(slice_len=2, **options)
