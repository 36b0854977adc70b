"""Text fields through transforms: a function gets texts and may return texts; what needs numbers says so."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import NonTensorData, NonTensorStack

from rlx.block import Block, join
from rlx.errors import TransformError
from rlx.schema import Field, Role, Schema
from rlx.store.ted import to_leaf
from rlx.transform.code import Code
from rlx.transform.functions import Function, Per, relabelled
from rlx.transform.protocol import fitted
from rlx.transform.registry import parse
from tests.factories import TEXT, cut, make_block

BLOCK = make_block((3, 5, 2), schema=TEXT)


def applied(transform: Any, blocks: list[Block] | None = None) -> tuple[Block, Schema]:
    blocks = blocks or [BLOCK]
    start = np.array([0, 3, 8])
    chain = fitted([("t", transform)], TEXT, lambda: iter(blocks), {}, start)
    made = join(list(chain.blocks(iter(blocks), Counter())))
    made.check(chain.schema)
    return made, chain.schema


def of(function: Any, per: str = "block", chunk: int = 4) -> Function:
    return Function(Code.of(function), Per(per), chunk)


def same(steps: Any) -> Any:
    return steps


def louder(steps: Any) -> Any:
    steps["task"] = [task.upper() for task in steps["task"]]
    steps["mood"] = NonTensorData("calm", batch_size=steps.batch_size)
    return steps


def louder_step(step: Any) -> Any:
    step["task"] = step["task"].upper()
    step["mood"] = "calm"
    return step


def only_second_words(steps: Any) -> Any:
    steps["words"] = NonTensorStack(*(pair[1] for pair in steps["observation", "words"]))
    steps["next", "words"] = NonTensorStack(*(pair[1] for pair in steps["next", "observation", "words"]))
    return steps.exclude(("observation", "words"), ("next", "observation", "words"))


def talkative(steps: Any) -> Any:
    steps["next", "observation", "words"] = to_leaf(np.full((len(steps), 2), "changed", object))
    return steps


def objects(steps: Any) -> Any:
    steps["task"] = NonTensorStack(*({"a": 1} for _ in range(len(steps))))
    return steps


@settings(max_examples=30)
@given(st.lists(st.integers(1, 6), max_size=6), st.sampled_from(["block", "trajectory", "step"]), st.integers(1, 9))
def test_a_function_that_changes_nothing(cuts: list[int], per: str, chunk: int) -> None:
    made, schema = applied(of(same, per, chunk), cut(BLOCK, cuts))
    assert schema == TEXT
    for name, rows in BLOCK.data.items():
        assert made.data[name].tolist() == rows.tolist(), name


@pytest.mark.parametrize(("function", "per"), [(louder, "block"), (louder, "trajectory"), (louder_step, "step")])
def test_a_function_returns_texts(function: Any, per: str) -> None:
    made, schema = applied(of(function, per))
    assert made.data["task"].tolist() == [task.upper() for task in BLOCK.data["task"].tolist()]
    assert made.data["mood"].tolist() == ["calm"] * 10
    assert schema["mood"] == Field("string", (), Role.STEP)


def test_a_function_returns_observed_texts() -> None:
    made, schema = applied(of(only_second_words))
    assert made.data["words"].tolist() == BLOCK.data["observation/words"][:, 1].tolist()
    assert schema["words"] == Field("string", (), Role.OBSERVATION)


def test_what_a_function_may_not_return() -> None:
    with pytest.raises(TransformError, match="next observation/words of a step differs from observation/words"):
        applied(of(talkative))
    with pytest.raises(TransformError, match=r"it returns task: dict, expected numbers or text"):
        applied(of(objects))


def test_relabel_returns_texts() -> None:
    def shout(data: dict[str, Any]) -> dict[str, Any]:
        return {"task": [task + "!" for task in data["task"]], "info/said": data["info/said"]}

    made = relabelled(Code.of(shout), make_block((2,), schema=TEXT), TEXT)
    assert made["task"].tolist() == ["task 0!"] * 2
    assert {rows.dtype for rows in made.values()} == {np.dtype(object)}


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("select:keys=observation/state+task+action", {"observation/words", "info/said"}),
        ("exclude:keys=task", {"task"}),
        ("rename:task=instruction", {"task"}),
        ("frame_skip:k=2", set()),
        ("n_step:n=2", set()),
        ("clip_reward", set()),
        ("to_float:scale=1", set()),
    ],
)
def test_transforms_of_other_things_hand_texts_on(text: str, gone: set[str]) -> None:
    made, schema = applied(parse(text))
    assert {*TEXT} - {*schema} == gone
    if "instruction" in schema.fields:
        assert made.data["instruction"] is BLOCK.data["task"]
    if text == "frame_skip:k=2":
        assert made.data["info/said"][:2].tolist() == ["info/said 1", "info/said 2"]
        assert made.data["observation/words"][:3, 0].tolist() == [f"observation/words {t}" for t in (0, 2, 3)]


@pytest.mark.parametrize(
    "text",
    [
        "normalize:keys=observation/words",
        "to_float:keys=observation/words",
        "resize:height=2,width=2,keys=observation/words",
        "crop:height=1,width=1,keys=observation/words",
        "grayscale:keys=observation/words",
        "cat_tensors:in_keys=observation/state+observation/words,out_key=both",
    ],
)
def test_transforms_of_numbers_refuse_text_by_name(text: str) -> None:
    with pytest.raises(TransformError, match="observation/words is text: expected a numeric field"):
        applied(parse(text))


def test_a_final_text_that_was_not_recorded_is_empty() -> None:
    unrecorded = Block(
        BLOCK.data, BLOCK.lengths, BLOCK.episodes, BLOCK.from_reset, np.array([True, False, True]), cut=BLOCK.cut
    )
    made, _ = applied(parse("clip_reward"), [unrecorded])
    words = BLOCK.data["observation/words"].copy()
    words[3 + 1 + 5] = ""
    assert made.data["observation/words"].tolist() == words.tolist()
