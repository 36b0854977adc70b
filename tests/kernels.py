"""Work with the compiled kernel, and without it."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from hatch_build import compile_kernel
from rlx.store.native import library as library_module
from rlx.store.native.gather import gather_kernel
from rlx.store.native.kernel import kernel
from rlx.store.native.library import SWITCH
from rlx.store.native.tree import tree_kernel

HOW = ("compiled", "python")
_CACHED = (kernel, gather_kernel, tree_kernel)
_FOLDER = tempfile.TemporaryDirectory()  # until this process ends


@cache
def built() -> Path | None:
    """The kernel, compiled once a process; None where there is no compiler."""
    target = Path(_FOLDER.name) / "compiled.so"
    return target if compile_kernel(target) else None


@contextmanager
def reading(how: str) -> Iterator[None]:
    """Read, and draw by priority, ``compiled`` or in ``python``; skips the test where that cannot be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(SWITCH, raising=False)
        library = built() if how == "compiled" else Path("none")
        if library is None:
            pytest.skip("no C compiler")
        patch.setattr(library_module, "LIBRARY", library)
        for cached in _CACHED:
            cached.cache_clear()
            assert (cached() is None) == (how == "python")
        yield
    for cached in _CACHED:
        cached.cache_clear()
