from typing import Any

import numpy as np
import pytest

from rlx.block import Block
from rlx.errors import TransformError
from rlx.schema import Field, Role, Schema
from rlx.transform.registry import parse
from tests.factories import SMALL, make_block

SCHEMA = Schema(
    {
        "observation/place": Field("float32", (2,), Role.OBSERVATION),
        "observation/goal": Field("float64", (3,), Role.OBSERVATION),
        "observation/time": Field("int32", (), Role.OBSERVATION),
        "info/speed": Field("float32", (), Role.STEP),
        **{name: SMALL[name] for name in SMALL if name != "observation"},
    }
)
REQUIRED = ["reward", "terminated", "truncated"]


def block() -> Block:
    made = make_block((3, 5), schema=Schema({name: SCHEMA[name] for name in SCHEMA if name != "info/speed"}))
    data = {**made.data, "info/speed": np.arange(8, dtype=np.float32)}
    return Block(data, made.lengths, made.episodes, made.from_reset, made.final_recorded)


def applied(text: str) -> tuple[Block, Schema]:
    transform: Any = parse(text)
    after = transform.schema(SCHEMA)
    (made,) = transform.blocks(iter([block()]), SCHEMA)
    made.check(after)
    return made, after


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("select:keys=observation/goal", ["observation/goal", *REQUIRED]),
        ("select:keys=action+observation", [*list(SCHEMA)[:3], "action", *REQUIRED]),
        ("exclude:keys=info+action", [*list(SCHEMA)[:3], *REQUIRED]),
        ("exclude:keys=observation/place", [name for name in SCHEMA if name != "observation/place"]),
        (
            "rename:info/speed=speed,observation/goal=goal",
            ["observation/place", "goal", "observation/time", "speed", "action", *REQUIRED],
        ),
    ],
)
def test_fields_that_are_left(text: str, names: list[str]) -> None:
    made, after = applied(text)
    assert list(after) == list(made.data) == names
    given = block().data
    for name in set(names) & set(given):
        assert (made.data[name] == given[name]).all()


def test_renamed_fields_keep_their_role_and_rows() -> None:
    made, after = applied("rename:observation/goal=goal")
    assert after["goal"] == SCHEMA["observation/goal"]
    assert (made.data["goal"] == block().data["observation/goal"]).all()


def test_cat_tensors() -> None:
    made, after = applied("cat_tensors:in_keys=observation/goal+observation/place+observation/time,out_key=obs")
    assert after["obs"] == Field("float64", (6,), Role.OBSERVATION)
    assert [name for name in after if name.startswith("observation")] == []
    given = block().data
    expected = np.concatenate(
        [given["observation/goal"], given["observation/place"], given["observation/time"][:, None]], axis=-1
    )
    assert (made.data["obs"] == expected).all()
    made, after = applied(
        "cat_tensors:in_keys=observation/place+observation/place,out_key=observation/two,del_keys=false"
    )
    assert after["observation/two"] == Field("float32", (4,), Role.OBSERVATION)
    assert "observation/place" in after


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("select:keys=nothing", "unknown field 'nothing': expected one of observation/place"),
        ("exclude:keys=reward", "reward cannot be dropped: expected reward, terminated, truncated in every step"),
        ("rename:truncated=cut", "truncated cannot be dropped: expected reward, terminated, truncated in every step"),
        ("exclude:keys=observation", "no field of role 'observation'"),
        ("rename:action=reward", "two fields would have one name"),
        ("rename:action", "expected OLD=NEW"),
        ("rename:action=index", "'index' is taken"),
        ("rename:action=observation/x", "has role step, expected observation"),
        ("cat_tensors:in_keys=observation,out_key=x", "unknown field 'observation'"),
        ("cat_tensors:in_keys=observation/place+action,out_key=x", "expected one role, and one shape"),
        (
            "cat_tensors:in_keys=observation/place,out_key=observation/goal",
            "field 'observation/goal' already exists",
        ),
        ("cat_tensors:in_keys=observation/place", "out_key is missing: expected cat_tensors:in_keys=...,out_key=..."),
    ],
)
def test_what_cannot_be(text: str, message: str) -> None:
    with pytest.raises(TransformError) as caught:
        applied(text)
    assert message in str(caught.value)
