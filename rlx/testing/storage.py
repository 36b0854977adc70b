"""What every storage that is written to keeps to: a suite that a storage's own test file subclasses.

A subclass says how to make one::

    class TestMyStorage(StorageContract):
        def make(self, max_size: int, ndim: int = 1) -> RingStorage: ...
"""

import io
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tensordict import NonTensorData, NonTensorStack, TensorDict, lazy_stack

from rlx.buffer.protocol import Rows, TrajectoryIndex
from rlx.buffer.storage.ring import RingStorage
from rlx.buffer.storage.step_schema import leaves_of
from rlx.buffer.storage.tensors import LazyTensorStorage
from rlx.errors import SamplingError, SchemaMismatchError


def steps(numbers: Any, *, ids: Any = 0, done: Any = False, image: tuple[int, ...] = (40, 40)) -> TensorDict:
    """Steps whose every leaf is made of their numbers, in the shape of ``numbers``; each one's next is one more."""
    number = torch.as_tensor(numbers, dtype=torch.int64)
    shape, rows = list(number.shape), number.reshape(-1)
    flags = torch.as_tensor(done).expand(shape).clone()
    pixels = torch.arange(int(np.prod(image))).reshape(image)
    now, after = (((rows + add).reshape(len(rows), *[1] * len(image)) * 7 + pixels) % 251 for add in (0, 1))
    return TensorDict(
        {
            "observation": now.to(torch.uint8).reshape(*shape, *image),
            "action": {"move": number.clone(), "aim": number[..., None].float() * torch.tensor([0.5, -1.0])},
            "collector": {"traj_ids": torch.as_tensor(ids).expand(shape).clone()},
            "next": {
                "observation": after.to(torch.uint8).reshape(*shape, *image),
                "reward": number[..., None].float(),
                "done": flags[..., None].clone(),
            },
        },
        shape,
    )


# Arrays of the same numbers that torch cannot share, or that lie in memory in another order.
LAYOUTS: dict[str, Callable[[NDArray[Any]], Any]] = {
    "as it is": lambda array: array,
    "read-only": lambda array: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape),
    "reversed": lambda array: array[..., ::-1].copy()[..., ::-1] if array.ndim else array[()],
    "columns first": lambda array: np.array(array, order="F"),
    "with gaps": lambda array: np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array[()],
}


RAGGED = [
    ("jagged", "key 'tokens': expected one shape, found a nested tensor"),
    ("nested", "key 'tokens': expected one shape, found a nested tensor"),
    ("sparse", "key 'tokens': expected a dense tensor, found torch.sparse_coo"),
    ("compressed sparse", "key 'tokens': expected a dense tensor, found torch.sparse_csr"),
    ("quantized", "key 'tokens': expected a dense tensor, found a quantized tensor"),
    ("without data", "key 'tokens': expected a dense tensor, found torch.strided on meta"),
    ("other shapes", "steps of a lazy stack: expected the same keys and shapes in all of them; "),
    ("other shapes below", "steps of a lazy stack: expected the same keys and shapes in all of them; "),
    ("other keys", r"steps of a lazy stack: .*; \['more', 'tokens'\] are not \['tokens'\]"),
]


def ragged(kind: str) -> Any:
    """Two steps whose ``tokens`` cannot be one dense tensor."""
    dense = torch.eye(2, 3)
    if kind.startswith("other shapes"):
        stack: Any = lazy_stack([TensorDict({"tokens": torch.zeros(length)}) for length in (3, 5)])
        return stack if kind == "other shapes" else TensorDict({"tokens": stack}, [2])
    if kind == "other keys":
        return lazy_stack([TensorDict({"tokens": dense[0], "more": dense[0]}), TensorDict({"tokens": dense[1]})])
    parts = [torch.zeros(3), torch.zeros(5)]
    made: dict[str, Any] = {
        "jagged": lambda: torch.nested.nested_tensor(parts, layout=torch.jagged),
        "nested": lambda: torch.nested.nested_tensor(parts),
        "sparse": dense.to_sparse,
        "compressed sparse": dense.to_sparse_csr,
        "quantized": lambda: torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8),
        "without data": lambda: dense.to("meta"),
    }
    return TensorDict({"tokens": made[kind]()}, [2])


