"""Files below an HTTP(S) URL, with the lengths and checksums of the server's headers.

The bytes are those that the server stores: its checksums are of these. For objects with the metadata
``Content-Encoding: gzip`` that matters: in HTTP gzip is an encoding to be removed, but the files of the Atari layouts
are gzip files themselves. So nothing is decompressed here, and a server that decompresses is refused.
"""

import base64
import ipaddress
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

import requests
import urllib3

from rlx.errors import DownloadError, ForbiddenError, SourceError, SourceNotFoundError
from rlx.files.checksum import FileStat
from rlx.files.location import RESUME_HINT, ChangedError, Content, Location, checked_name
from rlx.files.retry import RetryPolicy, TransientError
from rlx.wording import harmless, without_secrets

_CHUNK_BYTES = 1 << 18
_CLOSED_BUCKET = "atari-replay-datasets"
_HASH = re.compile(r"\b(crc32c=[A-Za-z0-9+/]{6}==|md5=[A-Za-z0-9+/]{22}==)")
# Lengths have at most 18 digits; Python refuses to parse numbers of thousands of digits.
_LENGTH = re.compile(r"[0-9]{1,18}")
# Where clouds tell a machine its credentials: by name, and at addresses that are not link-local.
_METADATA_NAMES = frozenset({"metadata.google.internal", "metadata.goog", "metadata", "instance-data"})
_METADATA_ADDRESSES = frozenset({"fd00:ec2::254", "100.100.100.200", "192.0.0.192"})
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")


@dataclass(frozen=True, slots=True)
class HttpFiles(Location):
    """The files below a URL, such as a public bucket of Google Cloud Storage.

    Args:
        address: URL of the directory; a query is sent along with every request.
        connect_timeout_s: longest wait for a connection.
        read_timeout_s: longest silence of a server.
    """

    address: str = field(repr=False)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 60.0

    @property
    def url(self) -> str:
        """The URL, without any password or token."""
        return without_secrets(self.address)

    def _stat(self, name: str) -> FileStat:
        with self._session() as session, self._ask(session, "HEAD", name, {}) as response:
            self._check_status(response, name)
            return self._describe(response, name)

    @contextmanager
    def _open(
        self, name: str, start: int = 0, stop: int | None = None, *, seen: FileStat | None = None
    ) -> Iterator[Content]:
        headers = {}
        if start or stop is not None:
            headers["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
        if seen is not None and seen.strong_etag:
            headers["If-Match"] = seen.strong_etag
        with self._session() as session, self._ask(session, "GET", name, headers) as response:
            if headers and response.status_code in (412, 416):
                raise self._changed(name)
            if headers and response.status_code == 206:
                self._check_range(response, name, start)
                stat = self._describe(response, name)
            else:
                self._check_status(response, name)
                start, stat = 0, self._whole(response, name)
            yield Content(stat, start, self._received(response, name), lambda: _shut(response))

    def _session(self) -> AbstractContextManager[requests.Session]:
        # One per file: threads may not share a session, and a handshake per file costs little.
        return HttpSession()

    def _headers(self) -> Mapping[str, str]:
        # Otherwise Google Cloud Storage decompresses objects stored as Content-Encoding: gzip.
        return {"Accept-Encoding": "gzip"}

    def _ask(self, session: requests.Session, method: str, name: str, headers: Mapping[str, str]) -> requests.Response:
        return self._request(session, method, name, self._address_of(name), {**self._headers(), **headers})

    def _request(
        self, session: requests.Session, method: str, name: str, address: str, headers: Mapping[str, str]
    ) -> requests.Response:
        try:
            return session.request(
                method,
                address,
                headers=headers,
                stream=True,
                timeout=(self.connect_timeout_s, self.read_timeout_s),
            )
        except requests.exceptions.SSLError as exc:  # no certificate gets better by waiting
            raise DownloadError(
                f"{self._where(name)}: the server's certificate is refused: {_root_cause(exc)}",
                hint="REQUESTS_CA_BUNDLE=FILE trusts the certificates in FILE",
            ) from _innermost(exc)
        except (requests.ConnectionError, requests.Timeout) as exc:
            raise self._broken(name, f"no answer: {_root_cause(exc)}") from _innermost(exc)
        except (requests.RequestException, urllib3.exceptions.HTTPError, ValueError) as exc:
            raise SourceError(f"{self._where(name)}: {_root_cause(exc)}") from _innermost(exc)

    def _check_range(self, response: requests.Response, name: str, start: int) -> None:
        found = response.headers.get("Content-Range", "")
        matched = _CONTENT_RANGE.fullmatch(found)
        if matched is None or int(matched[1]) != start:
            # The next request asks for the whole: this server cannot be trusted with ranges.
            problem = f"expected bytes from {start} on, found Content-Range {found!r}"
            raise ChangedError(self._broken(name, problem).error)

    def _received(self, response: requests.Response, name: str) -> Iterator[bytes]:
        try:
            # read1 returns what has come, where read waits for a full chunk: on a slow line a killed process would
            # lose more and a cancelled one would wait longer.
            while data := response.raw.read1(_CHUNK_BYTES, decode_content=False):
                yield data
        except urllib3.exceptions.HTTPError as exc:
            raise self._broken(name, f"the connection broke: {_root_cause(exc)}") from _innermost(exc)

    def _check_status(self, response: requests.Response, name: str) -> None:
        status, url = response.status_code, self._where(name)
        if status == 200:
            return
        if status in (401, 403):
            raise self._forbidden(status, url)
        if status in (404, 410):
            raise SourceNotFoundError(f"{url}: no such file (HTTP {status})")
        error = DownloadError(f"{url}: expected HTTP 200, found {status} {response.reason}", hint=RESUME_HINT)
        if status in (408, 429) or status >= 500:
            raise TransientError(error, self._retry_after(response.headers))
        raise error

    def _retry_after(self, headers: Mapping[str, str]) -> str | None:
        return headers.get("Retry-After")

    def _forbidden(self, status: int, url: str) -> ForbiddenError:
        if _CLOSED_BUCKET in self.address:
            return ForbiddenError(
                f"{url}: HTTP {status}: this bucket was closed in April 2025 (pytorch/rl#3113)",
                hint="the same experience from RL Unplugged: rlx download Pong/5",
            )
        return ForbiddenError(f"{url}: access denied (HTTP {status})")

    def _whole(self, response: requests.Response, name: str) -> FileStat:
        """Return the metadata in a response that begins at byte 0, if its body can be checked against them."""
        stat, url = self._describe(response, name), self._where(name)
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
            url=self._where(name),
            bytes=_number(length),
            crc32c=_hex(hashes.get("crc32c")),
            md5=_hex(hashes.get("md5")),
            etag=headers.get("ETag"),
            version=headers.get("x-goog-generation"),
        )

    def _where(self, name: str) -> str:
        return without_secrets(self._address_of(name))

    def _address_of(self, name: str) -> str:
        parts = urlsplit(self.address)
        path = f"{parts.path.rstrip('/')}/{quote(checked_name(name))}"
        return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


