"""Where a command may write."""

import os
from pathlib import Path

from rlx import manifest
from rlx.errors import DatasetExistsError


def check_apart(source: Path, destination: Path) -> None:
    """Raise DatasetExistsError if writing the destination could remove or change the source.

    A destination below a directory of raw files is fine, one inside another dataset is not.
    """
    holds_source, is_held = _holds(destination, source), _holds(source, destination)
    if holds_source and is_held:
        raise DatasetExistsError(f"{destination} is the source itself; expected another directory")
    if holds_source:
        raise DatasetExistsError(f"{destination} contains the source, {source}; expected another directory")
    if is_held and (source / manifest.FILE_NAME).exists():
        raise DatasetExistsError(f"{destination} lies inside the source, {source}; expected another directory")


def _holds(directory: Path, path: Path) -> bool:
    """Return whether a path is a directory, or below it.

    Names do not tell: a file system may ignore the case of letters, or have a directory in two places.
    """
    place, root = path.resolve(), directory.resolve()
    if place.is_relative_to(root) or any(_is_same(root, parent) for parent in (place, *place.parents)):
        return True
    if not Path(str(place).casefold()).is_relative_to(str(root).casefold()):
        return False
    # Some file systems that ignore case give a directory another number for each spelling.
    return _as_listed(place).is_relative_to(_as_listed(root))


def _is_same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them is not there, or nobody may look
        return False


def _as_listed(path: Path) -> Path:
    """Return a path as its directories spell it, where they list it in another case only."""
    listed = Path(path.anchor)
    for part in path.parts[1:]:
        try:
            names = os.listdir(listed)
        except OSError:  # it is not there, or nobody may look
            names = []
        alike = [name for name in names if name.casefold() == part.casefold()]
        listed /= part if part in names or len(alike) != 1 or not (listed / part).exists() else alike[0]
    return listed