def numbers_of(storage: RingStorage, rows: Rows) -> list[int]:
    """The numbers of the steps at rows, after a look at every leaf of them."""
    found = storage.get(rows)
    numbers: list[int] = found["action", "move"].tolist()
    expected = steps(numbers, ids=found["collector", "traj_ids"], done=found["next", "done"].squeeze(-1))
    for key in expected.keys(include_nested=True, leaves_only=True):
        assert found[key].dtype == expected[key].dtype, key
        assert torch.equal(found[key], expected[key]), key
    assert found.batch_size == torch.Size([len(rows)])
    return numbers


class StorageContract(ABC):
    """The tests; see the module's docstring."""

    @abstractmethod
    def make(self, max_size: int, ndim: int = 1) -> RingStorage:
        """An empty storage."""

    def test_what_is_written_is_read_in_any_order(self) -> None:
        storage = self.make(10)
        assert storage.append(steps(range(6))).tolist() == [0, 1, 2, 3, 4, 5]
        assert (len(storage), storage.max_size, storage.ndim, storage.lanes, storage.lane_shape) == (6, 10, 1, 1, ())
        assert numbers_of(storage, np.array([5, 0, 3, 3])) == [5, 0, 3, 3]
        assert numbers_of(storage, np.array([], np.int64)) == []

    def test_the_ring_overwrites_the_oldest(self) -> None:
        storage = self.make(10)
        for first in range(0, 35, 7):
            rows = storage.append(steps(range(first, first + 7)))
            assert rows.tolist() == [number % 10 for number in range(first, first + 7)]
        assert numbers_of(storage, storage.row_at(np.arange(10))) == list(range(25, 35))

    def test_of_more_than_fits_the_last_are_kept(self) -> None:
        storage = self.make(10)
        storage.append(steps(range(3)))
        assert storage.append(steps(range(3, 28))).tolist() == [number % 10 for number in range(3, 28)]
        assert numbers_of(storage, storage.row_at(np.arange(10))) == list(range(18, 28))

    @pytest.mark.parametrize("lane_shape", [(3,), (2, 3)])
    def test_every_lane_is_a_ring(self, lane_shape: tuple[int, ...]) -> None:
        lanes = int(np.prod(lane_shape))
        storage = self.make(lanes * 5, ndim=len(lane_shape) + 1)
        for first in range(0, 12, 4):
            number = torch.arange(first, first + 4) + 100 * torch.arange(lanes)[:, None]
            rows = storage.append(steps(number.reshape(*lane_shape, 4)))
            assert rows.shape == (*lane_shape, 4)
            assert numbers_of(storage, rows.reshape(-1)) == number.reshape(-1).tolist()
        assert (storage.lanes, storage.lane_shape, len(storage)) == (lanes, lane_shape, 5 * lanes)
        stored = numbers_of(storage, storage.row_at(np.arange(len(storage))))
        assert stored == [100 * lane + time for lane in range(lanes) for time in range(7, 12)]

    def test_single_steps(self) -> None:
        storage = self.make(4)
        for number in range(11):
            storage.append(steps([number]))
        assert numbers_of(storage, storage.row_at(np.arange(4))) == [7, 8, 9, 10]

    @settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(
        lanes=st.sampled_from([(), (1,), (3,)]),
        counts=st.lists(st.integers(0, 14), min_size=1, max_size=6),
        layouts=st.lists(st.sampled_from(sorted(LAYOUTS)), min_size=1, max_size=4),
    )
    def test_arrays_are_written_as_tensordicts_are(
        self, lanes: tuple[int, ...], counts: list[int], layouts: list[str]
    ) -> None:
        one, other = (self.make(5 * int(np.prod(lanes)), ndim=len(lanes) + 1) for _ in range(2))
        first = 0
        for number, count in enumerate(counts):  # 0: a single step without a dimension of time
            times = torch.arange(first, first + max(count, 1))
            written = steps(times.expand(*lanes, len(times)), done=times % 4 == 3)
            first += len(times)
            given = written if count else written[..., 0]
            arrays = {
                path: LAYOUTS[layouts[(number + place) % len(layouts)]](leaf.numpy())
                for place, (path, leaf) in enumerate(leaves_of(given).items())
            }
            assert one.append(arrays, is_step=not count).tolist() == other.append(written).tolist()
        rows = one.row_at(np.arange(len(one)))
        assert len(one) == len(other)
        assert (one.get(rows) == other.get(rows)).all()
        found = one.get_leaves(rows, may_be_arrays=True)
        assert all(np.array_equal(found[path], leaf) for path, leaf in leaves_of(other.get(rows)).items())
        assert np.array_equal(one.index().trajectories(), other.index().trajectories())

    def test_what_is_read_is_a_copy(self) -> None:
        storage = self.make(10)
        written = steps(range(10))
        storage.append(written)
        written.apply_(lambda leaf: leaf.zero_())
        for rows in (np.arange(2, 5), np.arange(10), np.array([4, 1])):
            found = storage.get(rows)
            assert found["action", "move"].tolist() == rows.tolist()
            found.apply_(lambda leaf: leaf.zero_())
        assert numbers_of(storage, np.arange(10)) == list(range(10))

    def test_only_some_keys(self) -> None:
        storage = self.make(10)
        storage.append(steps(range(6)))
        found = storage.get(np.array([4, 1]), ["action", ("next", "reward")])
        leaves = set(found.keys(include_nested=True, leaves_only=True))
        assert leaves == {("action", "move"), ("action", "aim"), ("next", "reward")}
        assert found["next", "reward"].flatten().tolist() == [4, 1]
        only = storage.get(np.array([4, 1]), [("next", "observation")])
        assert torch.equal(only["next", "observation"], steps([4, 1])["next", "observation"])
        with pytest.raises(KeyError, match="nothing"):
            storage.get(np.array([4]), [("next", "nothing")])

    def test_a_row_that_holds_nothing(self) -> None:
        storage = self.make(10)
        with pytest.raises(IndexError, match="row 0 is empty"):
            storage.get(np.array([0]))
        storage.append(steps(range(6)))
        for row in (6, 9, 10, -1):
            with pytest.raises(IndexError, match=f"row {row} "):
                storage.get(np.array([0, row]))
            with pytest.raises(IndexError, match=f"row {row} "):
                storage.update(np.array([0, row]), steps([0, 1]))

    def test_every_lane_knows_what_it_holds(self) -> None:
        storage = self.make(10, ndim=2)
        storage.append(steps([[1, 2], [3, 4]]))
        with pytest.raises(IndexError, match="row 2 is empty"):
            storage.get(np.array([0, 5, 2]))

    def test_steps_of_another_schema(self) -> None:
        storage = self.make(10)
        storage.append(steps(range(4)))
        good = steps([9, 8])
        bad = {
            "'next/reward' is missing": good.clone().exclude(("next", "reward")),
            "'extra' is not one of": good.clone().set("extra", torch.zeros(2)),
            r"'action/move': expected int64\[\], found float32\[\]": good.clone().set(
                ("action", "move"), torch.zeros(2)
            ),
            r"'next/reward': expected float32\[1\], found float32\[2\]": good.clone().set(
                ("next", "reward"), torch.zeros(2, 2)
            ),
        }
        for message, wrong in bad.items():
            with pytest.raises(SchemaMismatchError, match=message):
                storage.append(wrong)
            with pytest.raises(SchemaMismatchError, match=message):
                storage.set(np.array([0, 1]), wrong)
            with pytest.raises(SchemaMismatchError, match=message):
                storage.update(np.array([0, 1]), wrong)
        assert numbers_of(storage, np.arange(4)) == [0, 1, 2, 3]
        assert len(storage.index()) == len(storage) == 4

    @pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, of prototypes
    @pytest.mark.parametrize(("kind", "message"), RAGGED)
    @pytest.mark.parametrize("stored", [0, 4])
    def test_steps_that_are_not_dense_or_not_alike(self, kind: str, message: str, stored: int) -> None:
        storage = self.make(10)
        if stored:
            storage.append(TensorDict({"tokens": torch.zeros(stored, 3)}, [stored]))
        for write in (storage.append, lambda wrong: storage.set(np.arange(2), wrong)):
            with pytest.raises(SchemaMismatchError, match=message):
                write(ragged(kind))
        if stored:
            with pytest.raises(SchemaMismatchError, match=message):
                storage.update(np.arange(2), ragged(kind))
        assert len(storage) == stored
        storage.append(TensorDict({"tokens": torch.ones(3, 3)}, [3]))

    def test_what_is_neither_a_tensor_nor_text(self) -> None:
        storage = self.make(10)
        with pytest.raises(SchemaMismatchError, match="name: object, expected numbers or text"):
            storage.append(steps(range(2)).set_non_tensor("name", object()))
        assert len(storage) == 0

    def test_texts_are_kept(self) -> None:
        storage = self.make(12, ndim=2)

        def told(first: int, count: int) -> TensorDict:
            made = steps(torch.arange(first, first + count) + 100 * torch.arange(2)[:, None])
            names: Any = [[f"task {number % 3}" for number in lane] for lane in made["action", "move"].tolist()]
            note: Any = NonTensorData("same", batch_size=[2, count])
            return made.set("task", NonTensorStack.from_list(names)).set(("next", "info", "note"), note)

        for first, count in ((0, 4), (4, 1), (5, 6)):
            storage.append(told(first, count))
        file = io.BytesIO()
        torch.save(storage.state_dict(), file)
        file.seek(0)
        rows = storage.row_at(np.arange(len(storage)))
        other = self.make(12, ndim=2)
        other.restore(torch.load(file, weights_only=True), [(rows, storage.get_encoded(rows))])
        for one in (storage, other):
            found = one.get(rows)
            assert isinstance(found.get("task"), NonTensorStack)
            assert list(found["task"]) == [f"task {number % 3}" for number in found["action", "move"].tolist()]
            assert list(found["next", "info", "note"]) == ["same"] * 12
            assert one.get(rows[:1], ["task"])["task"] == [f"task {5 % 3}"]
            assert one.get(rows[:0]).batch_size == (0,)
            one.update(rows[:1], one.get(rows[1:2]))
            assert one.get(rows[:1])["task"] == one.get(rows[1:2])["task"]
        numbers = told(0, 1).set("task", torch.zeros(2, 1))
        with pytest.raises(SchemaMismatchError, match=r"key 'task': expected text, found torch\.float32"):
            storage.append(numbers)
        with pytest.raises(SchemaMismatchError, match="key 'task' is missing"):
            storage.append(told(0, 1).exclude("task"))
        with pytest.raises(SchemaMismatchError, match="key 'more'"):
            storage.append(told(0, 1).set_non_tensor("more", "x"))

    def test_texts_that_are_overwritten_are_forgotten(self) -> None:
        storage = self.make(8)
        for first in range(0, 4000, 8):
            made = TensorDict({"task": [f"step {number}" for number in range(first, first + 8)]}, [8])
            storage.append(made)
        assert list(storage.get(storage.row_at(np.arange(8)))["task"]) == [f"step {n}" for n in range(3992, 4000)]
        assert len(storage.state_dict()["texts"]["texts"]) < 1100

    def test_keys_of_every_kind_are_kept(self) -> None:
        storage = self.make(6)
        written = steps(range(9))
        number = torch.arange(9)
        written["action_log_prob"] = number.double() / 7
        written["params", "loc"] = number.half()[:, None].expand(9, 3).clone()
        written["state", "h"] = (number[:, None, None] + torch.zeros(2, 3)).to(torch.bfloat16)
        written["wide"] = number[:, None].to(torch.complex64).expand(9, 200).clone()
        written["flag"] = number % 2 == 0
        written["empty"] = torch.zeros(9, 0)
        written["depth"] = number.to(torch.uint16)
        written["next", "info", "lives"] = number.to(torch.int8)
        written["next", "info", "deep", "er"] = number.to(torch.uint8)[:, None]
        storage.append(written)
        storage.update(storage.row_at(np.arange(2)), written[3:5])
        found = storage.get(storage.row_at(np.arange(6)))
        keys = set(written.keys(include_nested=True, leaves_only=True))
        assert set(found.keys(include_nested=True, leaves_only=True)) == keys
        for key in keys:
            assert found[key].dtype == written[key].dtype
            assert torch.equal(found[key], written[key][3:]), key

    def test_index_and_is_init_may_be_missing(self) -> None:
        first = steps(range(3)).set("index", torch.arange(40, 43)).set("is_init", torch.zeros(3, 1, dtype=torch.bool))
        second = steps(range(3, 6))
        both = self.make(12)
        both.append(first)
        both.append(second)
        both.append(steps(range(8, 10)))
        found = both.get(np.arange(8))
        assert found["index"].tolist() == [40, 41, 42, -1, -1, -1, -1, -1]
        assert found["is_init"].flatten().tolist() == [False] * 3 + [True, False, False, True, False]
        neither = self.make(12)
        neither.append(second)
        neither.append(first)
        assert not neither.has("index")
        assert not neither.has("is_init")

    def test_other_lanes(self) -> None:
        storage = self.make(12, ndim=2)
        storage.append(steps([[1, 2], [3, 4]]))
        with pytest.raises(SchemaMismatchError, match=r"lanes of shape \[3\]: expected \[2\]"):
            storage.append(steps([[1], [2], [3]]))
        with pytest.raises(SchemaMismatchError, match="expected 2 dimensions"):
            storage.append(steps([1]))
        with pytest.raises(SchemaMismatchError, match="13 lanes"):
            self.make(12, ndim=2).append(steps([[1]] * 13))

    def test_nothing_is_written(self) -> None:
        storage = self.make(4)
        assert storage.append(steps(torch.empty(0, dtype=torch.int64))).shape == (0,)
        assert len(storage) == 0

    def test_has(self) -> None:
        storage = self.make(4)
        assert not storage.has("observation")
        storage.append(steps([1]))
        assert storage.has("observation")
        assert storage.has(("next", "done"))
        assert not storage.has("next")
        assert not storage.has("nothing")

    def test_update_changes_steps_in_place(self) -> None:
        storage = self.make(6)
        storage.append(steps(range(8)))
        storage.update(np.array([4, 0, 4]), steps([50, 60, 70]))
        assert numbers_of(storage, storage.row_at(np.arange(6))) == [2, 3, 70, 5, 60, 7]
        assert storage.index().remaining(np.array([2])).tolist() == [6]

    def test_update_of_flags_cuts_trajectories_anew(self) -> None:
        storage = self.make(6)
        storage.append(steps(range(8)))
        assert storage.index().remaining(np.array([2])).tolist() == [6]
        storage.update(np.array([4]), steps([4], done=True))
        assert storage.index().remaining(np.array([2, 5])).tolist() == [3, 3]
        assert storage.index(end_key=("next", "done")).remaining(np.array([2, 5])).tolist() == [3, 3]

    def test_set_appends_what_goes_on_and_parts_what_does_not(self) -> None:
        storage = self.make(6)
        storage.set(np.arange(4), steps(range(4)))
        storage.set(np.array([4, 5, 0]), steps(range(4, 7)))
        assert numbers_of(storage, storage.row_at(np.arange(6))) == [1, 2, 3, 4, 5, 6]
        storage.set(np.array([3]), steps([30]))
        assert numbers_of(storage, np.array([3])) == [30]
        assert [column.tolist() for column in storage.index().trajectories()] == [[1, 3, 4], [2, 1, 3]]

    @pytest.mark.parametrize("restored", [False, True])
    def test_a_later_index_knows_that_nothing_follows_a_replaced_last_step(self, restored: bool) -> None:
        storage = self.make(8)
        blind = ("action", "collector", ("next", "done"))  # ids and flags alone say what continues what
        storage.append(steps(range(3)).select(*blind))
        storage.replace(np.array([2]), steps([9]).select(*blind))
        if restored:
            state, storage = storage.state_dict(), self.make(8)
            source = LazyTensorStorage(8)
            source.append(steps([0, 1, 9]).select(*blind))
            rows = np.arange(3)
            storage.restore(state, [(rows, source.get(rows))])
        storage.append(steps([3, 4]).select(*blind))
        assert storage.index(None, ("next", "done")).follow(np.arange(5), 2)[:, 1].tolist() == [1, -1, -1, 4, -1]

    def test_empty(self) -> None:
        storage = self.make(6, ndim=2)
        storage.append(steps([[1, 2], [3, 4]]))
        storage.empty()
        assert len(storage) == 0
        with pytest.raises(IndexError):
            storage.get(np.array([0]))
        with pytest.raises(SchemaMismatchError):
            storage.append(steps([[1]]).exclude("observation"))
        assert storage.append(steps([[5], [6]])).tolist() == [[0], [3]]
        assert numbers_of(storage, np.array([0, 3])) == [5, 6]
        assert storage.index().remaining(np.array([0, 3])).tolist() == [1, 1]

    def test_state_is_restored_exactly(self) -> None:
        storage = self.make(12, ndim=2)
        for first in range(0, 20, 2):
            number = torch.arange(first, first + 2) + 100 * torch.arange(2)[:, None]
            storage.append(steps(number, ids=torch.tensor([[first % 3], [10 + first % 4]]), done=first % 8 == 6))
        storage.index(end_key=("next", "done"))
        file = io.BytesIO()
        torch.save(storage.state_dict(), file)
        file.seek(0)
        rows = storage.row_at(np.arange(12))
        blocks = [(rows[at], storage.get(rows[at])) for at in (slice(5, 12), slice(0, 5))]
        for other in (self.make(12, ndim=2), storage):
            other.restore(torch.load(file, weights_only=True), blocks)
            file.seek(0)
            assert other.lane_shape == (2,)
            assert numbers_of(other, other.row_at(np.arange(12))) == [14, 15, 16, 17, 18, 19, *range(114, 120)]
            for keys in ({}, {"end_key": ("next", "done")}):
                mine, its = storage.index(**keys), other.index(**keys)
                assert [c.tolist() for c in mine.trajectories()] == [c.tolist() for c in its.trajectories()]
                assert mine.at_reset(rows).tolist() == its.at_reset(rows).tolist()
        older = torch.load(file, weights_only=True)
        assert [saved.pop("named") for saved in older["indices"]] == [True]
        storage.restore(older, blocks)
        before = [index["named"] for index in storage.state_dict()["indices"]]
        storage.index(end_key=("next", "done"))
        assert [index["named"] for index in storage.state_dict()["indices"]] == before == [True]
        with pytest.raises(SchemaMismatchError, match="checkpoint"):
            self.make(4, ndim=2).restore(storage.state_dict(), [])

    # Every storage's test class runs it.
    @settings(max_examples=30, suppress_health_check=[HealthCheck.differing_executors])
    @given(seed=st.integers(0, 2**32), lanes=st.integers(1, 3), size=st.integers(1, 12), asks=st.floats(0, 1))
    def test_it_keeps_what_a_list_keeps(self, seed: int, lanes: int, size: int, asks: float) -> None:
        rng = np.random.default_rng(seed)
        storage, oracle = self.make(lanes * size, ndim=2), Oracle(size, lanes)
        kept: dict[int, int] = {}
        for _ in range(int(rng.integers(1, 8))):
            # Of a write that overwrites itself, what several lanes had in common is not known.
            count = int(rng.integers(1, 2 * size + 2 if kept and lanes == 1 else size + 1))
            rows = oracle.rows(list(range(lanes)), count)
            numbers = rng.integers(0, 10) + np.arange(lanes * count).reshape(lanes, count)
            ids: NDArray[np.int64] = np.repeat(rng.integers(0, 3, (lanes, count)), 2, axis=1)[:, :count]
            done = rng.random((lanes, count)) < 0.2
            written = steps(torch.from_numpy(numbers), ids=torch.from_numpy(ids.copy()), done=torch.from_numpy(done))
            written = written.exclude(("next", "observation"))  # ids and flags alone say what follows what
            assert storage.append(written).reshape(-1).tolist() == rows.tolist()
            oracle.write(rows, ids.reshape(-1), done.reshape(-1))
            if not kept:
                storage.index().elapsed(rows[:0])  # which is exact from now on, whether or not anybody asks
            if rng.random() < asks:
                assert_same(storage.index(), oracle, has_ids=True)
            kept |= dict(zip(rows.tolist(), numbers.reshape(-1).tolist(), strict=True))
        found = storage.get(np.array(list(kept), np.int64))
        assert found["action", "move"].tolist() == list(kept.values())
        assert torch.equal(found["observation"], steps(list(kept.values()))["observation"])
        assert_same(storage.index(), oracle, has_ids=True)


