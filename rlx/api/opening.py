"""``rlx.open``."""

from rlx.api.arguments import StrPath
from rlx.api.dataset import Dataset
from rlx.files.remote_files import DEFAULT_CACHE_BYTES


def open(
    path: StrPath,
    *,
    verify: bool = False,
    partial: bool = False,
    cache_bytes: int = DEFAULT_CACHE_BYTES,
) -> Dataset:
    """Open a dataset for reading.

    Args:
        path: the dataset's directory, its id below ``$RLX_HOME``, or a URL: ``s3://``, ``gs://``, ``az://`` or
            ``http(s)://``. Reads from a URL fetch only what they need.
        verify: check every file against the manifest first. Reads skip checksums.
        partial: open a dataset that another process is still writing, with the shards that are complete.
        cache_bytes: size of the cache of a URL, in bytes of memory.

    Raises:
        DatasetNotFoundError: path has no dataset.
        IncompleteDatasetError: the dataset has no manifest yet: a process is writing it, or was interrupted.
        CorruptDatasetError: the manifest is damaged, or with ``verify`` any file.
        FileAccessError: a file exists but cannot be read.
        ForbiddenError: the server of a URL refuses access.
        DownloadError: fetching from a URL failed after all retries.
        MissingExtraError: a URL needs obstore, which is not installed.

    Example:
        >>> dataset = rlx.open("Pong/5")
        >>> dataset[:128]["next", "reward"].shape
        torch.Size([128, 1])
    """
    return Dataset(path, verify=verify, partial=partial, cache_bytes=cache_bytes)
