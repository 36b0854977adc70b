"""Rows of numbers or texts as Arrow's lists of fixed size, one in another for every dimension, and back."""

from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import MissingExtraError
from rlx.schema import TEXT


def pyarrow() -> tuple[ModuleType, ModuleType]:
    """Return the packages ``pyarrow`` and ``pyarrow.parquet``.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import pyarrow  # noqa: PLC0415  (an extra)
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError as exc:
        raise MissingExtraError(
            "parquet needs pyarrow, which is not installed", hint="pip install 'rlx[parquet]'"
        ) from exc
    return pyarrow, pyarrow.parquet


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


def arrow_type(dtype: str, shape: tuple[int, ...]) -> Any:
    """Return the type of rows like these."""
    arrow, _ = pyarrow()
    kind = arrow.string() if dtype == TEXT else arrow.from_numpy_dtype(np.dtype(dtype))
    for size in reversed(shape):
        kind = arrow.list_(kind, size)
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
    """Return an Arrow array of n entries as rows [n, *shape]; texts are objects, each a ``str``.

    Raises:
        ValueError: there is a null in it, or lists of other lengths.
    """
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
    codes = array.indices.to_numpy(zero_copy_only=False) if arrow.types.is_dictionary(array.type) else slice(None)
    entries = array.dictionary if arrow.types.is_dictionary(array.type) else array
    texts = np.empty(len(entries), object)
    texts[:] = entries.cast(arrow.large_string()).to_pylist()
    return texts[codes]


def _is_text(arrow: ModuleType, kind: Any) -> bool:
    kind = kind.value_type if arrow.types.is_dictionary(kind) else kind
    return bool(arrow.types.is_string(kind) or arrow.types.is_large_string(kind) or arrow.types.is_string_view(kind))


def _is_list(arrow: ModuleType, kind: Any) -> bool:
    types = arrow.types
    return bool(types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind))


def _lengths(arrow: ModuleType, array: Any) -> set[int]:
    """Return how long the lists are that an array holds."""
    if arrow.types.is_fixed_size_list(array.type):
        return {array.type.list_size}
    return set(array.value_lengths().unique().to_pylist())


def _check_no_null(array: Any) -> None:
    if array.null_count:
        raise ValueError(f"expected a value in every row, found {array.null_count:,} nulls")