class TrajectoryKeysContract(ABC):
    """By which keys a storage finds trajectories."""

    @abstractmethod
    def make(self, max_size: int, ndim: int = 1) -> RingStorage:
        """An empty storage."""

    def test_ids_and_done_both_end_a_trajectory(self) -> None:
        storage = self.make(8)
        storage.append(steps(range(6), ids=torch.tensor([1, 1, 1, 2, 2, 2]), done=torch.arange(6) == 1))
        assert storage.index().trajectories()[1].tolist() == [2, 1, 3]
        assert storage.index(end_key=("next", "done")).trajectories()[1].tolist() == [2, 4]
        assert storage.index(traj_key=("collector", "traj_ids")).trajectories()[1].tolist() == [2, 1, 3]

    def test_an_episode_key(self) -> None:
        storage = self.make(8)
        storage.append(steps(range(4)).exclude("collector").set("episode", torch.tensor([5, 5, 6, 6])))
        assert storage.index().trajectories()[1].tolist() == [2, 2]

    def test_terminated_or_truncated_where_there_is_no_done(self) -> None:
        storage = self.make(8)
        written = steps(range(6)).exclude("collector", ("next", "done"))
        written["next", "terminated"] = (torch.arange(6) == 1)[:, None]
        written["next", "truncated"] = (torch.arange(6) == 3)[:, None]
        storage.append(written)
        assert storage.index().trajectories()[1].tolist() == [2, 2, 2]
        assert storage.index(end_key=[("next", "truncated")]).trajectories()[1].tolist() == [4, 2]

    def test_without_any(self) -> None:
        storage = self.make(8)
        storage.append(steps(range(6)).exclude("collector", ("next", "done")))
        assert len(storage) == 6
        with pytest.raises(SamplingError, match="no trajectories"):
            storage.index()
        with pytest.raises(SamplingError, match="'nothing' is not stored, found action/aim"):
            storage.index(traj_key="nothing")

    def test_before_anything_is_written(self) -> None:
        assert len(self.make(8).index()) == 0

    def test_keys_named_late_find_what_is_stored(self) -> None:
        storage = self.make(4)
        for first in range(0, 6, 2):
            storage.append(steps(range(first, first + 2), done=torch.tensor([False, first == 2])))
        index = storage.index(end_key=("next", "done"))
        assert [column.tolist() for column in index.trajectories()] == [[2, 0], [2, 2]]
        assert index.at_reset(np.array([2, 0])).tolist() == [False, True]
        storage.append(steps([6]))
        assert index.remaining(np.array([3, 0])).tolist() == [1, 3]


