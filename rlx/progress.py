"""Progress of long operations: a parameter, so that the library never prints."""

from typing import Protocol


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
