"""Fields as other libraries have them: spaces of gymnasium, and rows as lists of fixed size of Arrow."""

from __future__ import annotations

import os
import string
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rlx.errors import SchemaMismatchError, imported
from rlx.schema import TEXT, Field
from rlx.wording import number

if TYPE_CHECKING:
    from gymnasium.spaces import Space


_MAX_TEXT = 2**31 - 1


def space_of(fields: Mapping[str, Field], group: str) -> Space[Any]:
    """Return the space of a field, or of the group of fields below a name: a ``Dict``, or a ``Tuple`` of 0, 1, ...

    If the source did not declare the space of a field, it is the range of its dtype.

    Example:
        >>> from rlx.schema import Role
        >>> action = {"action": Field("int64", (), Role.STEP, {"type": "Discrete", "n": 6})}
        >>> space_of(action, "action")
        Discrete(6)
    """
    imported("gymnasium", "spaces need gymnasium", "gym")
    from gymnasium import spaces

    if group in fields:
        return _leaf(group, fields[group])
    below = {name.removeprefix(f"{group}/"): field for name, field in fields.items() if name.startswith(f"{group}/")}
    if not below:
        raise KeyError(f"no field is named {group!r}: expected one of {', '.join(fields)}")
    parts = {name: space_of(below, name) for name in dict.fromkeys(name.split("/")[0] for name in below)}
    if list(parts) == [str(number) for number in range(len(parts))]:
        return spaces.Tuple(list(parts.values()))
    return spaces.Dict(parts)


def in_words(space: Mapping[str, Any] | None) -> str:
    """Return the values of a space, for people.

    Example:
        >>> in_words({"type": "Discrete", "n": 6}), in_words({"type": "Box", "low": -1.0}), in_words(None)
        ('0 to 5', '-1 or more', '')
    """
    space = space or {}
    match space:
        case {"type": "Discrete", "n": int(count)}:
            start = int(space.get("start", 0))
            return f"{start} to {start + count - 1}"
        case {"type": "MultiDiscrete", "nvec": counts}:
            return f"below {', '.join(map(str, _flat(counts)))}"[:160]
        case {"type": "MultiBinary"}:
            return "0 or 1"
        case {"type": "Text", "max_length": most}:
            return f"text of at most {most} characters"
    low, high = (set(_flat(space.get(key))) - {None} for key in ("low", "high"))
    each = "in all, " if len(low) > 1 or len(high) > 1 else ""  # the components have bounds of their own
    if low and high:
        return f"{each}{number(min(low))} to {number(max(high))}"
    if low or high:
        return f"{each}{number(min(low))} or more" if low else f"{each}{number(max(high))} or less"
    return "any number" if space.get("type") == "Box" else str(space.get("type", ""))[:160]


def _flat(value: Any) -> list[Any]:
    return [one for part in value for one in _flat(part)] if isinstance(value, list) else [value]


def _leaf(name: str, field: Field) -> Space[Any]:
    from gymnasium import spaces

    declared = field.space or {}
    try:
        match declared.get("type"):
            case "Discrete":
                return discrete(int(declared["n"]), int(declared.get("start", 0)), _integer(field))
            case "MultiDiscrete":
                return spaces.MultiDiscrete(np.array(declared["nvec"]), dtype=_integer(field))
            case "MultiBinary":
                return spaces.MultiBinary(field.shape[0] if len(field.shape) == 1 else field.shape)
        if field.is_text:
            text = spaces.Text(
                declared.get("max_length", _MAX_TEXT),
                min_length=declared.get("min_length", 0),
                charset=declared.get("charset", string.printable),
            )
            return text if not field.shape else _repeated(text, field.shape)
        low, high = _bounds(field, declared)
        return spaces.Box(low, high, field.shape, np.dtype(field.dtype).type)
    except (KeyError, TypeError, ValueError, AssertionError) as exc:
        raise SchemaMismatchError(f"{name}: gymnasium has no space {dict(declared)!r:.200}: {exc}") from exc


def discrete(n: int, start: int, dtype: DTypeLike) -> Space[Any]:
    """Return the space of n whole numbers from ``start``; gymnasium 1.0 draws them as int64 whatever their dtype.

    Example:
        >>> discrete(6, 0, "uint8").dtype
        dtype('uint8')
    """
    from gymnasium import spaces

    try:
        return spaces.Discrete(n, start=start, dtype=np.dtype(dtype).type)
    except TypeError:  # gymnasium 1.0 takes no dtype
        space: Any = spaces.Discrete(n, start=start)
        space.dtype = np.dtype(dtype)
        return cast("Space[Any]", space)


def _integer(field: Field) -> Any:
    dtype = np.dtype(field.dtype)
    return dtype.type if dtype.kind in "iu" else np.int64


def _repeated(space: Space[Any], shape: tuple[int, ...]) -> Space[Any]:
    from gymnasium import spaces

    inner = space if len(shape) == 1 else _repeated(space, shape[1:])
    return spaces.Tuple([inner] * shape[0])


def _bounds(field: Field, declared: Mapping[str, Any]) -> tuple[Any, ...]:
    dtype = np.dtype(field.dtype)
    limits: Mapping[str, Any] = {"low": 0, "high": 1}
    if dtype.kind == "f":
        limits = {"low": -np.inf, "high": np.inf}
    elif dtype.kind in "iu":
        limits = {"low": np.iinfo(dtype).min, "high": np.iinfo(dtype).max}
    bounds = [declared.get(key, limit) for key, limit in limits.items()]
    return tuple(np.array(bound, dtype) if isinstance(bound, list) else bound for bound in bounds)


