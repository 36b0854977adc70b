"""Which base a user means by ``--source``."""

import re
from pathlib import Path
from urllib.parse import quote, unquote

from rlx.errors import SourceError, SourceNotFoundError
from rlx.files.base import Base
from rlx.files.directory_base import DirectoryBase
from rlx.files.location import split_url
from rlx.suggestion import command

_GCS_URL = "https://storage.googleapis.com"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


def open_base(source: str) -> Base:
    """Return the base that a URL or a directory means. Nothing is asked of a server yet.

    Args:
        source: ``https://``, ``http://``, ``gs://bucket/prefix``, ``file:///directory`` or a directory.

    Raises:
        SourceNotFoundError: the directory does not exist.
        SourceError: URLs of this kind cannot be read.

    Example:
        >>> open_base("gs://rl_unplugged/atari_episodes_ordered").url
        'https://storage.googleapis.com/rl_unplugged/atari_episodes_ordered'
    """
    matched = _SCHEME.match(source)
    scheme = matched[1].lower() if matched else None
    if scheme is None:
        return _directory(Path(source).expanduser())
    rest = source[len(scheme) + 3 :]
    if scheme in ("http", "https"):
        return _http(source)
    if scheme == "gs":
        return _http(f"{_GCS_URL}/{quote(rest)}")
    if scheme == "file":
        parts = split_url(source)
        if parts.netloc not in ("", "localhost"):
            raise SourceError(f"{source} is on another machine: expected file:///path")
        return _directory(Path(unquote(parts.path)))
    hint = f"{command('aws', 's3', 'sync', source, 'DIR')}, then give DIR as the source" if scheme == "s3" else None
    raise SourceError(f"{scheme}:// is not supported; expected http(s)://, gs://, file:// or a directory", hint=hint)


def _directory(path: Path) -> Base:
    if not path.is_dir():
        raise SourceNotFoundError(f"{path}: no such directory")
    return DirectoryBase(path.absolute())


def _http(url: str) -> Base:
    # Whoever reads a directory should not wait for requests and its four dependencies to load.
    from rlx.files.http import HttpBase  # noqa: PLC0415

    if not split_url(url).hostname:
        raise SourceError(f"{url} is not a URL: expected a host, found none")
    return HttpBase(url)
