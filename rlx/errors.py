"""Errors that the user can fix, or that the environment caused.

A bug stays a ``ValueError``, ``TypeError`` or ``IndexError`` and shows its traceback; the classes below do not::

    RlxError                        .hint: the command that fixes it
    ├─ SourceError
    │  ├─ SourceNotFoundError       run, shard or file not found in the source
    │  ├─ ForbiddenError            the source answers 401 or 403
    │  ├─ DownloadError             the transfer failed after all retries; run again
    │  ├─ CorruptShardError         a file of the source is damaged
    │  └─ UrlError                  also an OptionError: a URL is mistyped or not supported
    ├─ DatasetError
    │  ├─ DatasetNotFoundError      also a FileNotFoundError
    │  ├─ DatasetExistsError        also a FileExistsError
    │  ├─ DatasetLockedError        another process writes or pushes to it
    │  ├─ IncompleteDatasetError    it is still being written
    │  ├─ CorruptDatasetError       a file of a dataset at rest is damaged
    │  ├─ FormatVersionError        written by a newer version of rlx
    │  ├─ SchemaMismatchError       a block does not fit the schema
    │  ├─ CodecError                unknown codec, or not supported by the store
    │  ├─ DiskFullError             no space left on the disk
    │  └─ FileAccessError           no permission, or an I/O error of the disk
    ├─ SamplingError                the storage cannot fulfil the request
    │  └─ SliceTooLongError         no trajectory has enough steps
    ├─ RateLimitError               also a TimeoutError: a table may not be written or sampled yet
    ├─ CollectError                 an environment or policy is missing, fails or does not fit
    │  ├─ WorkerLostError           a worker's process ends, or hangs, again and again
    │  └─ PolicyNotFoundError       also a FileNotFoundError
    ├─ TransformError               also a ValueError
    │  └─ TransformOptionError      also an OptionError
    ├─ ForkError                    an object was used after a fork
    ├─ EngineError                  no connection to a cluster, or its workers lack a package
    ├─ ExportError                  the format does not support the data
    ├─ OptionError                  also a ValueError
    ├─ UnknownFormatError           the file name has no known extension
    ├─ PartialError                 some shards failed; the others are complete
    └─ MissingExtraError            also an ImportError
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any, Self

from rlx import distribution
from rlx.wording import without_secrets


class RlxError(Exception):
    """Base class of all errors that the user can fix, or that the environment caused; hides the secrets of URLs.

    Args:
        message: the failure, with the offending value, and the expected one; lower case, no full stop.
        hint: a command or an action that fixes it.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(without_secrets(str(message)))  # gymnasium passes an error on as the message of another
        self.hint = None if hint is None else without_secrets(hint)

    def to_json(self) -> dict[str, str | None]:
        """Return type, message and hint, as ``--json`` prints them."""
        return {"type": type(self).__name__, "message": str(self), "hint": self.hint}

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process boundaries by pickle, which drops keyword arguments.
        return _rebuild, (type(self), str(self), self.hint)


def _rebuild(cls: type[RlxError], message: str, hint: str | None) -> RlxError:
    return cls(message, hint=hint)


class SourceError(RlxError):
    """Error while reading a source."""


class SourceNotFoundError(SourceError):
    """The source has no such run, shard or file."""


class ForbiddenError(SourceError):
    """The server denied access: HTTP 401 or 403."""


class DownloadError(SourceError):
    """A transfer failed after all retries; run the same command again to resume it."""


class CorruptShardError(SourceError):
    """A file of the source is damaged or does not have the expected layout."""


class DatasetError(RlxError):
    """Error while reading or writing a dataset."""


class DatasetNotFoundError(DatasetError, FileNotFoundError):
    """No dataset at that path or with that id."""


class DatasetExistsError(DatasetError, FileExistsError):
    """The destination holds another dataset, or is not a dataset."""


class DatasetLockedError(DatasetError):
    """Another process, or another writer of this one, is writing this dataset; or a push to its location has begun."""


class IncompleteDatasetError(DatasetError):
    """The dataset has no manifest yet: a process is writing it, or was interrupted."""


class CorruptDatasetError(DatasetError):
    """A file of a dataset is damaged or missing."""