class _ClosingAdapter(requests.adapters.HTTPAdapter):
    """Adapter that closes every answer in the end: requests leaves those open whose headers or redirects fail."""

    def __init__(self) -> None:
        super().__init__()
        self._answers = list[urllib3.BaseHTTPResponse]()

    def build_response(self, req: requests.PreparedRequest, resp: urllib3.BaseHTTPResponse) -> requests.Response:
        # A session that is kept makes many: those that were read to the end are closed already.
        self._answers = [answer for answer in self._answers if not answer.closed]
        self._answers.append(resp)
        return super().build_response(req, resp)

    def close(self) -> None:
        for answer in self._answers:
            answer.close()
        super().close()


class HttpSession(requests.Session):
    """Session that follows redirects, but not from https to http: anyone on the line could send other bytes.

    Nor to a link-local address, unless from one: there, clouds tell a machine its own credentials.
    """

    def __init__(self) -> None:
        super().__init__()
        for scheme in ("http://", "https://"):
            self.mount(scheme, _ClosingAdapter())

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Return the target of a redirect."""
        target = super().get_redirect_target(resp)
        scheme = urlsplit(urljoin(resp.url, target)).scheme if target else "https"
        if resp.url.startswith("https:") and scheme != "https":
            raise requests.exceptions.InvalidSchema(f"it redirects from https to {scheme}")
        host = urlsplit(urljoin(resp.url, target)).hostname if target else None
        if host and _is_link_local(host) and not _is_link_local(urlsplit(resp.url).hostname or ""):
            raise requests.exceptions.InvalidURL(f"it redirects to {host}, a link-local address")
        return target


def _is_link_local(host: str) -> bool:
    """Return whether a host is in the network that only a machine and its cloud see, however its address is written."""
    if host in _METADATA_NAMES:
        return True
    try:
        found = {str(info[4][0]).partition("%")[0] for info in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return False  # the request will say so
    addresses = [ipaddress.ip_address(one) for one in found]
    plain = [getattr(one, "ipv4_mapped", None) or one for one in addresses]
    return any(one.is_link_local or str(one) in _METADATA_ADDRESSES for one in plain)


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
