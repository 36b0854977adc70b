"""Public names are those that the packages really offer, and asking for them is all that imports torch."""

import subprocess
import sys
from importlib import import_module

import pytest

PACKAGES = ["rlx", "rlx.buffer", "rlx.datasets"]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_exported_name_is_there(package: str) -> None:
    module = import_module(package)
    assert module.__all__ == sorted(module.__all__)
    for name in module.__all__:
        member = getattr(module, name)
        assert callable(member) or isinstance(member, str), name


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_imports_no_torch(package: str) -> None:
    code = f"import sys, {package}; print(sorted({{'torch', 'zarr', 'tensordict'}} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


@pytest.mark.parametrize("package", PACKAGES)
def test_an_unknown_name_is_an_attribute_error(package: str) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        getattr(import_module(package), "nothing")  # noqa: B009
