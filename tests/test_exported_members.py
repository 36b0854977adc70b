"""Public names are those that the packages really offer, and asking for them is all that imports torch."""

import ast
import builtins
import inspect
import pkgutil
import pydoc
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import rlx
from rlx.lazy_imports import INSTEAD

PACKAGES = ["rlx", "rlx.buffer", "rlx.collector", "rlx.datasets", "rlx.results"]


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
    assert shared == {"buffer", "collector", "datasets", "errors", "results"}
    assert all(isinstance(getattr(rlx, name), ModuleType) for name in shared)


@pytest.mark.parametrize("package", PACKAGES)
def test_editors_see_the_names_that_are_imported_on_first_use(package: str) -> None:
    """Type checkers and completion read the imports under TYPE_CHECKING, Python the names of ``__dir__``."""
    module = import_module(package)
    assert module.__file__ is not None
    blocks = [node for node in ast.parse(Path(module.__file__).read_text()).body if isinstance(node, ast.If)]
    seen = [node for block in blocks if ast.unparse(block.test) == "TYPE_CHECKING" for node in ast.walk(block)]
    imported = {name.asname for node in seen if isinstance(node, ast.ImportFrom) for name in node.names}
    annotated = {
        node.target.id for node in seen if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert imported | annotated == set(dir(module))


@pytest.mark.parametrize("package", PACKAGES)
def test_help_shows_every_class_and_function(package: str) -> None:
    module = import_module(package)
    text = pydoc.plain(pydoc.render_doc(module))
    for name in module.__all__:
        member = getattr(module, name)
        if isinstance(member, str | ModuleType):
            continue
        assert re.search(rf"^ +(class )?{name}\b.*[(:]", text, re.MULTILINE), name
        first = (inspect.getdoc(member) or "").splitlines()[0]
        assert first, f"{name} has no docstring"
        assert first in text, name


def test_help_of_a_function() -> None:
    text = pydoc.plain(pydoc.render_doc(rlx.open))
    assert "open(path: " in " ".join(text.split()).replace("( ", "(")
    assert "DatasetNotFoundError: path has no dataset." in text


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_imports_no_torch(package: str) -> None:
    heavy = {"torch", "numpy", "zarr", "tensordict"}
    code = f"import sys, {package}; dir({package}); print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


MISSING = [
    *((package, "nothing", "") for package in PACKAGES),
    *((package, name, f": {advice}") for package, names in INSTEAD.items() for name, advice in names.items()),
]


@pytest.mark.parametrize(("package", "name", "advice"), MISSING)
def test_an_unknown_name_is_an_attribute_error(package: str, name: str, advice: str) -> None:
    module = import_module(package)
    assert not hasattr(module, name)
    with pytest.raises(AttributeError, match=re.escape(f"has no attribute '{name}'{advice}")):
        getattr(module, name)
    with pytest.raises(ImportError, match=re.escape(f"{package} has no {name}{advice}") if advice else name):
        exec(f"from {package} import {name}")
