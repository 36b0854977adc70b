"""Users' objects by name: ``module:name`` and ``file.py:name``."""

import importlib
import importlib.util
from pathlib import Path
from typing import Any

from rlx.errors import RlxError


def load_object(text: str, failed: type[RlxError], absent: type[RlxError] | None = None) -> Any:
    """Return the object that ``module:name`` or ``file.py:name`` names.

    Args:
        text: the name.
        failed: class of the error that reports why it cannot be loaded.
        absent: class of the error if the file does not exist; ``failed`` by default.

    Raises:
        RlxError: of that class; the module, file or name does not exist, or importing it failed.
    """
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise failed(f"{text!r}: expected module:name or file.py:name")
    module = _module(place, failed, absent)
    if not hasattr(module, name):
        raise failed(f"{place} has no {name!r}")
    return getattr(module, name)


def _module(place: str, failed: type[RlxError], absent: type[RlxError] | None) -> Any:
    try:
        return _file_module(Path(place), failed, absent) if place.endswith(".py") else importlib.import_module(place)
    except RlxError:
        raise
    except (Exception, SystemExit) as exc:  # whatever a stranger's module raises
        raise failed(f"{place} cannot be imported: {type(exc).__name__}: {exc}", hint=_file_hint(place)) from exc


def _file_hint(place: str) -> str | None:
    """Return a hint if the module lies here and not where Python looks for modules."""
    file = Path(*place.split(".")).with_suffix(".py")
    return f"{file}:NAME names what is in a file" if not place.endswith(".py") and file.is_file() else None


def _file_module(path: Path, failed: type[RlxError], absent: type[RlxError] | None) -> Any:
    if not path.is_file():
        raise (absent or failed)(f"{path} does not exist")
    spec = importlib.util.spec_from_file_location(f"rlx_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise failed(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
