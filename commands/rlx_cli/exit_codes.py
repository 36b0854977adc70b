"""What each error makes the process exit with, and the two errors that only a command line knows."""

from collections.abc import Mapping
from types import MappingProxyType

from rlx.errors import (
    CodecError,
    CorruptDatasetError,
    CorruptShardError,
    DatasetNotFoundError,
    ForbiddenError,
    PartialError,
    PolicyNotFoundError,
    RlxError,
    SourceNotFoundError,
    UnknownFormatError,
)

ERROR = 1
USAGE = 2
CORRUPT = 3
FORBIDDEN = 4
NOT_FOUND = 5
PARTIAL = 6
INTERRUPTED = 130
PIPE_CLOSED = 141  # what a shell says of a program that a closed pipe ended


class UsageError(RlxError):
    """The command was not called as it should be."""


class InterruptedWorkError(RlxError):
    """Ctrl-C stopped a command that goes on where it was when it is run again."""


_CODES: Mapping[type[RlxError], int] = MappingProxyType(
    {
        UsageError: USAGE,
        CodecError: USAGE,
        UnknownFormatError: USAGE,
        CorruptShardError: CORRUPT,
        CorruptDatasetError: CORRUPT,
        ForbiddenError: FORBIDDEN,
        SourceNotFoundError: NOT_FOUND,
        PolicyNotFoundError: NOT_FOUND,
        DatasetNotFoundError: NOT_FOUND,
        PartialError: PARTIAL,
        InterruptedWorkError: INTERRUPTED,
    }
)


def exit_code(error: RlxError) -> int:
    """The exit code of an error; 1 for those without one of their own.

    Example:
        >>> exit_code(ForbiddenError("no")), exit_code(RlxError("else"))
        (4, 1)
    """
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), ERROR)
