"""A function of the user's: its name, how it gets to other processes, and whether it is still the same."""

import hashlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import cloudpickle

from rlx.errors import TransformError
from rlx.named_object import load_object


@dataclass(frozen=True, slots=True)
class Code:
    """A function of the user's.

    Args:
        name: ``module:name`` or ``file.py:name``; of others what they call themselves.
        sha256: of the file that defines it, or without a file of the function itself.
        sent: the function pickled, where its name alone does not find it.
    """

    name: str
    sha256: str
    sent: bytes | None = field(default=None, repr=False)

    @classmethod
    def named(cls, text: str) -> Self:
        """Return the function of a name.

        Raises:
            TransformError: it does not exist, or importing it failed.
        """
        found = load_object(text, TransformError)
        if not callable(found):
            raise TransformError(f"{text} is a {type(found).__name__}: expected a function")
        place = text.rpartition(":")[0]
        file = Path(place) if place.endswith(".py") else _file_of(place)
        return cls(text, _sha256(file.read_bytes() if file else cloudpickle.dumps(found)))

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Self:
        """Return a function itself."""
        sent = cloudpickle.dumps(function)
        module = getattr(function, "__module__", "")
        name = getattr(function, "__qualname__", type(function).__qualname__)
        return cls(f"{module}:{name}", _sha256(_written(function, module) or sent), sent)

    def load(self) -> Callable[..., Any]:
        """Return the function, in whatever process.

        Raises:
            TransformError: its module cannot be imported here.
        """
        return _loaded(self.name, self.sent)


@runtime_checkable
class UserCode(Protocol):
    """A transform that runs a function of the user's."""

    @property
    def code(self) -> Code:
        """The function."""


@lru_cache(maxsize=8)
def _loaded(name: str, sent: bytes | None) -> Callable[..., Any]:
    function: Callable[..., Any] = load_object(name, TransformError) if sent is None else cloudpickle.loads(sent)
    return function


def _file_of(module: str) -> Path | None:
    path = getattr(sys.modules.get(module), "__file__", None)
    return Path(path) if path and path.endswith(".py") and Path(path).is_file() else None


def _written(function: Callable[..., Any], module: str) -> bytes | None:
    """Return the text that a function is written in: its file, or itself alone where that is a script or a notebook."""
    if module != "__main__" and (file := _file_of(module)):
        return file.read_bytes()
    try:
        return inspect.getsource(function).encode()
    except (OSError, TypeError):
        return None


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