class FormatVersionError(DatasetError):
    """The dataset has a format version that this rlx does not support."""


class SchemaMismatchError(DatasetError):
    """The data have a missing or extra field, or a field of another dtype or shape."""


class CodecError(DatasetError):
    """Unknown codec, or the store does not support it."""


class DiskFullError(DatasetError):
    """The disk has no space left for the data."""


class FileAccessError(DatasetError):
    """A file cannot be read or written: no permission, a failing disk, a link that leads elsewhere, a pipe."""


class SamplingError(RlxError):
    """The storage cannot fulfil the request: it is empty, or the requested sizes do not fit together."""


class SliceTooLongError(SamplingError):
    """No trajectory has enough steps for one slice."""


class RateLimitError(RlxError, TimeoutError):
    """The rate limiter of a table blocked writing or sampling for longer than the timeout."""


class CollectError(RlxError):
    """An environment or a policy is missing or fails, or they do not fit each other."""


class WorkerLostError(CollectError):
    """A worker died repeatedly without progress: its environment or policy ends the process or hangs."""


class PolicyNotFoundError(CollectError, FileNotFoundError):
    """The file of a policy or an environment does not exist."""


class TransformError(RlxError, ValueError):
    """A transform does not suit the data, or a user's function fails on a trajectory."""


class ForkError(RlxError):
    """An object was used after a fork: its threads, processes or connections belong to the parent process."""


class EngineError(RlxError):
    """A cluster cannot be reached, or its workers lack a package that every worker needs."""


class ExportError(RlxError):
    """The target format does not support the data."""


class OptionError(RlxError, ValueError):
    """An option is out of range, or conflicts with another one."""


class UrlError(SourceError, OptionError):
    """A URL is mistyped, or of a kind that is not supported."""


class TransformOptionError(TransformError, OptionError):
    """An unknown transform, or a transform with wrong options."""


class UnknownFormatError(RlxError):
    """The format cannot be determined from the file name."""


class PluginError(RlxError):
    """What a package adds to rlx cannot be loaded, or is of another kind."""


class PartialError(RlxError):
    """Some shards failed; the others are complete. The hint names the command for the rest, usually the same one."""


class MissingExtraError(RlxError, ImportError):
    """An optional dependency is not installed, or too old."""

    @classmethod
    def of(cls, need: str, extra: str, module: str = "") -> Self:
        """Return the error for a need, and the extra of rlx that installs the package.

        Args:
            module: of the package; the error has its version if that is why it cannot be used.

        Example:
            >>> error = MissingExtraError.of("images need Pillow", "view")
            >>> str(error), error.hint
            ('images need Pillow, which is not installed', "pip install 'rlx[view]'")
        """
        old = distribution.too_old(module, extra) if module else None
        why = f"{need}, which is not installed" if old is None else f"{need} {old[1]} or newer, found {old[0]}"
        return cls(why, hint=f"pip install '{distribution.name()}[{extra}]'")


def imported(module: str, need: str, extra: str) -> Any:
    """Return a module of an optional dependency.

    Args:
        module: name of the module.
        need: start of the message: ``images need Pillow``.
        extra: the extra of rlx that installs the package.

    Raises:
        MissingExtraError: it is not installed, or older than the extra allows.

    Example:
        >>> imported("absent_package", "images need Pillow", "view")
        Traceback (most recent call last):
        rlx.errors.MissingExtraError: images need Pillow, which is not installed
    """
    try:
        found = import_module(module)
    except ImportError as exc:
        raise MissingExtraError.of(need, extra, module) from exc
    if distribution.too_old(module, extra) is not None:
        raise MissingExtraError.of(need, extra, module)
    return found


def check_installed(module: str, need: str, extra: str) -> None:
    """Raise what ``imported`` does, without importing the module, which may take seconds.

    Example:
        >>> check_installed("absent_package", "images need Pillow", "view")
        Traceback (most recent call last):
        rlx.errors.MissingExtraError: images need Pillow, which is not installed
    """
    if find_spec(module.partition(".")[0]) is None or distribution.too_old(module, extra) is not None:
        raise MissingExtraError.of(need, extra, module)
