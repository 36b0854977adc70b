"""Selections of trajectories: by a condition, which is parsed and never executed, or by sampling."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import OptionError, TransformError
from rlx.numbers import array_of, check_real, check_whole
from rlx.store.dataset import Dataset
from rlx.store.trajectories import Trajectories
from rlx.transform.protocol import Selection
from rlx.wording import did_you_mean

Columns = Mapping[str, NDArray[Any]]
MAX_CHARACTERS = 1000
_MAX_DEPTH = 100
_NUMBER, _TRUTH = "a number", "a condition"
# Names that an expression may use, and their types.
NAMES = MappingProxyType(
    {
        "id": _NUMBER,
        "shard": _NUMBER,
        "length": _NUMBER,
        "return": _NUMBER,
        "episode": _NUMBER,
        "terminated": _TRUTH,
        "truncated": _TRUTH,
        "from_reset": _TRUTH,
        "final_recorded": _TRUTH,
        "cut": _TRUTH,
        "whole": _TRUTH,
    }
)
_WORDS = frozenset({"and", "or", "not", "True", "False"})
_TOKEN = re.compile(
    r" *(?:(?P<word>[A-Za-z_]\w*)|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?!\w)|[<>=!]=|[<>+\-*/%()]|(?P<else>.))",
    re.ASCII | re.DOTALL,
)
# Python's keyword becomes a name of the same length, not writable by users, so that all offsets stay the same.
_SAFE = {"return": "Return"}
_NUMBERED = re.compile(r"(?:\d{1,18}(?:-\d{1,18})?(?:,\d{1,18}(?:-\d{1,18})?)*)?", re.ASCII)
_INSTEAD = {"&": "and", "|": "or", "~": "not", "!": "not", "=": "=="}
_Operation = Callable[[Any, Any], Any]
_ARITHMETIC: Mapping[type[ast.AST], _Operation] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: np.true_divide,
    ast.Mod: np.mod,
}
_ORDER: Mapping[type[ast.AST], _Operation] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_COMPARISONS: Mapping[type[ast.AST], _Operation] = {**_ORDER, ast.Eq: operator.eq, ast.NotEq: operator.ne}


@dataclass(frozen=True)
class Expression:
    """A condition on trajectories.

    It may contain columns of the trajectory table, numbers, comparisons (also chained), ``and``, ``or``, ``not``,
    ``True``, ``False``, ``+ - * / %`` and parentheses, with Python's precedence. All numbers are float64.

    Raises:
        TransformError: the expression does not parse; the message names the character.

    Example:
        >>> columns = {"return": np.array([5.0, 20.0, 30.0]), "length": np.array([100, 200, 9000])}
        >>> Expression("10 < return and not length >= 5000").holds(columns)
        array([False,  True, False])
    """

    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise TransformError(f"expression {self.text!r}: expected a text such as 'return > 10'")
        object.__setattr__(self, "text", self.text.strip())
        kind = self._kind(self._tree())
        if kind != _TRUTH:
            raise self._error(0, f"{self.text} is {kind}, expected {_TRUTH} such as return > 10")

    def holds(self, columns: Columns) -> NDArray[np.bool_]:
        """Return [N] whether the condition holds for each trajectory.

        Args:
            columns: [N] values of each name in the expression; at least one column.
        """
        rows = len(next(iter(columns.values())))
        with np.errstate(all="ignore"):
            holds: NDArray[np.bool_] = np.broadcast_to(self._value(self._tree(), columns), rows).copy()
        return holds

    def _tree(self) -> ast.expr:
        if len(self.text) > MAX_CHARACTERS:
            found = f"expression of {len(self.text):,} characters, {self.text[:20]!r}..."
            raise TransformError(f"{found}: expected {MAX_CHARACTERS:,} at most")
        source = self._source()
        try:
            return ast.parse(source, mode="eval").body
        except SyntaxError as exc:
            # Where the end is missing, Python points at the start of the line or past it.
            place = exc.offset - 1 if exc.offset else len(source)
            raise self._error(place, "syntax error" if source[place:] else "unexpected end") from exc
        except (RecursionError, MemoryError) as exc:
            raise self._error(0, f"nested too deeply, expected {_MAX_DEPTH} levels at most") from exc

    def _source(self) -> str:
        """Return the text for Python's parser, after refusing all other syntax."""
        source, place = self.text, 0
        while place < len(source):
            token = _TOKEN.match(source, place)
            assert token is not None  # the last alternative takes anything
            if token["else"] is not None:
                raise self._unexpected(token.start("else"), token["else"])
            if (word := token["word"]) is not None and word not in _WORDS:
                if word not in NAMES:
                    near = did_you_mean(word, NAMES) or f"expected one of {', '.join(NAMES)}"
                    raise self._error(token.start("word"), f"name {word!r} is unknown: {near}")
                source = source[: token.start("word")] + _SAFE.get(word, word) + source[token.end() :]
            place = token.end()
        return source

    def _kind(self, node: ast.expr, depth: int = 0) -> str:
        """Return whether a part is a number or a condition; raise TransformError for any other part."""
        if depth > _MAX_DEPTH:
            raise self._error(node.col_offset, f"nested too deeply, expected {_MAX_DEPTH} levels at most")
        match node:
            case ast.Name():
                return NAMES[self._written(node)]
            case ast.Constant(value=bool()):
                return _TRUTH
            case ast.Constant(value=int() | float() as value):
                if math.isinf(_double(value)):
                    raise self._error(node.col_offset, "the number is too large")
                return _NUMBER
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self._expect(_TRUTH, operand, depth)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
                return self._expect(_NUMBER, operand, depth)
            case ast.BoolOp(values=parts):
                for part in parts:
                    self._expect(_TRUTH, part, depth)
                return _TRUTH
            case ast.BinOp(op=op, left=left, right=right) if type(op) in _ARITHMETIC:
                self._expect(_NUMBER, left, depth)
                return self._expect(_NUMBER, right, depth)
            case ast.Compare(ops=ops, left=left, comparators=others):
                kind = self._kind(left, depth + 1)
                if any(type(op) in _ORDER for op in ops):
                    self._expect(_NUMBER, left, depth)
                for other in others:
                    self._expect(kind, other, depth)
                return _TRUTH
        written = ast.get_source_segment(self.text, node)
        raise self._error(node.col_offset, f"{written}: expected only names, numbers, comparisons and + - * / %")

    def _expect(self, kind: str, node: ast.expr, depth: int) -> str:
        found = self._kind(node, depth + 1)
        if found != kind:
            written = ast.get_source_segment(self.text, node)
            raise self._error(node.col_offset, f"{written} is {found}, expected {kind}")
        return kind

    def _value(self, node: ast.expr, columns: Columns) -> Any:
        match node:
            case ast.Name():
                column = columns[self._written(node)]
                return column if column.dtype == np.bool_ else column.astype(np.float64)
            case ast.Constant(value=value):
                return np.bool_(value) if isinstance(value, bool) else np.float64(_double(value))  # type: ignore[arg-type]
            case ast.UnaryOp(op=op, operand=operand):
                value = self._value(operand, columns)
                return ~value if isinstance(op, ast.Not) else -value if isinstance(op, ast.USub) else value
            case ast.BoolOp(op=op, values=parts):
                combine = np.logical_and if isinstance(op, ast.And) else np.logical_or
                return combine.reduce(np.broadcast_arrays(*(self._value(part, columns) for part in parts)))
            case ast.BinOp(left=left, op=op, right=right):
                return _ARITHMETIC[type(op)](self._value(left, columns), self._value(right, columns))
            case ast.Compare(left=left, ops=ops, comparators=others):
                values = [self._value(one, columns) for one in (left, *others)]
                found = [_COMPARISONS[type(op)](*pair) for op, pair in zip(ops, pairwise(values), strict=True)]
                return np.logical_and.reduce(np.broadcast_arrays(*found))
        raise AssertionError(node)

    def _written(self, name: ast.Name) -> str:
        return self.text[name.col_offset : name.end_col_offset]

    def _unexpected(self, place: int, character: str) -> TransformError:
        if character.isdecimal():
            return self._error(place, "the number ends in letters")
        instead = f": write {_INSTEAD[character]}" if character in _INSTEAD else ""
        return self._error(place, f"unexpected {character!r}{instead}")

    def _error(self, place: int, problem: str) -> TransformError:
        return TransformError(f"expression {self.text!r}, character {place + 1}: {problem}")


