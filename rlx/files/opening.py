"""The location that a URL or a path means."""

import importlib.util
import os
from urllib.parse import quote

from rlx.errors import SourceNotFoundError, UrlError
from rlx.files.bucket import Bucket, endpoint, is_anonymous
from rlx.files.directory import Directory
from rlx.files.location import Location, WritableLocation
from rlx.files.retry import RetryPolicy
from rlx.files.urls import local_path, split_url

_GCS_URL = "https://storage.googleapis.com"


def open_location(location: str | os.PathLike[str], *, retry: RetryPolicy | None = None) -> WritableLocation:
    """Return the location of a URL or a path. It makes no request, and the directory need not exist.

    Args:
        location: ``s3://``, ``gs://``, ``az://``, ``hf://``, ``http(s)://``, ``file://`` or a directory.
    """
    path = local_path(location)
    if path is not None:
        return Directory(path.absolute())
    if split_url(str(location)).scheme == "hf":
        # It loads HTTP libraries, which other locations do without.
        from rlx.files.hub import Hub

        return Hub(str(location), retry=retry)
    return Bucket(str(location), retry=retry)


def open_source(source: str, *, retry: RetryPolicy | None = None) -> Location:
    """Return the location of other projects' files, without expected lengths or checksums.

    That is why web servers, and buckets of Google's that anybody may read, are asked by HTTP: the answer carries the
    checksums of the stored bytes, which obstore does not pass on. No extra is needed for them.

    Args:
        source: as for ``open_location``; a directory must exist.

    Example:
        >>> open_source("https://host/atari").url
        'https://host/atari'
    """
    path = local_path(source)
    if path is not None:
        if not path.is_dir():
            raise SourceNotFoundError(f"{path}: no such directory")
        return Directory(path.absolute())
    parts = split_url(source)
    if parts.scheme == "gs" and _is_public():
        return _http(f"{_GCS_URL}/{quote(source.partition('://')[2])}", retry)
    return _http(source, retry) if parts.scheme in ("http", "https") else open_location(source, retry=retry)


def _is_public() -> bool:
    """Return whether Google's buckets are read anonymously: without credentials, or without a package for them."""
    return endpoint("gs") is None and (is_anonymous("gs") or importlib.util.find_spec("obstore") is None)


def _http(url: str, retry: RetryPolicy | None) -> Location:
    # Reading a directory should not load requests and its four dependencies.
    from rlx.files.http import HttpFiles

    if not split_url(url).hostname:
        raise UrlError(f"{url} is not a URL: expected a host, found none")
    return HttpFiles(url, retry or RetryPolicy())
