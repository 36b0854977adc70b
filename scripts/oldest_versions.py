"""Print the oldest version that pyproject.toml allows of each requirement, as constraints for pip.

    python scripts/oldest_versions.py > constraints.txt

Extras are included. A bound such as ">=3" is pinned as it is written, so it has to name a release.
"""

import tomllib
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

PROJECT = Path(__file__).parent.parent / "pyproject.toml"


def main() -> None:
    """Print a constraint per line, sorted by name."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    extras = project["optional-dependencies"].values()
    required = {*project["dependencies"], *(requirement for extra in extras for requirement in extra)}
    print(*oldest_together(Requirement(requirement) for requirement in required), sep="\n")


def oldest_together(requirements: Iterable[Requirement]) -> list[str]:
    """Return the constraints that allow only the oldest versions that fit all requirements, sorted by name.

    Example:
        >>> oldest_together(map(Requirement, ["gymnasium>=1.1", "av>=15", "gymnasium>=1.0"]))
        ['av==15', 'gymnasium==1.1']
    """
    bounds: dict[str, Version] = {}
    for constraint in map(oldest, requirements):
        name, _, version = constraint.partition("==")
        bounds[name] = max(bounds.get(name, Version("0")), Version(version))
    return [f"{name}=={version}" for name, version in sorted(bounds.items())]


def oldest(requirement: Requirement) -> str:
    """Return the constraint that allows only the lower bound of a requirement.

    Raises:
        ValueError: the requirement has no lower bound.

    Example:
        >>> oldest(Requirement("moto[s3,server]>=5.1"))
        'moto==5.1'
    """
    for specifier in requirement.specifier:
        if specifier.operator in (">=", "=="):
            return f"{requirement.name}=={specifier.version}"
    raise ValueError(f"{requirement} has no lower bound")


if __name__ == "__main__":
    main()
