"""The claim of a push: a file beside the manifest that says which dataset is on its way to a location."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rlx.errors import DatasetExistsError, DatasetLockedError, ForbiddenError, SourceNotFoundError
from rlx.files.checksum import FileStat
from rlx.files.location import WritableLocation
from rlx.manifest import MAX_BYTES, Manifest
from rlx.store.layout import differing

CLAIM = "rlx.json.pushing"


@contextmanager
def claimed_for(location: WritableLocation, manifest: Manifest, *, overwrite: bool) -> Iterator[None]:
    """Keep another dataset from being mixed with one that is on its way to a location.

    The claim is that one's manifest. It stays when its push is interrupted, for then files of it lie there; whoever
    pushes the same dataset, or what has become of it, takes it over: that writes the same under the same names.

    Args:
        location: where the dataset goes to.
        manifest: of the dataset.
        overwrite: whether to take over any claim; ``check_claim`` then fails for its previous owner.

    Raises:
        DatasetLockedError: another dataset is on its way there.
        CorruptDatasetError: the claim is damaged.
    """
    seen = _seen(location, manifest, overwrite=overwrite)
    if not location.replace(CLAIM, manifest.encode(), seen=seen):
        raise DatasetLockedError(
            f"{location.url}: somebody else begins to push to it at this moment", hint="run the same command again"
        )
    try:
        yield
    except DatasetExistsError:  # known before anything is sent
        _release(location)
        raise
    _release(location)


def check_claim(location: WritableLocation, manifest: Manifest) -> None:
    """Raise DatasetLockedError if another dataset has taken the place of the one that was on its way."""
    with suppress(SourceNotFoundError):  # somebody else has brought it there; the manifest tells
        content, _ = location.get(CLAIM, max_bytes=MAX_BYTES)
        if content != manifest.encode():
            raise DatasetLockedError(
                f"{location.url}: another push has taken over, of {_parsed(location, content).id}",
                hint="wait for it, then inspect the result: rlx inspect " + location.url,
            )


def _seen(location: WritableLocation, manifest: Manifest, *, overwrite: bool) -> FileStat | None:
    """Return the version of the claim that may be replaced; None if no claim exists."""
    try:
        if overwrite:
            return location.stat(CLAIM)
        content, seen = location.get(CLAIM, max_bytes=MAX_BYTES)
    except SourceNotFoundError:
        return None
    claimed = _parsed(location, content)
    if different := differing(claimed, manifest):
        raise DatasetLockedError(
            f"{location.url}: another dataset, {claimed.id}, is being pushed there, or its push was interrupted: "
            f"{different}",
            hint="wait for it, or run that push again; --overwrite replaces an abandoned one",
        )
    return seen


def _parsed(location: WritableLocation, content: bytes) -> Manifest:
    return Manifest.parse(content, f"{location.url}/{CLAIM}")


def _release(location: WritableLocation) -> None:
    with suppress(ForbiddenError):  # who may not delete leaves a claim that says what the manifest says
        location.delete([CLAIM])