_NEED = "parquet needs pyarrow"


def pyarrow() -> tuple[ModuleType, ModuleType]:
    """Return the packages ``pyarrow`` and ``pyarrow.parquet``."""
    return imported("pyarrow", _NEED, "parquet"), imported("pyarrow.parquet", _NEED, "parquet")


def arrow_file(path: Path, mode: str = "rb") -> Any:
    """Return an open file of Arrow; its own functions take only paths of UTF-8."""
    arrow, _ = pyarrow()
    return arrow.OSFile(os.fsencode(path), mode)


def write_tables(file: Any, tables: Iterable[Any], **encoding: Any) -> None:
    """Write Arrow tables of the same columns into a Parquet file, a row group each."""
    _, parquet = pyarrow()
    writer: Any = None
    with ExitStack() as stack:
        for table in tables:
            writer = writer or stack.enter_context(
                parquet.ParquetWriter(file, table.schema, compression="zstd", **encoding)
            )
            writer.write_table(table, row_group_size=max(1, len(table)))


def from_rows(rows: NDArray[Any]) -> Any:
    """Return rows [n, ...] as an Arrow array of n entries; objects are texts."""
    arrow, _ = pyarrow()
    # Texts from a list: Arrow takes an array without any for one of nulls.
    array = (
        arrow.array(rows.reshape(-1).tolist(), arrow.string())
        if rows.dtype == object
        else arrow.array(rows.reshape(-1))
    )
    for size in reversed(rows.shape[1:]):
        array = arrow.FixedSizeListArray.from_arrays(array, size)
    return array


def arrow_type(dtype: str, shape: tuple[int, ...], *, is_nullable: bool = False) -> Any:
    """Return the type of rows like these.

    Args:
        is_nullable: whether rows may be missing. Before 26, pyarrow writes null lists of fixed size to Parquet, but
            fails to read them: there, the lists have any size.
    """
    arrow, _ = pyarrow()
    kind = arrow.string() if dtype == TEXT else arrow.from_numpy_dtype(np.dtype(dtype))
    is_any_size = is_nullable and int(arrow.__version__.split(".")[0]) < 26
    for size in reversed(shape):
        kind = arrow.list_(kind) if is_any_size else arrow.list_(kind, size)
    return kind


def row_type(array: Any) -> tuple[str, tuple[int, ...]] | None:
    """Return dtype and shape of the rows that an Arrow array holds; none where they are no numbers, texts or lists of
    them.

    Args:
        array: of one entry at least; where its lists are of no fixed size, the first one says how long they are.
    """
    arrow, _ = pyarrow()
    shape: list[int] = []
    array = array.drop_null()[:1]
    while _is_list(arrow, array.type):
        shape.append(
            array.type.list_size
            if arrow.types.is_fixed_size_list(array.type)
            else max(_lengths(arrow, array), default=0)
        )
        array = array.flatten()
    kind = array.type
    if _is_text(arrow, kind):
        return TEXT, tuple(shape)
    if not (arrow.types.is_integer(kind) or arrow.types.is_floating(kind) or arrow.types.is_boolean(kind)):
        return None
    return np.dtype(kind.to_pandas_dtype()).name, tuple(shape)


def to_rows(array: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an Arrow array of n entries as rows [n, *shape]; texts are objects, each a ``str``."""
    arrow, _ = pyarrow()
    count = len(array)
    for size in shape:
        _check_no_null(array)
        if not _is_list(arrow, array.type):
            raise ValueError(f"expected lists of {size:,}, found none")
        entries = array.flatten()
        if len(entries) != len(array) * size or not _lengths(arrow, array) <= {size}:
            raise ValueError(f"expected lists of {size:,}, found others")
        array = entries
    _check_no_null(array)
    if _is_list(arrow, array.type):
        raise ValueError("expected no lists, found some")
    if _is_text(arrow, array.type):
        return _texts(arrow, array).reshape(count, *shape)
    rows: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return rows.reshape(count, *shape)


def _texts(arrow: ModuleType, array: Any) -> NDArray[Any]:
    """Return texts without nulls; of a dictionary, rows with the same entry are one object."""
    if not arrow.types.is_dictionary(array.type):
        return _objects(arrow, array)
    codes = array.indices.to_numpy(zero_copy_only=False)
    if len(codes) and not 0 <= codes.min() <= codes.max() < len(array.dictionary):
        raise ValueError(f"expected {len(array.dictionary):,} different texts, found the number of another")
    texts: NDArray[Any] = _objects(arrow, array.dictionary)[codes]
    return texts


def _objects(arrow: ModuleType, entries: Any) -> NDArray[Any]:
    texts = np.empty(len(entries), object)
    texts[:] = entries.cast(arrow.large_string()).to_pylist()
    return texts


def _is_text(arrow: ModuleType, kind: Any) -> bool:
    kind = kind.value_type if arrow.types.is_dictionary(kind) else kind
    return bool(arrow.types.is_string(kind) or arrow.types.is_large_string(kind) or arrow.types.is_string_view(kind))


def _is_list(arrow: ModuleType, kind: Any) -> bool:
    types = arrow.types
    return bool(types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind))


def _lengths(arrow: ModuleType, array: Any) -> set[int]:
    if arrow.types.is_fixed_size_list(array.type):
        return {array.type.list_size}
    return set(array.value_lengths().unique().to_pylist())


def _check_no_null(array: Any) -> None:
    if array.null_count:
        raise ValueError(f"expected a value in every row, found {array.null_count:,} nulls")
