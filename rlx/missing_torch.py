"""Modules of rlx that need PyTorch, where it is not installed, as with ``rlx-core``: one error instead of many."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from rlx.errors import MissingExtraError

_PACKAGES = ("torch", "tensordict")


class _Explaining(MetaPathFinder):
    """Finder of rlx's modules, which raise MissingExtraError where they import PyTorch."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module that would be found without this."""
        if not fullname.startswith("rlx."):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        loader: Any = None if spec is None else spec.loader
        if hasattr(loader, "exec_module"):
            loader.exec_module = partial(_executed, loader.exec_module)
        return spec


def _executed(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    try:
        execute(module)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (needed := exc.name.partition(".")[0]) in _PACKAGES:
            raise MissingExtraError.of(f"{module.__name__} needs {needed}", "torch", needed) from exc
        raise


def explain() -> None:
    """Let modules of rlx say what they need, if that is not installed."""
    if any(name not in sys.modules and find_spec(name) is None for name in _PACKAGES):
        sys.meta_path.insert(0, _Explaining())
