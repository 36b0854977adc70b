"""Progress of long operations: a parameter, so that the library never prints."""

from typing import Protocol, runtime_checkable

from rlx.errors import OptionError


@runtime_checkable
class Progress(Protocol):
    """Receiver of progress reports; every method may be called from any thread."""

    def expect(self, unit: str, amount: int) -> None:
        """Add ``amount`` of a unit (``bytes``, ``shards``, ``steps``) to the expected total."""

    def advance(self, unit: str, amount: int) -> None:
        """Report that ``amount`` of a unit is done, or lost if it is negative."""


class Silent:
    """Progress that is discarded."""

    def expect(self, unit: str, amount: int) -> None:
        """Do nothing."""

    def advance(self, unit: str, amount: int) -> None:
        """Do nothing."""


def receiver(progress: Progress | None) -> Progress:
    """Return the receiver that an argument names; for None one that discards reports.

    Raises:
        OptionError: it is no receiver.

    Example:
        >>> receiver(True)
        Traceback (most recent call last):
        rlx.errors.OptionError: `progress` True: expected an object with the methods expect and advance
    """
    if progress is None:
        return Silent()
    if not isinstance(progress, Progress):
        raise OptionError(f"`progress` {progress!r}: expected an object with the methods expect and advance")
    return progress
