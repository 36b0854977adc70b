"""URLs and paths: which one a user means, and the parts of a URL."""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from rlx.errors import OptionError, UrlError
from rlx.wording import did_you_mean, without_secrets

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
BUCKETS = ("s3", "gs", "az", "hf", "http", "https")
HUB = "hf://datasets/"
TAG = "rlx"  # of the hub's datasets that rlx has pushed
_ORGANISATION = re.compile(rf"{HUB}([\w.-]+)/?")
_MISTYPED = re.compile(rf"file:|({'|'.join(BUCKETS)})(:|//)", re.IGNORECASE)
P = TypeVar("P", bound=str | os.PathLike[str])


def check_path(name: str, value: P, expected: str = "a path, an id or a URL") -> P:
    """Return a path or a URL that a user gives as an argument.

    Raises:
        OptionError: it is neither a text nor a path, or has a NUL character.

    Example:
        >>> check_path("dataset", 5)
        Traceback (most recent call last):
        ...
        rlx.errors.OptionError: dataset 5: expected a path, an id or a URL
    """
    if not isinstance(value, str | os.PathLike):
        raise OptionError(f"{name} {value!r}: expected {expected}")
    if "\0" in str(value):  # an open dataset may have no path
        raise OptionError(f"{name} {value!r}: expected {expected}, without a NUL character")
    return value


def check_no_url(path: str | os.PathLike[str]) -> None:
    """Raise UrlError for a path that is a URL or a mistyped one, so that no such directory is created by mistake.

    Example:
        >>> check_no_url("s3:/bucket/pong")
        Traceback (most recent call last):
        rlx.errors.UrlError: s3:/bucket/pong is a mistyped URL: expected s3://bucket/pong
    """
    text = os.fspath(path)
    found = _MISTYPED.match(text)
    if found is None:
        return
    shown = without_secrets(text)
    meant = f"{found[0].rstrip(':/').lower()}://{without_secrets(text[found.end() :].lstrip('/'))}"
    wanted = f"a mistyped URL: expected {meant}" if isinstance(path, str) else f"no directory, but the URL {meant}"
    raise UrlError(
        f"{shown} is {wanted}",
        hint=f"rlx push writes to a URL; ./{shown} is a directory of that name",
    )


def split_url(url: str) -> SplitResult:
    """Return the parts of a URL.

    Example:
        >>> split_url("http://host:99999/set")
        Traceback (most recent call last):
        rlx.errors.UrlError: http://host:99999/set is not a URL: expected a host, perhaps with a port up to 65535
    """
    with suppress(ValueError):
        parts = urlsplit(url)
        _ = parts.port, parts.hostname  # which parses them
        return parts
    # What urllib says may quote a part of a password.
    raise UrlError(
        f"{url} is not a URL: expected a host, perhaps with a port up to 65535",
        hint="percent-encode special characters of the password, such as %2F for a slash" if "@" in url else None,
    )


def is_url(location: str | os.PathLike[str]) -> bool:
    """Return whether this is a URL, and no path or id.

    Example:
        >>> is_url("s3://bucket/pong"), is_url("Pong/5"), is_url("/data/pong")
        (True, False, False)
    """
    return isinstance(location, str) and _SCHEME.match(location) is not None


def organisation_of(url: str) -> str | None:
    """Return the name in ``hf://datasets/ORG``; None for any other URL.

    Example:
        >>> organisation_of("hf://datasets/farama-minari"), organisation_of("hf://datasets/me/pong")
        ('farama-minari', None)
    """
    found = _ORGANISATION.fullmatch(url)
    return found and found[1]


def local_path(location: str | os.PathLike[str]) -> Path | None:
    """Return the local path of a location; None for one on a server.

    Example:
        >>> local_path("file:///data/a%20b").as_posix()
        '/data/a b'
    """
    if not is_url(location):
        check_no_url(check_path("location", location, "a path or a URL"))
        return Path(location).expanduser()
    parts = split_url(str(location))
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise UrlError(f"{without_secrets(str(location))} is on another machine: expected file:///path")
        return Path(unquote(parts.path))
    if parts.scheme not in BUCKETS:
        known = [f"{scheme}://" for scheme in (*BUCKETS, "file")]
        raise UrlError(
            f"{parts.scheme}:// is not supported: expected one of {', '.join(known)}, or a directory",
            hint=did_you_mean(parts.scheme, (*BUCKETS, "file")),
        )
    return None
