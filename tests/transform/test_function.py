"""A user's functions: what they may do to steps, and what is said of those that do something else."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from tensordict import NonTensorData, TensorDict

from rlx.block import Block, join
from rlx.errors import TransformError
from rlx.schema import Field, Role, Schema
from rlx.transform.code import Code
from rlx.transform.functions import Function, Per
from rlx.transform.protocol import Chain, fitted
from rlx.transform.registry import described
from tests.factories import SMALL, cut, make_block
from tests.transform import functions

LENGTHS = (3, 5, 1, 4)


def chain(
    function: Callable[[Any], Any], blocks: Sequence[Block], per: str = "block", chunk: int = 4, schema: Schema = SMALL
) -> Chain:
    lengths = join(blocks).lengths
    applied = Function(Code.of(function), Per(per), chunk)
    return fitted([("fn", applied)], schema, lambda: iter(blocks), {}, np.cumsum(lengths) - lengths)


def applied(
    function: Callable[[Any], Any],
    blocks: Sequence[Block] | None = None,
    per: str = "block",
    chunk: int = 4,
    schema: Schema = SMALL,
) -> tuple[Block, Schema]:
    """All that a function makes of some blocks, joined, and what a step holds then."""
    blocks = blocks or [make_block(LENGTHS)]
    made = chain(function, blocks, per, chunk, schema)
    result = join(list(made.blocks(iter(blocks), Counter())))
    result.check(made.schema)
    return result, made.schema


def message(function: Callable[[Any], Any], per: str = "block", chunk: int = 4) -> str:
    with pytest.raises(TransformError) as caught:
        applied(function, per=per, chunk=chunk)
    return str(caught.value)


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=5),
    st.lists(st.integers(1, 7), max_size=6),
    st.sampled_from(["block", "trajectory", "step"]),
    st.integers(1, 9),
)
def test_a_function_that_changes_nothing(lengths: list[int], cuts: list[int], per: str, chunk: int) -> None:
    block = make_block(lengths)
    made, schema = applied(functions.same, cut(block, cuts), per, chunk)
    assert schema == SMALL
    assert_same(made, block)


def assert_same(made: Block, block: Block) -> None:
    for name in block.data:
        assert made.data[name].tolist() == block.data[name].tolist(), name
    for column in ("lengths", "episodes", "from_reset", "final_recorded"):
        assert getattr(made, column).tolist() == getattr(block, column).tolist(), column


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=5),
    st.lists(st.integers(1, 7), max_size=6),
    st.integers(1, 9),
    st.sets(st.integers(0, 30)),
    st.sets(st.integers(0, 30)),
)
def test_steps_left_out_and_ended(
    lengths: list[int], cuts: list[int], chunk: int, left_out: set[int], ended: set[int]
) -> None:
    """Beside a loop over steps that knows nothing of blocks."""
    assume(not left_out >= set(range(sum(lengths))))

    def function(steps: Any) -> Any:
        steps["next", "terminated"] = (
            steps["next", "terminated"] | torch.isin(steps["index"], torch.tensor(list(ended)))[:, None]
        )
        steps["next", "done"] = steps["next", "terminated"] | steps["next", "truncated"]
        return steps[torch.tensor([int(i) not in left_out for i in steps["index"]], dtype=torch.bool)]

    made, _ = applied(function, cut(make_block(lengths), cuts), chunk=chunk)
    observations, actions, found, resets, episodes = [], [], [], [], []
    goes_on = False
    index = 0
    for episode, length in enumerate(lengths):
        goes_on = False
        for t in range(length):
            if index in left_out:
                goes_on = False
            else:
                if not goes_on:
                    observations.append(1000 * episode + t)
                    found.append(0)
                    resets.append(t == 0)
                    episodes.append(episode)
                observations.append(1000 * episode + t + 1)
                actions.append(t)
                found[-1] += 1
                goes_on = index not in ended
            index += 1
    assert made.data["observation"][:, 0].tolist() == observations
    assert made.data["action"].tolist() == actions
    assert made.lengths.tolist() == found
    assert made.from_reset.tolist() == resets
    assert made.episodes.tolist() == episodes
    assert made.final_recorded.all()


def test_a_function_behind_another() -> None:
    """It gets trajectories that the first has cut, so that several have one number."""

    def left(steps: Any) -> Any:
        return steps[steps["action"] != 2]

    def right(steps: Any) -> Any:
        return steps[steps["action"] != 4]

    block = make_block((3, 7, 6))
    functions_ = [("fn", Function(Code.of(one), chunk_steps=4)) for one in (left, right)]
    made = fitted(functions_, SMALL, lambda: iter([block]), {}, np.array([0, 3, 10]))
    result = join(list(made.blocks(iter(cut(block, [5, 2, 4])), Counter())))
    result.check(SMALL)
    assert result.data["action"].tolist() == [0, 1, 0, 1, 3, 5, 6, 0, 1, 3, 5]
    assert result.lengths.tolist() == [2, 2, 1, 2, 2, 1, 1]
    assert result.data["observation"][:, 0].tolist() == [
        0, 1, 2, 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007, 2000, 2001, 2002, 2003, 2004, 2005, 2006
    ]  # fmt: skip
    assert result.from_reset.tolist() == [True, True, False, False, True, False, False]
    assert result.episodes.tolist() == [0, 1, 1, 1, 2, 2, 2]


def test_values_types_shapes_and_fields_change() -> None:
    def function(steps: Any) -> Any:
        steps["observation"] = steps["observation"].float().mean(1)
        steps["next", "observation"] = steps["next", "observation"].float().mean(1)
        steps["next", "bonus"] = steps["next", "reward"][:, 0].double()
        steps["seen", "before"] = steps["collector", "traj_ids"]
        return steps.exclude("action")

    made, schema = applied(function)
    assert schema["observation"] == Field("float32", (), Role.OBSERVATION)
    assert schema["bonus"] == Field("float64", (), Role.NEXT)
    assert schema["seen/before"] == Field("int64", (), Role.STEP)
    assert "action" not in schema
    assert made.data["seen/before"].tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 2, 3, 3, 3, 3]
    assert made.data["observation"].tolist() == make_block(LENGTHS).data["observation"][:, 0].tolist()


def test_it_is_given_what_the_dataset_gives() -> None:
    functions.SEEN.clear()
    applied(functions.noted, per="trajectory")
    seen = functions.SEEN[1:]  # the first is given once more, to find the schema
    steps: Any = torch.cat(seen)
    assert steps["index"].tolist() == list(range(13))
    assert steps["collector", "traj_ids"].tolist() == [0] * 3 + [1] * 5 + [2] + [3] * 4
    assert steps["next", "observation"][:, 0].tolist() == [
        1, 2, 3, 1001, 1002, 1003, 1004, 1005, 2001, 3001, 3002, 3003, 3004
    ]  # fmt: skip
    assert steps["next", "done"].flatten().nonzero().flatten().tolist() == [2, 7, 8, 12]
    assert steps["next", "reward"].shape == (13, 1)
    assert not steps["done"].any()
    assert [len(one) for one in seen] == list(LENGTHS)


def test_blocks_are_no_longer_than_asked_for_and_steps_are_single() -> None:
    functions.SEEN.clear()
    applied(functions.noted, chunk=4)
    assert [tuple(one.batch_size) for one in functions.SEEN[1:]] == [(4,), (4,), (4,), (1,)]
    functions.SEEN.clear()
    applied(functions.noted, per="step")
    assert {tuple(one.batch_size) for one in functions.SEEN} == {()}


def test_changing_in_place_changes_one_observation_only() -> None:
    def function(steps: Any) -> Any:
        steps["observation"].mul_(2)
        steps["next", "observation"].mul_(2)
        return steps

    made, _ = applied(function)
    assert made.data["observation"].tolist() == (make_block(LENGTHS).data["observation"] * 2).tolist()


def test_randomness_depends_on_the_place_alone() -> None:
    block = make_block(LENGTHS)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, _ = applied(functions.noisy, [block])
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    second, _ = applied(functions.noisy, [block])
    assert first.data["noise"].tolist() == second.data["noise"].tolist()
    assert len(set(first.data["noise"].tolist())) == 13


def test_a_space_stays_where_values_do() -> None:
    schema = Schema({**SMALL.fields, "action": Field("int64", (), Role.STEP, {"type": "Discrete", "n": 6})})
    assert applied(functions.doubled, schema=schema)[1]["action"].space is not None

    def more(steps: Any) -> Any:
        steps["action"] = steps["action"] + 1
        return steps

    assert applied(more, schema=schema)[1]["action"].space is None


def test_unrecorded_observations_stay_zeros() -> None:
    block = make_block((3, 2))
    observation = block.data["observation"].copy()
    observation[3] = 0
    block = Block(
        {**block.data, "observation": observation},
        block.lengths,
        block.episodes,
        block.from_reset,
        np.array([False, True]),
    )

    def function(steps: Any) -> Any:
        steps["observation"] = steps["observation"] + 7
        steps["next", "observation"] = steps["next", "observation"] + 7
        return steps

    made, _ = applied(function, [block])
    assert made.data["observation"][:, 0].tolist() == [7, 8, 9, 0, 1007, 1008, 1009]
    assert made.final_recorded.tolist() == [False, True]


def changed(**values: Any) -> Callable[[Any], Any]:
    """A function that sets keys under ``next`` (``next_x``) or at the root."""

    def function(steps: Any) -> Any:
        for key, value in values.items():
            name: Any = ("next", key[5:]) if key.startswith("next_") else key
            steps[name] = value(steps) if callable(value) else value
        return steps

    return function


def late(first: Any, then: Any) -> Callable[[Any], Any]:
    """A function that begins to differ with trajectory 3."""
    return lambda steps: then(steps) if (steps["collector", "traj_ids"] == 3).any() else first(steps)


BAD = {
    "nothing": (lambda steps: None, "trajectory 3: it returns nothing: expected a TensorDict"),  # noqa: ARG005
    "a number": (lambda steps: 3, "trajectory 3: it returns a value of type int: expected a TensorDict"),  # noqa: ARG005
    "two dimensions": (lambda steps: steps[None], "it returns a batch of [1, 4]: expected one dimension"),
    "an error": (lambda steps: steps["nothing"], "fails on trajectory 3: KeyError"),
    "an exit": (lambda _: sys.exit(3), "fails on trajectory 3: SystemExit: 3"),
    "too few": (lambda steps: steps[:2].exclude("index"), "it returns 2 of 4 steps without index"),
    "too many": (lambda steps: torch.cat([steps, steps]), "it changes index: expected the values of the kept steps"),
    "backwards": (lambda steps: steps[[3, 2, 1, 0]], "it changes index"),
    "shifted": (changed(index=lambda steps: steps["index"] + 100), "it changes index"),
    "no reward": (lambda steps: steps.exclude(("next", "reward")), "reward: expected one number per step"),
    "no next": (lambda steps: steps.exclude(("next", "observation")), "it returns observation and no next observation"),
    "another type": (
        changed(action=lambda steps: steps["action"].double()),
        "it returns action step float64[], expected step int64[] as for the first steps",
    ),
    "another shape": (
        changed(action=lambda steps: steps["action"][:, None]),
        "it returns action step int64[1], expected step int64[] as for the first steps",
    ),
    "another field": (changed(more=lambda steps: steps["action"]), "it returns more step int64[], expected nothing"),
    "a field less": (lambda steps: steps.exclude("action"), "it returns action nothing, expected step int64[]"),
    "not a number": (
        changed(next_reward=lambda steps: steps["next", "reward"] * float("nan")),
        "it returns NaN in reward: expected numbers",
    ),
    "half floats": (
        changed(action=lambda steps: steps["action"].bfloat16()),
        "it returns action: torch.bfloat16, expected a type that numpy has",
    ),
    "text": (changed(text="abc"), "it returns text step string[], expected nothing as for the first steps"),
    "objects": (
        changed(thing=lambda steps: NonTensorData({1}, batch_size=steps.batch_size)),
        "it returns thing: set, expected numbers or text (str)",
    ),
    "flags before": (
        changed(done=lambda steps: ~steps["done"]),
        "it sets done at the root, the state before the step",
    ),
    "done alone": (
        changed(next_done=lambda steps: ~steps["next", "done"]),
        "next done that is not next terminated or truncated",
    ),
    "flags of bytes": (
        changed(next_terminated=lambda steps: steps["next", "terminated"].byte()),
        "schema: terminated is uint8, expected bool",
    ),
    "two kinds": (
        changed(observation=lambda steps: steps["observation"].float()),
        "it returns observation and next observation with different dtypes or shapes",
    ),
    "a name that is taken": (changed(trajectories=lambda steps: steps["action"]), "'trajectories' is taken"),
}


@pytest.mark.parametrize("left_out", [[0], [0, 3], [1, 2], [0, 1, 2, 3]])
def test_trajectories_that_are_left_out_say_nothing_of_the_fields(left_out: list[int]) -> None:
    def function(steps: Any) -> Any:
        if int(steps["collector", "traj_ids"][0]) in left_out:
            return steps[:0]
        steps["more"] = steps["action"].double()
        return steps.exclude("action")

    block = make_block(LENGTHS)
    made = chain(function, [block], per="trajectory")
    left = list(made.blocks(iter([block]), Counter()))
    kept = [number for number in range(len(LENGTHS)) if number not in left_out]
    assert [number for one in left for number in one.episodes.tolist()] == kept
    if kept:
        assert "action" not in made.schema
        assert made.schema["more"] == Field("float64", (), Role.STEP)
        join(left).check(made.schema)


@pytest.mark.parametrize("name", BAD)
def test_bad_functions_are_named_with_the_trajectory(name: str) -> None:
    function, expected = BAD[name]
    told = message(late(functions.same, function), per="trajectory")
    assert expected in told
    assert "trajectory 3" in told
    assert "late.<locals>.<lambda>" in told


@pytest.mark.parametrize(
    ("per", "expected"),
    [("block", "fails on trajectories 2 to 3"), ("trajectory", "on trajectory 3"), ("step", "on trajectory 3")],
)
def test_a_function_that_raises(per: str, expected: str) -> None:
    assert expected in message(functions.fails_on_three, per=per)


def test_an_observation_is_what_was_seen_after_the_step_before() -> None:
    def function(steps: Any) -> Any:
        steps["observation"] = steps["observation"] + 1
        return steps

    told = message(late(functions.same, function), per="trajectory")
    assert "trajectory 3: next observation of a step differs from observation of the following step" in told


def test_an_observation_is_what_was_seen_after_the_step_before_across_blocks() -> None:
    def function(steps: Any) -> Any:
        first = int(steps["index"][0])
        steps["observation"] = steps["observation"] + first
        steps["next", "observation"] = steps["next", "observation"] + first
        return steps

    applied(function, per="trajectory")
    assert "trajectory 1: next observation of a step differs" in message(function, chunk=4)


def test_steps_one_at_a_time_that_differ() -> None:
    def function(step: Any) -> Any:
        return step.exclude("action") if int(step["index"]) == 9 else step

    assert "its results for two steps differ" in message(function, per="step")
    assert "expected a TensorDict of one step" in message(lambda step: step[None], per="step")
    assert "returns nothing" in message(lambda step: None, per="step")  # noqa: ARG005


def test_nothing_is_left() -> None:
    dropped: Counter[str] = Counter()
    made = chain(lambda steps: steps[:0], [make_block(LENGTHS)])
    assert list(made.blocks(iter([make_block(LENGTHS)]), dropped)) == []
    assert (made.schema, dropped) == (SMALL, {"fn": 13})
    blocks: Iterator[Block] = iter([])
    with pytest.raises(TransformError, match="no step is left to apply it to"):
        fitted([("fn", Function(Code.of(functions.same)))], SMALL, lambda: blocks, {}, np.zeros(0, np.int64))


def test_other_tensor_dicts_will_do() -> None:
    def function(steps: Any) -> Any:
        return TensorDict(steps.to_dict(), steps.batch_size)

    assert_same(applied(function)[0], make_block(LENGTHS))


def test_steps_without_an_index_are_those_that_were_given() -> None:
    def doubled(steps: Any) -> Any:
        steps["next", "reward"] *= 2
        return steps.exclude("index")

    block = make_block(LENGTHS)
    made, _ = applied(doubled, [block])
    np.testing.assert_array_equal(made.data["reward"], 2 * block.data["reward"])
    said = message(lambda steps: steps[:1].exclude("index"))
    assert "it returns 1 of 4 steps without index: expected index to identify them" in said


def test_what_a_function_is_called() -> None:
    code = Code.of(functions.doubled)
    assert described(Function(code, Per.BLOCK, 4)) == f"fn:{code.name},per=block,chunk=4"
    assert described(Function(code, Per.STEP)) == f"fn:{code.name},per=step"
    with pytest.raises(TransformError, match="chunk_steps 0: expected at least 1"):
        Function(code, Per.BLOCK, 0)
