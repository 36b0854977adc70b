from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rlx.buffer.batch import split_trajectories
from rlx.errors import SchemaMismatchError
from tests.buffer.index.sources import Collected


def steps_of(ids: list[list[int]], done: list[list[bool]] | None = None) -> TensorDict:
    """[B, T] steps numbered row by row from 1, so that padding shows."""
    shape = np.array(ids).shape
    steps = TensorDict({}, list(shape))
    steps["observation"] = torch.arange(1, np.prod(shape, dtype=int) + 1).reshape(shape)
    steps["collector", "traj_ids"] = torch.tensor(ids)
    if done is not None:
        steps["next", "done"] = torch.tensor(done).unsqueeze(-1)
    return steps


def oracle(ids: list[list[int]], done: list[list[bool]]) -> list[list[int]]:
    """Step by step: what each trajectory observed."""
    trajectories: list[list[int]] = []
    number = 0
    for row_ids, row_done in zip(ids, done, strict=True):
        open_ones: dict[int, list[int]] = {}
        for i, ended in zip(row_ids, row_done, strict=True):
            number += 1
            if i not in open_ones:
                open_ones[i] = []
                trajectories.append(open_ones[i])
            open_ones[i].append(number)
            if ended:
                del open_ones[i]
    return trajectories


CASES: dict[str, tuple[list[list[int]], list[list[bool]] | None, list[list[int]]]] = {
    "one after the other": ([[0, 0, 1]], None, [[1, 2], [3]]),
    "workers in turns": ([[0, 0, 1, 1, 0, 1]], None, [[1, 2, 5], [3, 4, 6]]),
    "an id comes back after its end": ([[0, 0, 1, 0]], [[False, True, False, False]], [[1, 2], [3], [4]]),
    "an id in two rows of the batch": ([[0, 0], [0, 0]], None, [[1, 2], [3, 4]]),
    "done ends what an id does not": ([[0, 0, 0]], [[True, False, False]], [[1], [2, 3]]),
}


@pytest.mark.parametrize("case", CASES)
def test_trajectories_are_cut_where_they_end(case: str) -> None:
    ids, done, expected = CASES[case]
    split = split_trajectories(steps_of(ids, done))
    mask = split["collector", "mask"]
    assert [row[real].tolist() for row, real in zip(split["observation"], mask, strict=True)] == expected
    assert not split["observation"][~mask].any()
    assert split.names[-1] == "time"


@given(data=st.data())
def test_it_agrees_with_going_step_by_step(data: st.DataObject) -> None:
    rows, steps = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 12))
    ids = [[data.draw(st.integers(0, 2)) for _ in range(steps)] for _ in range(rows)]
    done = [[data.draw(st.booleans()) for _ in range(steps)] for _ in range(rows)]
    split = split_trajectories(steps_of(ids, done))
    mask = split["collector", "mask"]
    found = [row[real].tolist() for row, real in zip(split["observation"], mask, strict=True)]
    assert found == oracle(ids, done)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), pieces=st.integers(1, 8), rows=st.integers(1, 3))
