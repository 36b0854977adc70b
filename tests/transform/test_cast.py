"""``cast`` changes dtypes, and never a value."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import rlx
from rlx.errors import SchemaMismatchError, TransformError
from rlx.schema import DTYPES, TEXT, Field, Role, Schema
from rlx.transform.keys import Cast
from rlx.transform.registry import parse
from tests.factories import SMALL, make_block, write_dataset

NUMBERS = sorted(DTYPES)


def cast(rows: Any, dtype: str) -> Any:
    """The rows of an extra field after a cast."""
    schema = Schema({**SMALL.fields, "extra": Field.of(rows, Role.STEP)})
    block = make_block([len(rows)], schema=schema)
    block = replace(block, data={**block.data, "extra": rows})
    transform = Cast(f"extra={dtype}")
    found = transform.apply(block, schema)
    assert transform.schema(schema)["extra"] == replace(schema["extra"], dtype=dtype)
    return found.data["extra"]


@given(st.data())
def test_every_value_stays_or_the_cast_is_refused(data: st.DataObject) -> None:
    before, after = data.draw(st.sampled_from(NUMBERS)), data.draw(st.sampled_from(NUMBERS))
    rows = data.draw(arrays.arrays(before, st.integers(1, 5)))
    try:
        found = cast(rows, after)
    except TransformError as exc:
        assert f"which {after} would change to" in str(exc)  # noqa: PT017
        with np.errstate(all="ignore"):
            assert any(not _is_same(one, one.astype(after)) for one in rows)
    else:
        assert found.dtype == after
        assert all(_is_same(one, other) for one, other in zip(rows, found, strict=True))


def _is_same(one: Any, other: Any) -> bool:
    """As Python's numbers, which are exact."""
    return bool(one.item() == other.item() or (one != one and other != other))


@pytest.mark.parametrize(
    ("value", "before", "after"),
    [
        (300, "int64", "uint8"),
        (-1, "int8", "uint64"),
        (2**33 + 5, "int64", "int32"),
        (2**53 + 1, "int64", "float64"),
        (2**63, "uint64", "int64"),
        (0.1, "float64", "float32"),
        (1e300, "float64", "float32"),
        (0.5, "float32", "int64"),
        (float("nan"), "float32", "int32"),
        (float("inf"), "float32", "int64"),
        (2, "int64", "bool"),
    ],
)
def test_values_that_would_change(value: float, before: str, after: str) -> None:
    with pytest.raises(TransformError, match=f"extra holds .*, which {after} would change to"):
        cast(np.array([0, value], before), after)


def test_what_is_no_cast() -> None:
    for text, message in (
        ("cast:action", "expected KEY=DTYPE"),
        ("cast:", "expected KEY=DTYPE"),
        ("cast:action=complex64", "dtype 'complex64' is unknown: expected one of bool, float16"),
        ("cast:actions=int32", "unknown field 'actions'"),
        ("cast:terminated=int8", "terminated is int8, expected bool"),
        ("cast:task=int8", "task is text"),
    ):
        with pytest.raises(TransformError, match=message):
            parse(text).schema(Schema({**SMALL.fields, "task": Field(TEXT, (), Role.STEP)}))  # type: ignore[union-attr]


@pytest.mark.parametrize("field", ["action", "reward"])
def test_datasets_of_two_dtypes_say_the_command_that_helps(field: str, tmp_path: Path) -> None:
    wide = {"action": "int64", "reward": "float64"}[field]
    paths = [tmp_path / "narrow", tmp_path / "wide"]
    for path, dtype in zip(paths, ("int32" if field == "action" else "float32", wide), strict=True):
        schema = Schema({**SMALL.fields, field: replace(SMALL[field], dtype=dtype)})
        write_dataset(path, [[make_block(schema=schema)]], schema=schema)
    hint = f"rlx preprocess {paths[0]} NEW --transform cast:{field}={wide}"
    for order in (paths, paths[::-1]):
        for refused in (
            lambda order=order: rlx.merge(order, tmp_path / "both"),
            lambda order=order: rlx.sample(order, batch_size=4, seed=0),
            lambda order=order: next(iter(rlx.loader(order, 8, batches=1))),
        ):
            with pytest.raises(SchemaMismatchError, match=field) as caught:
                refused()
            assert caught.value.hint == hint
    rlx.preprocess(paths[0], tmp_path / "new", transform=[f"cast:{field}={wide}"])
    rlx.merge([tmp_path / "new", paths[1]], tmp_path / "both")
    assert len(rlx.open(tmp_path / "both")) == 16