def _double(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


@dataclass(frozen=True)
class Filter:
    """Selection of the trajectories for which a condition holds: ``filter:return > 10 and length < 5000``.

    Args:
        text: an ``Expression``; ``id`` is a trajectory's number among those that reach the filter, ``shard`` the number
            in the name of its shard.
    """

    text: str

    def __post_init__(self) -> None:
        Expression(self.text)

    def keeps(self, table: Trajectories, shard: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return [N] whether the condition holds for each trajectory."""
        return Expression(self.text).holds(columns(table, shard))


@dataclass(frozen=True)
class Subsample:
    """Selection of every n-th trajectory, from the first, or a random fraction of them, rounded.

    Args:
        every: interval; 2 keeps the first, the third, and so on.
        fraction: fraction of the trajectories to keep, 0 to 1; either this or ``every``.
        seed: random seed for ``fraction``.
    """

    every: int = 0
    fraction: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if bool(self.every) == bool(self.fraction):
            raise TransformError("expected either every=N or fraction=F")
        if self.every:
            check_whole("every", self.every, error=TransformError)
        check_real("fraction", self.fraction, 0, 1, error=TransformError)
        check_whole("seed", self.seed, 0, error=TransformError)

    def keeps(self, table: Trajectories, shard: NDArray[np.int64]) -> NDArray[np.bool_]:  # noqa: ARG002
        """Return [N] whether to keep each trajectory."""
        kept = np.zeros(len(table), np.bool_)
        if self.every:
            kept[:: self.every] = True
            return kept
        kept[np.random.default_rng(self.seed).permutation(len(table))[: round(len(table) * self.fraction)]] = True
        return kept


@dataclass(frozen=True)
class Numbered:
    """Selection of trajectories by number: ``trajectories:0-3,7``; the others are left out.

    Args:
        text: ascending numbers and ranges of those that reach the selection, joined by commas.
    """

    text: str

    def __post_init__(self) -> None:
        if not _NUMBERED.fullmatch(self.text):
            raise TransformError(f"trajectories {self.text!r:.100}: expected numbers such as 0-3,7")
        edges = self._ranges().reshape(-1)
        if (np.diff(edges)[::2] < 0).any() or (np.diff(edges)[1::2] <= 0).any():
            raise TransformError(f"trajectories {self.text!r:.100}: expected ascending numbers, each once")

    def keeps(self, table: Trajectories, shard: NDArray[np.int64]) -> NDArray[np.bool_]:  # noqa: ARG002
        """Return [N] whether each trajectory is among the numbers.

        Raises:
            TransformError: there are fewer trajectories.
        """
        ranges = self._ranges()
        if len(ranges) and ranges[-1, 1] >= len(table):
            raise TransformError(f"trajectory {ranges[-1, 1]} is out of range for {len(table):,} trajectories")
        change = np.zeros(len(table) + 1, np.int64)
        change[ranges[:, 0]] += 1
        change[ranges[:, 1] + 1] -= 1
        kept: NDArray[np.bool_] = np.cumsum(change[:-1]) > 0
        return kept

    def _ranges(self) -> NDArray[np.int64]:
        """Return [n, 2] first and last numbers."""
        parts = [part.partition("-") for part in self.text.split(",") if part]
        return np.array([(int(first), int(last or first)) for first, _, last in parts], np.int64).reshape(-1, 2)


def numbered(trajectories: NDArray[np.int64]) -> str:
    """Return the text of ``Numbered`` for these trajectories [n], in storage order.

    Raises:
        TransformError: one is there several times.

    Example:
        >>> numbered(np.array([7, 0, 1, 2, 3]))
        '0-3,7'
    """
    ascending = np.sort(trajectories)
    if (repeats := ascending[1:][np.diff(ascending) == 0]).size:
        raise TransformError(f"trajectory {repeats[0]} is selected several times: a dataset is written with each once")
    runs = np.split(ascending, np.flatnonzero(np.diff(ascending) > 1) + 1) if len(ascending) else []
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)


def largest(table: Trajectories, amount: float, by: Any) -> NDArray[np.int64]:
    """Return [n] the trajectories with the largest values, the largest first; of equal ones, the earlier first.

    Args:
        amount: the number of trajectories, or as a ``float`` the fraction of them, rounded down, but at least one.
        by: a column of the table, or [N] the values.

    Raises:
        OptionError: ``amount`` is out of range, or ``by`` does not give a number for each trajectory.
    """
    values = trajectory_values(table, by)
    if isinstance(amount, float | np.floating):
        check_real("amount", amount, 0, 1, above=0)
        # The decimal that was written: 0.29 of 100 are 29, though the float is a little less.
        count = max(1, math.floor(Fraction(repr(float(amount))) * len(values)))
    else:
        count = check_whole("amount", amount)
    if count > len(values):
        raise OptionError(f"amount {amount}: expected at most {len(values):,}, the number of trajectories")
    _, rank = np.unique(values, return_inverse=True)
    return np.argsort(np.where(np.isnan(values), 1, -rank), kind="stable")[:count]


def trajectory_values(table: Trajectories, by: Any) -> NDArray[Any]:
    """Return [N] a number for each trajectory: those of a column of the table, or those given.

    Raises:
        OptionError: there is no such column, or these are not N numbers.
    """
    if isinstance(by, str):
        found = {**table.columns(), "whole": table.whole}
        if by not in found:
            raise OptionError(f"column {by!r} is unknown: expected one of {', '.join(found)}")
        return found[by]
    values = array_of(by)
    if values.shape != (len(table),) or values.dtype.kind not in "biuf":
        found_here = f"{values.dtype}{list(values.shape)}"
        raise OptionError(f"{found_here}: expected a column, or a number for each of {len(table):,} trajectories")
    return values


def columns(table: Trajectories, shard: NDArray[np.int64]) -> Columns:
    """Return [N] values of every name that an expression may use."""
    return {**table.columns(), "whole": table.whole, "id": np.arange(len(table)), "shard": shard}


def shards(dataset: Dataset) -> NDArray[np.int64]:
    """Return [N] the number in the name of each trajectory's shard."""
    names = np.array([int(record.name) for record in dataset.shard_records], np.int64)
    return names.repeat(np.diff(dataset.first_trajectories))


def chosen(dataset: Dataset, selections: Sequence[Selection]) -> NDArray[np.int64]:
    """Return [n] numbers of the selected trajectories, ascending."""
    numbers, shard = np.arange(len(dataset.trajectories)), shards(dataset)
    for selection in selections:
        numbers = numbers[selection.keeps(dataset.trajectories.pick(numbers), shard[numbers])]
    return numbers