def test_pieces_of_sources_are_put_together_by_their_ids(seed: int, pieces: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    sources = [Collected(number, (rows,), 5, says_init=False, alike=True) for number in range(3)]
    taken = [sources[rng.integers(3)].take(int(rng.integers(1, 7)), blind=False) for _ in range(pieces)]
    joined: Any = torch.cat(cast("list[Any]", taken), 1)
    joined["collector", "traj_ids"] += 1000 * joined["code"][..., 0]
    joined["value"], joined["next", "value"] = torch.rand(2, *joined.shape)  # which say nothing
    joined["observation"][rng.random(joined.shape) < 0.2] += 1e-6  # ids decide
    split = split_trajectories(joined)
    found = [
        [tuple(code) for code in row[real].tolist()]
        for row, real in zip(split["code"], split["collector", "mask"], strict=True)
    ]
    expected: dict[tuple[int, int, int], list[tuple[int, ...]]] = {}
    for lane, row in enumerate(joined["code"].tolist()):
        for source, trajectory, step in row:
            expected.setdefault((lane, source, trajectory), []).append((source, trajectory, step))
    assert found == list(expected.values())


def test_an_observation_that_contradicts_an_id_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    steps = steps_of([[0, 0, 0, 0]]).reshape(-1)
    steps["next", "observation"] = torch.tensor([2, 3, 9, 5])
    assert split_trajectories(steps)["observation"].tolist() == [[1, 2, 3, 4]]
    assert "1 step: the observation is not the next one" in caplog.text
    caplog.clear()
    split_trajectories(steps, trajectory_key=("collector", "traj_ids"))
    assert not caplog.text


def test_a_slice_across_the_wrap_of_a_ring_is_one_piece() -> None:
    steps = steps_of([[0] * 6]).reshape(-1)
    steps["index"] = torch.tensor([7, 8, 9, 0, 1, 2])
    for one in (steps.clone(), steps.clone().set(("next", "observation"), steps["observation"] + 1)):
        assert split_trajectories(one)["observation"].tolist() == [[1, 2, 3, 4, 5, 6]]
    steps["index"] = torch.tensor([7, 8, 9, 20, 21, 22])  # rows of a dataset that do not follow each other
    assert split_trajectories(steps)["observation"].tolist() == [[1, 2, 3], [4, 5, 6]]


def test_texts_are_padded_with_empty_ones() -> None:
    steps = steps_of([[0, 0, 1]]).reshape(-1)
    steps["task"] = ["a", "b", "c"]
    steps["depth"] = torch.tensor([1, 60_000, 3], dtype=torch.uint16)  # which torch cannot write at rows
    split = split_trajectories(steps)
    assert [list(row) for row in split["task"]] == [["a", "b"], ["c", ""]]
    assert split["depth"].tolist() == [[1, 60_000], [3, 0]]


def test_without_ids_done_cuts() -> None:
    steps = steps_of([[0, 0, 0]], [[False, True, False]]).exclude("collector")
    assert split_trajectories(steps)["observation"].tolist() == [[1, 2], [3, 0]]


def test_nested_has_no_padding_and_no_mask() -> None:
    split = split_trajectories(steps_of([[0, 1, 1]]), as_nested=True)
    assert [part.tolist() for part in split["observation"].unbind()] == [[1], [2, 3]]
    assert ("collector", "mask") not in split.keys(include_nested=True)


def test_prefix_and_keys_of_ones_own() -> None:
    steps = steps_of([[0, 0, 1]])
    steps["mine", "ids"] = torch.tensor([[5, 6, 6]])
    split = split_trajectories(steps, prefix="mine", trajectory_key=("mine", "ids"))
    assert split["observation"].tolist() == [[1, 0], [2, 3]]
    assert split["mine", "mask"].tolist() == [[True, False], [True, True]]


def test_nothing_that_says_where_trajectories_end() -> None:
    with pytest.raises(SchemaMismatchError, match="neither trajectory ids nor"):
        split_trajectories(TensorDict({"observation": torch.arange(3)}, [3]))
    with pytest.raises(SchemaMismatchError, match="'missing'"):
        split_trajectories(steps_of([[0]]), trajectory_key="missing")


def test_no_steps_are_no_trajectories() -> None:
    split: Any = split_trajectories(steps_of([[0, 0]])[:, :0])
    assert split.batch_size == torch.Size([0, 0])


def test_what_cannot_be_split() -> None:
    with pytest.raises(SchemaMismatchError, match=r"steps of shape \[\]: expected at least a dimension of time"):
        split_trajectories(TensorDict({"next": {"done": torch.zeros(1)}}, []))
    ids = torch.zeros(4, 2, dtype=torch.int64)
    steps = TensorDict({"collector": {"traj_ids": ids}, "next": {"done": torch.zeros(4, 1, dtype=torch.bool)}}, [4])
    with pytest.raises(SchemaMismatchError, match=r"traj_ids.* of shape \[4, 2\]: expected one per step"):
        split_trajectories(steps)
