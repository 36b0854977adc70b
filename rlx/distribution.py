"""The installed distribution of rlx: ``rlx``, or ``rlx-core`` without PyTorch; its version and its lower bounds."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import Distribution

# Modules whose distributions have other names.
_DISTRIBUTIONS = {"PIL": "pillow", "cv2": "opencv-python-headless", "lance": "pylance"}


@cache
def installed() -> Distribution:
    """Return the distribution of rlx that is installed.

    Raises:
        PackageNotFoundError: neither is installed: rlx was put on the path by hand.
    """
    from importlib.metadata import PackageNotFoundError, distribution  # a tenth of the time of ``rlx --help``

    try:
        return distribution("rlx")
    except PackageNotFoundError:
        return distribution("rlx-core")


def version() -> str:
    """Return the version of rlx."""
    return installed().version


def name() -> str:
    """Return the name to install rlx by.

    Example:
        >>> name()
        'rlx'
    """
    from importlib.metadata import PackageNotFoundError

    try:
        return str(installed().metadata["Name"])
    except PackageNotFoundError:
        return "rlx"


@cache
def too_old(module: str, extra: str) -> tuple[str, str] | None:
    """Return the version of a module's package and the oldest that an extra of rlx allows, if it is older; else None.

    Pre-releases count as releases, as builds of PyTorch for a driver have such versions.

    Example:
        >>> too_old("gymnasium", "gym")
    """
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    package = _DISTRIBUTIONS.get(module, module.partition(".")[0].replace("_", "-"))
    try:
        bound = _lower_bound(package, extra, tuple(installed().requires or ()))
        found = version_of(package)
    except PackageNotFoundError:  # such as another build of the same package
        return None
    return (found, bound) if bound is not None and _numbers(found) < _numbers(bound) else None


def _lower_bound(package: str, extra: str, requirements: tuple[str, ...]) -> str | None:
    """Return the lower bound of a package in an extra, among requirements as metadata have them.

    Example:
        >>> requirements = ("numpy>=1.26", "gymnasium>=1.0; extra == 'gym'", 'gymnasium>=1.1; extra == "atari"')
        >>> _lower_bound("gymnasium", "atari", requirements)
        '1.1'
    """
    pattern = re.compile(rf"""{re.escape(package)}\s*\(?>=([\d.]+).*extra == ['"]{re.escape(extra)}['"]""")
    return next((found[1] for text in requirements if (found := pattern.match(text))), None)


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(part) for part in found[0].split(".")] if found else []
    while numbers and numbers[-1] == 0:  # 1.0.0 is not newer than 1.0
        numbers.pop()
    return tuple(numbers)
