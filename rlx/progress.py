"""How far a long verb has come: a parameter, so that the library never prints."""

from typing import Protocol


class Progress(Protocol):
    """Told of the work ahead and of the work done; every method may be called from any thread."""

    def expect(self, unit: str, amount: int) -> None:
        """So much of a unit (``bytes``, ``shards``, ``steps``) lies ahead, on top of what was expected before."""

    def advance(self, unit: str, amount: int) -> None:
        """So much of a unit is done."""


class Silent:
    """Progress that nobody looks at."""

    def expect(self, unit: str, amount: int) -> None:
        """Ignore it."""

    def advance(self, unit: str, amount: int) -> None:
        """Ignore it."""
