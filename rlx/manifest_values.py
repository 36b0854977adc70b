"""Checks of the other parts of a manifest: statistics, spaces, notes and lineage, which may come from anywhere."""

import math
import re
from collections.abc import Iterable, Mapping
from json.encoder import encode_basestring
from numbers import Integral, Real
from typing import Any

_MAX_DEPTH = 32
_MAX_ID = 1000
_MOST = 2**64
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_NUMBERS = ("n", "start", "low", "high", "nvec", "shape", "min_length", "max_length")


def check_id(id: str) -> None:
    """Raise ValueError unless a dataset can be called so."""
    if not 0 < len(id) <= _MAX_ID or _CONTROL.search(id):
        raise ValueError(f"id {id[:80]!r}")


def check_json(value: Any, where: str, depth: int = 0) -> None:
    """Raise ValueError for what JSON allows and no program can use: infinite or endless numbers, endless nesting."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"{where} is nested more than {_MAX_DEPTH} deep")
    if isinstance(value, str):
        return
    if isinstance(value, dict | Mapping):  # dict first, which is found ten times faster
        for key, inner in value.items():
            check_json(inner, f"{where}.{key[:40]}", depth + 1)
    elif isinstance(value, list):
        for inner in value:
            check_json(inner, where, depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value}")
    elif isinstance(value, int) and abs(value) >= _MOST:
        raise ValueError(f"{where} is beyond 64 bits")


def check_lineage(lineage: Iterable[Any]) -> None:
    """Raise ValueError unless every step of a lineage is an object with texts and a list of parents."""
    for made in lineage:
        if not isinstance(made, dict):
            raise TypeError(f"a step of the lineage is {made!r:.80}")
        for key, kind in (("command", str), ("rlx", str), ("parents", list)):
            if not isinstance(made.get(key, kind()), kind):
                raise TypeError(f"{key} of the lineage is {made[key]!r:.80}")
        check_json(made, "lineage")


def indented(value: Any, line: str = "\n") -> str:
    """Return what ``json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)`` returns, five times faster.

    Args:
        value: of objects, lists, texts, numbers and None; numbers may be numpy's.
        line: what a line begins with, its indentation among it.

    Example:
        >>> print(indented({"a": [1, 2.5], "b": {}}))
        {
         "a": [
          1,
          2.5
         ],
         "b": {}
        }
    """
    if isinstance(value, str):
        return encode_basestring(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"Out of range float values are not JSON compliant: {value}")
        return float.__repr__(value)
    inner = f"{line} "
    if isinstance(value, dict | Mapping):  # dict first, which is found ten times faster
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"keys of {value!r:.80}: expected texts")
        members = [f"{encode_basestring(key)}: {indented(member, inner)}" for key, member in value.items()]
        return f"{{{inner}{f',{inner}'.join(members)}{line}}}" if members else "{}"
    if isinstance(value, list | tuple):
        return f"[{inner}{f',{inner}'.join(indented(member, inner) for member in value)}{line}]" if value else "[]"
    if isinstance(value, Integral | Real):  # of numpy, such as a seed that it drew
        return indented(int(value) if isinstance(value, Integral) else float(value))
    raise TypeError(f"{type(value).__name__} is no type of JSON")


def _are_plain_figures(figures: Any) -> bool:
    """Return whether the figures of a statistic are valid, without saying why not."""
    if type(figures) is not dict:
        return False
    for key, figure in figures.items():
        kind = type(figure)
        if kind is float:
            if not math.isfinite(figure) or key in ("count", "counts"):
                return False
        elif kind is int:
            if not (0 if key == "count" else -_MOST // 2) <= figure < _MOST // 2 or key == "counts":
                return False
        elif kind is not dict or key != "counts" or not all(map(is_count, figure.values())):
            return False
    return True


def check_statistics(statistics: Any) -> None:
    """Raise ValueError unless statistics are figures by their names, each a number, none, a list of such, or counts of
    values."""
    if not isinstance(statistics, dict):
        raise TypeError(f"statistics are {statistics!r:.80}")
    others = {name: figures for name, figures in statistics.items() if not _are_plain_figures(figures)}
    check_json(others, "statistics")
    for name, figures in others.items():
        if not isinstance(figures, dict):
            raise TypeError(f"statistics of {name} are {figures!r:.80}")
        for key, figure in figures.items():
            if key == "counts":
                counted = isinstance(figure, dict) and all(is_count(count) for count in figure.values())
                if not counted:
                    raise ValueError(f"{name}.{key} is {figure!r:.80}")
            elif not all(map(is_count if key == "count" else _is_figure, figure if type(figure) is list else [figure])):
                raise ValueError(f"{name}.{key} is {figure!r:.80}")


def _is_figure(figure: Any) -> bool:
    return figure is None or _is_number(figure)


def check_counts(counts: Any, what: str) -> None:
    """Raise ValueError unless these are counts by their names."""
    if not isinstance(counts, dict) or not all(is_count(count) for count in counts.values()):
        raise ValueError(f"{what} is {counts!r:.80}")


def check_space(space: Any) -> None:
    """Raise ValueError unless this is None, or a space: a type, and numbers where a space has numbers."""
    if space is None:
        return
    if not isinstance(space, dict) or not isinstance(space.get("type", ""), str):
        raise TypeError(f"space is {space!r:.80}")
    check_json(space, "space")
    for key in _NUMBERS:
        if key in space and not _are_numbers(space[key]):
            raise ValueError(f"{key} of a space is {space[key]!r:.80}")
    if not isinstance(n := space.get("n", 1), list) and not is_count(n):
        raise ValueError(f"n of a space is {n!r:.80}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    """Return whether this is a count, of at most 63 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST // 2


def _are_numbers(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_are_numbers, value))
    return value is None or _is_number(value) or value in ("inf", "-inf", "Infinity", "-Infinity")