class Oracle:
    """What a ``RingTrajectoryIndex`` should say."""

    def __init__(self, size: int, lanes: int) -> None:
        self.size = size
        self.calls: list[list[list[int]]] = []  # of steps [row, id, done]
        self.time = [0] * lanes

    def rows(self, lanes: list[int], steps: int) -> Rows:
        """Where that many steps per lane go."""
        rows = [b * self.size + t % self.size for b in lanes for t in range(self.time[b], self.time[b] + steps)]
        for lane in lanes:
            self.time[lane] += steps
        return np.array(rows, np.int64)

    def write(self, rows: Rows, ids: Rows | None, done: NDArray[np.bool_]) -> None:
        ids = np.zeros(len(rows), np.int64) if ids is None else ids
        self.calls.append([list(step) for step in zip(rows.tolist(), ids.tolist(), done.tolist(), strict=True)])

    def update(self, row: int, key: int, done: bool) -> None:
        step = [step for call in self.calls for step in call if step[0] == row][-1]
        step[1:] = key, done

    def stored(self, *, has_ids: bool) -> dict[int, tuple[int, int]]:
        """(trajectory, place in it) of every stored row."""
        by_row: dict[int, tuple[int, int]] = {}
        holders: dict[int, dict[int, int]] = {}
        length: Counter[int] = Counter()
        for call in self.calls:
            lanes_of = {key: {row // self.size for row, k, _ in call if k == key} for _, key, _ in call}
            for row, key, done in call:
                lane, mine = row // self.size, holders.setdefault(key, {})
                is_local = not has_ids or len(lanes_of[key]) > 1
                if lane in mine:
                    number = mine.pop(lane)
                elif len(mine) == 1 and not is_local:
                    number = mine.popitem()[1]
                else:
                    number = len(length)
                by_row[row] = number, length[number]
                length[number] += 1
                if not done:
                    mine[lane] = number
        return by_row


def assert_same(
    index: TrajectoryIndex, oracle: Oracle, *, has_ids: bool, check_reset: bool = True, check_order: bool = True
) -> None:
    """Compares every answer for every stored row."""
    by_row = oracle.stored(has_ids=has_ids)
    row_of = {place: row for row, place in by_row.items()}
    live = [
        b * oracle.size + t % oracle.size
        for b, end in enumerate(oracle.time)
        for t in range(max(0, end - oracle.size), end)
    ]
    rows = np.array(live, np.int64)
    assert len(index) == len(live) == len(by_row)
    assert index.row_at(np.arange(len(live))).tolist() == live

    def chase(row: int, by: int) -> list[int]:
        number, place = by_row[row]
        found = []
        while (number, place) in row_of:
            found.append(row_of[number, place])
            place += by
        return found

    ahead, back = [chase(row, 1) for row in live], [chase(row, -1) for row in live]
    assert index.remaining(rows).tolist() == [len(found) for found in ahead]
    assert index.elapsed(rows).tolist() == [len(found) - 1 for found in back]
    for steps in (1, 3, 7):
        none = [-1] * steps
        assert index.follow(rows, steps).tolist() == [(found + none)[:steps] for found in ahead]
        after = [(found + none)[steps - 1] for found in ahead]
        assert index.after(rows, np.full(len(rows), steps - 1)).tolist() == after
        assert index.precede(rows, steps).tolist() == [(found + none)[:steps][::-1] for found in back]
    if check_reset:
        assert index.at_reset(rows).tolist() == [by_row[row][1] == 0 for row in live]
    starts = {row: len(ahead[i]) for i, row in enumerate(live) if len(back[i]) == 1}
    first, length = index.trajectories()
    assert dict(zip(first.tolist(), length.tolist(), strict=True)) == starts
    assert len(first) == len(starts)
    if check_order and len(oracle.time) == 1:
        assert [by_row[row][0] for row in first.tolist()] == sorted(by_row[row][0] for row in starts)
