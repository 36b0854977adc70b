"""Public names are those that the packages really offer, and asking for them is all that imports torch."""

import builtins
import pkgutil
import subprocess
import sys
from importlib import import_module
from types import ModuleType

import pytest

import rlx

PACKAGES = ["rlx", "rlx.buffer", "rlx.collector", "rlx.datasets"]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_exported_name_is_there(package: str) -> None:
    module = import_module(package)
    assert module.__all__ == sorted(module.__all__)
    for name in module.__all__:
        member = getattr(module, name)
        assert callable(member) or isinstance(member, str | ModuleType), name


@pytest.mark.parametrize("package", PACKAGES)
def test_dir_lists_the_public_names(package: str) -> None:
    module = import_module(package)
    assert set(dir(module)) >= set(module.__all__)
    assert all(hasattr(module, name) for name in dir(module))


def test_import_rlx_shows_what_rlx_does() -> None:
    wanted = {
        "open",
        "Dataset",
        "ReplayBuffer",
        "Collector",
        "buffer",
        "collector",
        "datasets",
        "errors",
        "__version__",
    }
    code = "import rlx; names = dir(rlx); print(rlx.buffer, rlx.collector, rlx.errors.RlxError, *names)"
    assert set(subprocess.check_output([sys.executable, "-c", code], text=True).split()) >= wanted


def test_a_star_import_hides_no_builtin() -> None:
    names: dict[str, object] = {}
    exec("from rlx import *", names)
    assert not (set(names) - {"__builtins__"}) & set(dir(builtins))
    assert names["Dataset"] is rlx.Dataset
    assert set(dir(rlx)) - set(rlx.__all__) == {"Collector", "collector", "open"}


def test_no_function_has_the_name_of_a_submodule() -> None:
    submodules = {found.name for found in pkgutil.iter_modules(rlx.__path__)}
    shared = submodules & set(dir(rlx))
    assert shared == {"buffer", "collector", "datasets", "errors"}
    assert all(isinstance(getattr(rlx, name), ModuleType) for name in shared)


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_imports_no_torch(package: str) -> None:
    heavy = {"torch", "numpy", "zarr", "tensordict"}
    code = f"import sys, {package}; dir({package}); print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


@pytest.mark.parametrize("package", PACKAGES)
def test_an_unknown_name_is_an_attribute_error(package: str) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        getattr(import_module(package), "nothing")  # noqa: B009
