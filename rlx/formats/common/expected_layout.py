"""The layout that a format expects, named at the end of every error of its source."""

from collections.abc import Iterator
from contextlib import contextmanager

from rlx.errors import CorruptShardError, SchemaMismatchError, SourceError


@contextmanager
def expecting(layout: str) -> Iterator[None]:
    """End the message of every SourceError with the expected layout; also a decorator of functions.

    A SchemaMismatchError that is left becomes a CorruptShardError.

    Args:
        layout: the format's, in words that begin with ``expected``.

    Example:
        >>> with expecting("expected D4RL's layout: observations [N, ...], ..."):
        ...     raise SourceError("a.hdf5: rewards is missing")
        Traceback (most recent call last):
            ...
        rlx.errors.SourceError: a.hdf5: rewards is missing; expected D4RL's layout: observations [N, ...], ...
    """
    try:
        yield
    except SourceError as exc:
        if layout not in str(exc):
            exc.args = (f"{exc}; {layout}",)
        raise
    except SchemaMismatchError as exc:
        # No schema can hold what the file holds: the file's fault, whoever makes the fields of it.
        raise CorruptShardError(f"{exc}; {layout}") from exc
