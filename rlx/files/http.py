"""Files below an HTTP(S) URL: fetched with resume, retries and checksums.

The bytes written to disk are those that the server stores: its checksums are of these. For objects with the metadata
``Content-Encoding: gzip`` that matters: in HTTP gzip is an encoding to be removed, but the files of the Atari layouts
are gzip files themselves. So nothing is decompressed here, and a server that decompresses is refused.
"""

import base64
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

import requests
import urllib3

from rlx.errors import (
    CorruptShardError,
    DiskFullError,
    DownloadError,
    ForbiddenError,
    SourceError,
    SourceNotFoundError,
)
from rlx.files.base import FileStat, local_path
from rlx.files.cancel import Cancel
from rlx.files.disk import FULL
from rlx.files.partial import Partial, is_intact
from rlx.files.retry import RetryPolicy, TransientError
from rlx.progress import Progress
from rlx.secrets_in_urls import harmless, without_secrets

_CHUNK_BYTES = 1 << 18
_CLOSED_BUCKET = "atari-replay-datasets"
_RESUME_HINT = "run the same command again to resume"
_HASH = re.compile(r"\b(crc32c=[A-Za-z0-9+/]{6}==|md5=[A-Za-z0-9+/]{22}==)")
# No file is longer than 18 digits say, and Python refuses to read numbers of thousands.
_LENGTH = re.compile(r"[0-9]{1,18}")
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")


@dataclass(frozen=True, slots=True)
class HttpBase:
    """The files below a URL, such as a public bucket of Google Cloud Storage.

    Args:
        url: of the directory; a query is sent along with every request.
        retry: how failures are met.
        connect_timeout_s: longest wait for a connection.
        read_timeout_s: longest silence of a server.
    """

    url: str = field(repr=False)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 60.0

    @property
    def is_local(self) -> bool:
        """False: files are copied here first."""
        return False

    @property
    def origin(self) -> str:
        """The URL, without any password or token."""
        return without_secrets(self.url)

    def stat(self, name: str, *, cancel: Cancel | None = None) -> FileStat:
        """Return the server's metadata of a file, by one HEAD request."""
        with _Session() as session:
            return self.retry.run(lambda: self._head(session, name), cancel or Cancel())

    def fetch(self, name: str, directory: Path, progress: Progress, *, cancel: Cancel | None = None) -> Path:
        """Return path of the file, downloaded; see ``Base.fetch``.

        A file that is there already is fetched only if it is not what the server has. ``<name>.partial`` and
        ``<name>.partial.json`` stay beside it while, and only while, it is incomplete.
        """
        path, cancel = local_path(directory, name), cancel or Cancel()
        if path.is_file() and is_intact(path, self.stat(name, cancel=cancel)):
            progress.advance("bytes", path.stat().st_size)
            return path
        # A session a file: threads may not be able to share one, and a handshake a file is nothing.
        with _room_for(path), Partial(path) as partial, _Session() as session:
            progress.advance("bytes", partial.offset)
            self.retry.run(
                lambda: self._attempt(session, partial, name, progress, cancel),
                cancel,
                reached=lambda: partial.furthest,
            )
        return path

    def _head(self, session: requests.Session, name: str) -> FileStat:
        with self._ask(session, "HEAD", name, {}) as response:
            self._check_status(response, name)
            return self._describe(response, name)

    def _attempt(
        self, session: requests.Session, partial: Partial, name: str, progress: Progress, cancel: Cancel
    ) -> None:
        if not partial.is_complete:
            with self._ask(session, "GET", name, partial.range_headers) as response:
                self._place(response, partial, name)
                self._receive(response, partial, name, progress, cancel)
        try:
            partial.finish()
        except CorruptShardError as exc:
            raise TransientError(exc) from exc

    def _ask(self, session: requests.Session, method: str, name: str, headers: Mapping[str, str]) -> requests.Response:
        try:
            return session.request(
                method,
                self._url(name, secrets=True),
                # Otherwise Google Cloud Storage decompresses objects stored as Content-Encoding: gzip.
                headers={"Accept-Encoding": "gzip", **headers},
                stream=True,
                timeout=(self.connect_timeout_s, self.read_timeout_s),
            )
        except requests.exceptions.SSLError as exc:  # no certificate gets better by waiting
            raise DownloadError(
                f"{self._url(name)}: the server's certificate is refused: {_root_cause(exc)}",
                hint="REQUESTS_CA_BUNDLE=FILE trusts the certificates in FILE",
            ) from _innermost(exc)
        except (requests.ConnectionError, requests.Timeout) as exc:
            raise self._broken(name, f"no answer: {_root_cause(exc)}") from _innermost(exc)
        except (requests.RequestException, urllib3.exceptions.HTTPError, ValueError) as exc:
            raise SourceError(f"{self._url(name)}: {_root_cause(exc)}") from _innermost(exc)

    def _place(self, response: requests.Response, partial: Partial, name: str) -> None:
        """Make the partial ready for the body of a response: at its end, or at zero."""
        if partial.offset:
            if response.status_code in (412, 416):
                partial.discard()
                raise self._broken(name, "it has changed since its transfer began")
            if response.status_code == 206:
                self._check_continues(response, partial, name)
                return
        self._check_status(response, name)
        partial.restart(self._whole(response, name))

    def _check_continues(self, response: requests.Response, partial: Partial, name: str) -> None:
        found = response.headers.get("Content-Range", "")
        matched = _CONTENT_RANGE.fullmatch(found)
        if matched is None or int(matched[1]) != partial.offset:
            asked = partial.offset
            # The next request asks for the whole: this server cannot be trusted with ranges.
            partial.discard()
            raise self._broken(name, f"expected bytes from {asked} on, found Content-Range {found!r}")
        assert partial.expected is not None
        if not partial.expected.is_same_version(self._describe(response, name)):
            partial.discard()
            raise self._broken(name, "it has changed since its transfer began")

    def _receive(
        self, response: requests.Response, partial: Partial, name: str, progress: Progress, cancel: Cancel
    ) -> None:
        assert partial.expected is not None
        with cancel.waking(lambda: _shut(response)):
            try:
                for data in _raw_chunks(response):
                    cancel.check()
                    progress.advance("bytes", partial.append(data))
            except urllib3.exceptions.HTTPError as exc:
                raise self._broken(name, f"the connection broke: {_root_cause(exc)}") from _innermost(exc)
        if partial.offset < (partial.expected.bytes or 0):
            raise self._broken(name, f"expected {partial.expected.bytes} bytes, found {partial.offset}")

    def _check_status(self, response: requests.Response, name: str) -> None:
        status, url = response.status_code, self._url(name)
        if status == 200:
            return
        if status in (401, 403):
            raise self._forbidden(status, url)
        if status in (404, 410):
            raise SourceNotFoundError(f"{url}: no such file (HTTP {status})")
        error = DownloadError(f"{url}: expected HTTP 200, found {status} {response.reason}", hint=_RESUME_HINT)
        if status in (408, 429) or status >= 500:
            raise TransientError(error, response.headers.get("Retry-After"))
        raise error

    def _forbidden(self, status: int, url: str) -> ForbiddenError:
        if _CLOSED_BUCKET in self.url:
            return ForbiddenError(
                f"{url}: HTTP {status}: this bucket was closed in April 2025 (pytorch/rl#3113)",
                hint="the same experience from RL Unplugged: rlx download Pong/5",
            )
        return ForbiddenError(f"{url}: access denied (HTTP {status})")

    def _whole(self, response: requests.Response, name: str) -> FileStat:
        """Return the metadata in a response that begins at byte 0, if its body can be checked against them."""
        stat, url = self._describe(response, name), self._url(name)
        headers = response.headers
        if headers.get("x-goog-stored-content-encoding") == "gzip" and headers.get("Content-Encoding") != "gzip":
            raise DownloadError(f"{url}: expected the stored gzip bytes, found that the server decompresses them")
        if (stat.bytes, stat.crc32c, stat.md5) == (None, None, None):
            raise DownloadError(f"{url}: neither length nor checksum is given: a broken transfer would look whole")
        return stat

    def _describe(self, response: requests.Response, name: str) -> FileStat:
        headers = response.headers
        hashes = dict(one.split("=", 1) for one in _HASH.findall(headers.get("x-goog-hash", "")))
        length = headers.get("x-goog-stored-content-length")
        if length is None and response.status_code == 206:
            length = headers.get("Content-Range", "").rpartition("/")[2]
        elif length is None:
            length = headers.get("Content-Length")
        return FileStat(
            name=name,
            url=self._url(name),
            bytes=_number(length),
            crc32c=_hex(hashes.get("crc32c")),
            md5=_hex(hashes.get("md5")),
            etag=headers.get("ETag"),
            generation=headers.get("x-goog-generation"),
        )

    def _url(self, name: str, *, secrets: bool = False) -> str:
        """Return URL of a file; what people and records see is without the passwords and tokens in it."""
        local_path(Path(), name)
        parts = urlsplit(self.url)
        path = f"{parts.path.rstrip('/')}/{quote(name)}"
        if secrets:
            return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], path, "", ""))

    def _broken(self, name: str, problem: str) -> TransientError:
        return TransientError(DownloadError(f"{self._url(name)}: {problem}", hint=_RESUME_HINT))


