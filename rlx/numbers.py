"""Numbers and flags that users give as arguments: checks of them, and arrays."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, SupportsFloat

from rlx.errors import OptionError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray


def array_of(value: Any, dtype: DTypeLike | None = None) -> NDArray[Any]:
    """Return numbers as an array; those of a tensor may be on any device.

    Example:
        >>> import torch
        >>> array_of([1, 0]), array_of(torch.tensor([0.5], requires_grad=True))
        (array([1, 0]), array([0.5], dtype=float32))
    """
    import numpy as np  # ``rlx --help`` needs no arrays

    return np.asarray(value.numpy(force=True) if hasattr(value, "detach") else value, dtype)


def check_whole(
    name: str,
    value: Any,
    minimum: float | None = 1,
    maximum: float | None = None,
    *,
    error: type[Exception] = OptionError,
) -> int:
    """Return a whole number, such as one of numpy's, as an ``int``.

    Raises:
        OptionError: or the error given, which names the argument: it is not a whole number within the limits.

    Example:
        >>> check_whole("max_size", "a")
        Traceback (most recent call last):
        ...
        rlx.errors.OptionError: max_size 'a': expected a whole number
    """
    if type(value) is int and minimum is not None and minimum <= value and maximum is None:
        return value  # as nearly all are, on the way of every batch
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise error(f"{name} {value!r}: expected a whole number")
    _check_range(name, value, minimum, maximum, error)
    return number


def check_real(
    name: str,
    value: Any,
    minimum: float | None = None,
    maximum: float | None = None,
    *,
    above: float | None = None,
    error: type[Exception] = OptionError,
) -> float:
    """Return a number as a ``float``.

    Args:
        above: a limit that the value must exceed.

    Raises:
        OptionError: or the error given, which names the argument: it is not a number within the limits; NaN is within
            none.

    Example:
        >>> check_real("gamma", 1.5, 0, 1)
        Traceback (most recent call last):
        ...
        rlx.errors.OptionError: gamma 1.5: expected 0 to 1
    """
    if not isinstance(value, SupportsFloat):
        raise error(f"{name} {value!r}: expected a number")
    if above is not None and not float(value) > above:
        raise error(f"{name} {value}: expected more than {above:,}")
    _check_range(name, value, minimum, maximum, error)
    return float(value)


def check_flag(name: str, value: Any, *, error: type[Exception] = OptionError) -> bool:
    """Return a flag, such as one of numpy's, as a ``bool``.

    Raises:
        OptionError: or the error given, which names the argument: it is neither True nor False.

    Example:
        >>> check_flag("sync", "x")
        Traceback (most recent call last):
        ...
        rlx.errors.OptionError: sync 'x': expected True or False
    """
    if value not in (True, False):
        raise error(f"{name} {value!r}: expected True or False")
    return bool(value)


def _check_range(name: str, value: Any, minimum: float | None, maximum: float | None, error: type[Exception]) -> None:
    if minimum is not None and not (minimum <= value and (maximum is None or value <= maximum)):  # also if it is NaN
        limits = f"at least {minimum:,}" if maximum is None else f"{minimum:,} to {maximum:,}"
        raise error(f"{name} {value}: expected {limits}")
