"""Exit codes of errors, and the two errors that only the command line raises."""

from collections.abc import Mapping
from types import MappingProxyType

from rlx.errors import (
    CodecError,
    CorruptDatasetError,
    CorruptShardError,
    DatasetNotFoundError,
    ForbiddenError,
    OptionError,
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
PIPE_CLOSED = 141  # 128 + SIGPIPE, as shells report it


class UsageError(RlxError):
    """The command's arguments are invalid."""


class InterruptedWorkError(RlxError):
    """Ctrl-C stopped a command that can be resumed."""


_CODES: Mapping[type[RlxError], int] = MappingProxyType(
    {
        UsageError: USAGE,
        CodecError: USAGE,
        OptionError: USAGE,
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
    """Return the exit code of an error; 1 for errors without their own code.

    Example:
        >>> exit_code(ForbiddenError("no")), exit_code(RlxError("else"))
        (4, 1)
    """
    return next((code for kind, code in _CODES.items() if isinstance(error, kind)), ERROR)