class _Session(requests.Session):
    """Adapter that follows redirects, but not from https to http: anyone on the line could send other bytes."""

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        target = super().get_redirect_target(resp)
        scheme = urlsplit(urljoin(resp.url, target)).scheme if target else "https"
        if resp.url.startswith("https:") and scheme != "https":
            raise requests.exceptions.InvalidSchema(f"it redirects from https to {scheme}")
        return target


def _raw_chunks(response: requests.Response) -> Iterator[bytes]:
    # read1 returns what has come, where read waits for a full chunk: on a slow line a killed process would
    # lose more and a cancelled one would wait longer.
    while data := response.raw.read1(_CHUNK_BYTES, decode_content=False):
        yield data


def _shut(response: requests.Response) -> None:
    # The body has just ended and its connection is returned, so nothing blocks.
    with suppress(RuntimeError, ValueError, OSError):
        response.raw.shutdown()


def _innermost(exc: BaseException) -> BaseException:
    """Return the innermost exception: outer ones repeat it and quote URLs, with any token in them."""
    while exc.__context__ is not None:
        exc = exc.__context__
    return harmless(exc)


def _root_cause(exc: BaseException) -> str:
    root = _innermost(exc)
    return str(root) or type(root).__name__


def _hex(base64_digest: str | None) -> str | None:
    return base64.b64decode(base64_digest).hex() if base64_digest else None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and _LENGTH.fullmatch(text) else None


@contextmanager
def _room_for(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        if exc.errno not in FULL:
            raise
        raise DiskFullError(f"no room for {path}", hint=f"free some space; {_RESUME_HINT}") from exc
