"""Objects that are closed at the end of a ``with`` block."""

from abc import ABC, abstractmethod
from contextlib import nullcontext, suppress
from types import TracebackType
from typing import Self


class Closing(ABC):
    """Base of objects with ``close``. An error of ``close`` does not replace one of the block."""

    @abstractmethod
    def close(self) -> None:
        """Release what the object holds; repeated calls do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with nullcontext() if error is None else suppress(Exception):
            self.close()
