"""Print the oldest version that pyproject.toml allows of each requirement, as constraints for pip.

    python scripts/oldest_versions.py > constraints.txt

Extras are included. A bound such as ">=3" is pinned as it is written, so it has to name a release.
"""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = Path(__file__).parent.parent / "pyproject.toml"


def main() -> None:
    """Print a constraint per line, sorted by name."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    extras = project["optional-dependencies"].values()
    required = {*project["dependencies"], *(requirement for extra in extras for requirement in extra)}
    print(*sorted(oldest(Requirement(requirement)) for requirement in required), sep="\n")


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
