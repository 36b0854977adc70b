"""Where a command may write."""

from pathlib import Path

from rlx import manifest
from rlx.errors import DatasetExistsError


def check_apart(source: Path, destination: Path) -> None:
    """Raise DatasetExistsError if writing the destination could remove or change the source.

    A destination below a directory of raw files is fine, one inside another dataset is not.
    """
    origin, target = source.resolve(), destination.resolve()
    if origin == target:
        raise DatasetExistsError(f"{destination} is the source itself; expected another directory")
    if origin.is_relative_to(target):
        raise DatasetExistsError(f"{destination} contains the source, {source}; expected another directory")
    if target.is_relative_to(origin) and (origin / manifest.FILE_NAME).exists():
        raise DatasetExistsError(f"{destination} lies inside the source, {source}; expected another directory")
