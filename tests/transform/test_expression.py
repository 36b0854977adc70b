"""Expressions: the mask of all trajectories at once is what Python makes of every one alone, and nothing is run."""

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rlx.errors import TransformError
from rlx.transform.selections import MAX_CHARACTERS, Expression

COLUMNS: dict[str, NDArray[Any]] = {
    "id": np.arange(6),
    "return": np.array([-21.0, 0.0, 10.0, 20.5, np.nan, np.inf]),
    "length": np.array([1, 50, 5000, 120, 7, 50]),
    "episode": np.array([3, 1, 4, 1, 5, 9]),
    "terminated": np.array([True, True, False, True, False, False]),
    "truncated": np.array([False, False, True, False, False, True]),
}


def row_by_row(text: str) -> list[bool]:
    """What Python itself makes of it, of one trajectory after the other."""
    code = compile(text.replace("return", "RETURN"), "test", "eval")
    rows = []
    for row in range(6):
        values = {
            name.replace("return", "RETURN"): column[row] if column.dtype == bool else np.float64(column[row])
            for name, column in COLUMNS.items()
        }
        with np.errstate(all="ignore"):
            rows.append(bool(eval(code, {}, values)))
    return rows


# Python's own numbers would raise on a division by zero; a column's values follow IEEE 754, as a mask does.
NUMBERS = st.one_of(
    st.sampled_from(["return", "length", "episode", "id"]),
    st.tuples(st.sampled_from(["-", "+", "- -"]), st.sampled_from(["return", "id", "2"])).map("".join),
    st.integers(0, 60).map(str),
    st.sampled_from(["2.5", ".5", "1e3", "5."]),
)
SUMS = st.recursive(
    NUMBERS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([" + ", "-", " * "]), inner).map("".join),
        st.tuples(inner, st.sampled_from([" / ", "%"]), st.sampled_from(["length", "return", "episode"])).map("".join),
        inner.map(lambda text: f"({text})"),
    ),
    max_leaves=6,
)
ORDERS = st.sampled_from([" < ", "<=", ">", " >= ", "==", " != "])
COMPARED = st.one_of(
    st.sampled_from(["terminated", "truncated", "True", "False", "(terminated == truncated)"]),
    st.tuples(SUMS, ORDERS, SUMS).map("".join),
    st.tuples(SUMS, ORDERS, SUMS, ORDERS, SUMS).map("".join),
)
CONDITIONS = st.recursive(
    COMPARED,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([" and ", " or "]), inner).map("".join),
        st.tuples(inner, st.sampled_from([" and ", " or "]), inner, st.sampled_from([" and ", " or "]), inner).map(
            "".join
        ),
        inner.map(lambda text: f"not {text}"),
        inner.map(lambda text: f"({text})"),
    ),
    max_leaves=8,
)


@given(CONDITIONS)
def test_the_mask_is_what_python_makes_of_every_row(text: str) -> None:
    if len(text) > MAX_CHARACTERS:
        return
    assert Expression(text).holds(COLUMNS).tolist() == row_by_row(text)


@given(st.text("return<>=!&|+-*/%()[]{}., :;'\"\\\n\tlength0123456789.andortuei_~@^`#é", max_size=40))
def test_any_text_is_an_expression_or_a_named_error(text: str) -> None:
    try:
        expression = Expression(text)
    except TransformError:
        return
    assert expression.holds(COLUMNS).dtype == bool


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("retrun > 10", 1, "name 'retrun' is unknown: did you mean return?"),
        ("length > 3 and Return > 1", 16, "name 'Return' is unknown: did you mean return?"),
        ("reward > 10 and x", 1, "name 'reward' is unknown: expected one of id, shard, length, return, episode,"),
        ("return > __import__", 10, "name '__import__' is unknown"),
        ("length (3) > 2", 1, "length (3): expected only names"),
        ("length.real > 2", 7, "unexpected '.'"),
        ("length[0] > 2", 7, "unexpected '['"),
        ("'a' == return", 1, 'unexpected "\'"'),
        ("return > 1 & length > 2", 12, "unexpected '&': write and"),
        ("return = 1", 8, "unexpected '=': write =="),
        ("return > 1\nor True", 11, r"unexpected '\n'"),
        ("return > ", 9, "unexpected end"),
        ("", 1, "unexpected end"),
        ("(return > 1", 1, "syntax error"),
        ("return > 1) or (length > 2", 11, "syntax error"),
        ("return > > 1", 10, "syntax error"),
        ("return length", 8, "syntax error"),
        ("return > 9 ** 9 ** 9", 10, "9 ** 9 ** 9: expected only names"),
        ("return // 2 > 1", 1, "return // 2: expected only names"),
        ("return > 1e999", 10, "the number is too large"),
        ("return > 9" + "9" * 400, 10, "the number is too large"),
        ("return > 1j", 10, "the number ends in letters"),
        ("return + 1", 1, "return + 1 is a number, expected a condition such as return > 10"),
        ("not length", 5, "length is a number, expected a condition"),
        ("return > 1 and length", 16, "length is a number, expected a condition"),
        ("terminated > 1", 1, "terminated is a condition, expected a number"),
        ("terminated == 1", 15, "1 is a number, expected a condition"),
        ("terminated + 1 > 0", 1, "terminated is a condition, expected a number"),
        ("not " * 120 + "True", 405, "nested too deeply"),
        ("return > " + "(" * 300 + "1" + ")" * 300, None, "expression"),
        ("return > " + "1 + " * 240 + "1", 10, "nested too deeply"),
    ],
)
def test_what_is_wrong_is_named_and_where(text: str, place: int | None, problem: str) -> None:
    with pytest.raises(TransformError) as raised:
        Expression(text)
    said = str(raised.value)
    assert problem in said
    if place is not None:
        assert f", character {place}: " in said


def test_too_long() -> None:
    with pytest.raises(
        TransformError, match=r"expression of 1,001 characters, 'return > 1\+1.*: expected 1,000 at most"
    ):
        Expression("return > 1" + "+1" * 495 + "+")


def test_large_episode_numbers_do_not_wrap_around() -> None:
    columns = {"length": np.array([2**62, 1])}
    assert Expression("length * 1000 > 0").holds(columns).tolist() == [True, True]


def test_it_travels_to_other_processes() -> None:
    expression = Expression(" return > 10 ")
    assert pickle.loads(pickle.dumps(expression)) == expression == Expression("return > 10")
