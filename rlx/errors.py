"""Every error that the user or the world can mend.

A bug stays a ``ValueError``, ``TypeError`` or ``IndexError`` and shows its traceback; these do not::

    RlxError                        .hint: the command that mends it
    ├─ SourceError
    │  ├─ SourceNotFoundError       the source has no such run, shard or file
    │  ├─ ForbiddenError            the source answers 401 or 403
    │  ├─ DownloadError             the transfer kept failing; worth another try
    │  └─ CorruptShardError         what arrived is not what it should be
    ├─ DatasetError
    │  ├─ DatasetNotFoundError      also a FileNotFoundError
    │  ├─ DatasetExistsError        also a FileExistsError
    │  ├─ DatasetLockedError        another process is writing it, or pushes another to its place
    │  ├─ IncompleteDatasetError    it is still being written
    │  ├─ CorruptDatasetError       a file of a dataset at rest is damaged
    │  ├─ FormatVersionError        written by a newer rlx
    │  ├─ SchemaMismatchError       a block does not fit the schema
    │  ├─ CodecError                no such codec, or one that the store cannot hold
    │  ├─ DiskFullError             no room for what is to be written
    │  └─ FileAccessError           a file cannot be read or written: no permission, a failing disk
    ├─ SamplingError                nothing in the storage fits what was asked for
    │  └─ SliceTooLongError         no trajectory is that long
    ├─ CollectError                 an environment or a policy is not there, fails or does not fit
    │  └─ PolicyNotFoundError       also a FileNotFoundError
    ├─ TransformError               also a ValueError
    ├─ ForkError                    it cannot be used in a process forked from the one that used it
    ├─ EngineError                  a cluster cannot be reached, or its workers lack something
    ├─ ExportError                  a format cannot hold what is to be written in it
    ├─ UnknownFormatError           the name of a file tells no format
    ├─ PartialError                 some shards failed, the rest are safe
    └─ MissingExtraError            also an ImportError
"""


class RlxError(Exception):
    """The root of every error that the user or the world can mend.

    Args:
        message: what is wrong: the thing, what was expected, what was found; lower case, no full stop.
        hint: a command or an action that mends it.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process boundaries by pickle, which knows nothing of keyword arguments.
        return _rebuild, (type(self), str(self), self.hint)


def _rebuild(cls: type[RlxError], message: str, hint: str | None) -> RlxError:
    return cls(message, hint=hint)


class SourceError(RlxError):
    """Experience cannot be read from where it comes from."""


class SourceNotFoundError(SourceError):
    """The source has no such run, shard or file."""


class ForbiddenError(SourceError):
    """The source refuses: HTTP 401 or 403."""


class DownloadError(SourceError):
    """A transfer failed again and again; running the command again resumes it."""


class CorruptShardError(SourceError):
    """A file of the source is damaged or is not of the layout it should have."""


class DatasetError(RlxError):
    """A dataset at rest cannot be read or written."""


class DatasetNotFoundError(DatasetError, FileNotFoundError):
    """There is no dataset at that path or of that id."""


class DatasetExistsError(DatasetError, FileExistsError):
    """The destination holds another dataset, or something that is none."""


class DatasetLockedError(DatasetError):
    """Another process is writing this dataset, or another dataset is being pushed to the same place."""


class IncompleteDatasetError(DatasetError):
    """The dataset has no manifest yet: it is being written, or its writing was interrupted."""


class CorruptDatasetError(DatasetError):
    """A file of a dataset at rest is damaged or missing."""


class FormatVersionError(DatasetError):
    """The dataset was written in a format version that this rlx does not know."""


class SchemaMismatchError(DatasetError):
    """A block has a field too many, one too few, or one of another dtype or shape."""


class CodecError(DatasetError):
    """There is no such codec, or the store cannot hold it."""


class DiskFullError(DatasetError):
    """The disk has no room for what is to be written."""


class FileAccessError(DatasetError):
    """A file is there and cannot be read or written: no permission, a failing disk, too many open files."""


class SamplingError(RlxError):
    """Nothing in the storage fits what was asked for: it is empty, or the sizes do not go together."""


class SliceTooLongError(SamplingError):
    """No trajectory has as many steps as a slice is to have."""


class CollectError(RlxError):
    """An environment or a policy is not there, fails, or one does not fit the other."""


class PolicyNotFoundError(CollectError, FileNotFoundError):
    """There is no such file of a policy or an environment."""


class TransformError(RlxError, ValueError):
    """There is no such transform, it does not suit the data, or a user's function fails on a trajectory."""


class ForkError(RlxError):
    """An object cannot be used in a forked process: its threads, processes or connections are the parent's."""


class EngineError(RlxError):
    """A cluster cannot be reached, or its workers lack what every worker needs."""


class ExportError(RlxError):
    """A format of another project cannot hold what is to be written in it."""


class UnknownFormatError(RlxError):
    """The name of a file does not tell which format it is to have."""


class PartialError(RlxError):
    """Some shards failed; the others are safe. The hint says what does the rest, mostly the same command again."""


class MissingExtraError(RlxError, ImportError):
    """A package that only some users need is not installed."""
