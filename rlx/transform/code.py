"""User functions: loaded by name, pickled for other processes, and identified by a checksum."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import cloudpickle

from rlx.errors import RlxError, TransformError
from rlx.traces import in_words
from rlx.wording import did_you_mean


def load_object(text: str, failed: type[RlxError], absent: type[RlxError] | None = None) -> Any:
    """Return the object that ``module:name`` or ``file.py:name`` names.

    Args:
        failed: class of the error that reports why it cannot be loaded.
        absent: class of the error if the file does not exist; ``failed`` by default.
    """
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise failed(f"{text!r}: expected module:name or file.py:name")
    module = _module(place, failed, absent)
    if not hasattr(module, name):
        raise failed(f"{place} has no {name!r}", hint=did_you_mean(name, vars(module)))
    return getattr(module, name)


def _module(place: str, failed: type[RlxError], absent: type[RlxError] | None) -> Any:
    try:
        return _file_module(Path(place), failed, absent) if place.endswith(".py") else importlib.import_module(place)
    except RlxError:
        raise
    except (Exception, SystemExit) as exc:  # a user's module may raise anything
        raise failed(f"{place} cannot be imported: {in_words(exc)}", hint=_file_hint(place)) from exc


def _file_hint(place: str) -> str | None:
    """Return a hint if the module is a file in the working directory, which is not on Python's path."""
    file = Path(*place.split(".")).with_suffix(".py")
    return f"{file}:NAME names an object of the file" if not place.endswith(".py") and file.is_file() else None


def _file_module(path: Path, failed: type[RlxError], absent: type[RlxError] | None) -> Any:
    if not path.is_file():
        raise (absent or failed)(f"{path} does not exist")
    spec = importlib.util.spec_from_file_location(f"rlx_user_{path.stem}", path)
    assert spec is not None  # the name ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True, slots=True)
class Code:
    """A user's function.

    Args:
        name: ``module:name`` or ``file.py:name``; of a function object, its module and qualified name.
        sha256: checksum of the file that defines it; without a file, of the function itself.
        sent: the pickled function, if it was not given by name.
    """

    name: str
    sha256: str
    sent: bytes | None = field(default=None, repr=False)

    @classmethod
    def named(cls, text: str) -> Self:
        """Return the function with this name; raise TransformError if it cannot be loaded."""
        found = load_object(text, TransformError)
        if not callable(found):
            raise TransformError(f"{text} is of type {type(found).__name__}: expected a function")
        place = text.rpartition(":")[0]
        file = Path(place) if place.endswith(".py") else _file_of(place)
        return cls(text, _sha256(file.read_bytes() if file else cloudpickle.dumps(found)))

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Self:
        """Return the code of a function object."""
        sent = cloudpickle.dumps(function)
        module = getattr(function, "__module__", "")
        name = getattr(function, "__qualname__", type(function).__qualname__)
        return cls(f"{module}:{name}", _sha256(_written(function, module) or sent), sent)

    def load(self) -> Callable[..., Any]:
        """Return the function, in any process."""
        return _loaded(self.name, self.sent)


@runtime_checkable
class UserCode(Protocol):
    """A transform that runs a user's function."""

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
    """Return the source of a function: its file, or in a script or notebook its own lines only."""
    if module != "__main__" and (file := _file_of(module)):
        return file.read_bytes()
    try:
        return inspect.getsource(function).encode()
    except (OSError, TypeError):
        return None


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
