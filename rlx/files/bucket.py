"""Buckets of S3, Google Cloud Storage and Azure, and files below an HTTP(S) URL, through obstore."""

import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit

from rlx.errors import DownloadError, ForbiddenError, MissingExtraError, SourceError, SourceNotFoundError
from rlx.files import environment
from rlx.files.environment import store_for
from rlx.files.location import FORKED, Stored, checked_name, split_url
from rlx.fork import ThisProcessOnly
from rlx.secrets_in_urls import harmless, without_secrets

if TYPE_CHECKING:
    from obstore import GetResult, ObjectMeta, PutMode
    from obstore.store import ObjectStore

# Bytes of every transfer that a killed process loses at most, roughly.
_PIECE_BYTES = 1 << 16
# S3 takes 10,000 parts at most, of 5 MiB at least but for the last.
_PART_BYTES = 8 << 20
_MAX_PARTS = 9_000
_PARTS_AT_ONCE = 4
# Azure wants a name that is one in C#: no hyphen.
_CRC32C = "rlxcrc32c"
# In what obstore says: how long it took, after how many retries; and the server's word for it.
_TIMES = re.compile(r" in [\d.]+\S*?s(, after \d+ retries)?(?:, max_retries: .*?)? +- ")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_WHO_ASKS: Mapping[str, str] = MappingProxyType(
    {
        "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        "gs": "GOOGLE_APPLICATION_CREDENTIALS",
        "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    }
)
_FIRST_DELAY_S = 0.2
T = TypeVar("T")
_RESUME_HINT = "run the same command again to resume"


class BucketLocation:
    """The files below a URL of a bucket, or of a web server, which can only be read.

    Args:
        url: ``s3://bucket/prefix``, ``gs://``, ``az://container/prefix``, ``http://`` or ``https://``.

    Raises:
        SourceError: the URL is none.
        MissingExtraError: obstore is not installed.
    """

    def __init__(self, url: str) -> None:
        parts = split_url(url)
        if not parts.netloc:
            raise SourceError(f"{without_secrets(url)} is not a URL: expected {parts.scheme}://BUCKET/...")
        if parts.query or parts.fragment:
            raise SourceError(f"{without_secrets(url)}: expected no query after the URL of a dataset")
        self.url = without_secrets(url).rstrip("/")
        self.is_read_only = parts.scheme in ("http", "https")
        self._address = url.rstrip("/")
        _import_obstore()

    def __repr__(self) -> str:
        return f"BucketLocation({self.url!r})"

    @cached_property
    def _store(self) -> "ObjectStore":
        return store_for(self._address)

    def stat(self, name: str) -> Stored:
        """Return length, version and checksum of a file, by one HEAD request."""
        import obstore  # noqa: PLC0415  (an extra)

        with self._asking(name):
            return _stored(name, obstore.get(self._store, checked_name(name), options={"head": True}))

    def get(self, name: str, *, max_bytes: int) -> tuple[bytes, Stored]:
        """Return a whole small file."""
        import obstore  # noqa: PLC0415

        def whole() -> tuple[bytes, Stored]:
            result = obstore.get(self._store, checked_name(name))
            stored = _stored(name, result)
            if stored.bytes > max_bytes:
                raise SourceError(f"{self.url}/{name} has {stored.bytes:,} bytes, expected at most {max_bytes:,}")
            with _body():
                return bytes(result.bytes()), stored

        with self._asking(name):
            return _retried(whole)

    def read(self, name: str, start: int, stop: int) -> tuple[bytes, Stored]:
        """Return the bytes from start to stop, by one request."""
        import obstore  # noqa: PLC0415

        def piece() -> tuple[bytes, Stored]:
            result = obstore.get(self._store, checked_name(name), options={"range": (start, stop)})
            with _body():
                content = bytes(result.bytes())
            if result.range != (start, stop) or len(content) != stop - start:
                raise DownloadError(f"{self.url}/{name}: asked for bytes {start} to {stop}, found {result.range}")
            return content, _stored(name, result)

        with self._asking(name):
            return _retried(piece)

    def stream(self, name: str, start: int = 0) -> Iterator[bytes]:
        """Yield the bytes from start to the end; by one request, and one more whenever the connection breaks."""
        reached, version, retries = start, None, _Retries()
        with self._asking(name):
            while True:
                try:
                    for piece, found in self._pieces(name, reached):
                        if (version := version or found) != found:
                            raise DownloadError(f"{self.url}/{name} has changed while it was read")
                        reached += len(piece)
                        retries.advanced()
                        yield piece
                except _BrokenBodyError as exc:
                    retries.wait(exc)
                else:
                    return

    def _pieces(self, name: str, start: int) -> Iterator[tuple[bytes, object]]:
        """Yield the bytes from start on by one request, and the version of the file that they are of."""
        import obstore  # noqa: PLC0415

        options: Any = {"range": {"offset": start}} if start else None
        result = obstore.get(self._store, checked_name(name), options=options)
        if result.range[0] != start:
            raise DownloadError(f"{self.url}/{name}: asked for bytes from {start} on, found {result.range}")
        pieces = iter(result.stream(min_chunk_size=_PIECE_BYTES))
        while True:
            with _body():
                piece = next(pieces, None)
            if piece is None:
                return
            yield bytes(piece), (result.meta["last_modified"], result.meta["size"])

    def list(self, below: str) -> Iterator[Stored]:
        """Yield the files below a prefix."""
        import obstore  # noqa: PLC0415

        with self._asking(below):
            for some in obstore.list(self._store, prefix=checked_name(below)):
                for meta in some:
                    yield _described(meta["path"], meta, None)

    def put(self, name: str, pieces: Iterable[bytes], *, bytes: int, crc32c: str) -> None:
        """Write a file, in parts where it is large; its checksum is kept as the object's metadata."""
        import obstore  # noqa: PLC0415

        attributes = {_CRC32C: crc32c}
        with self._asking(name):
            if bytes <= _PART_BYTES:
                obstore.put(self._store, checked_name(name), b"".join(pieces), attributes=attributes)
                return
            part = max(_PART_BYTES, -(-bytes // _MAX_PARTS))
            obstore.put(
                self._store,
                checked_name(name),
                iter(pieces),
                attributes=attributes,
                chunk_size=part,
                max_concurrency=_PARTS_AT_ONCE,
            )

    def replace(self, name: str, content: bytes, *, seen: Stored | None) -> bool:
        """Write a small file if its content is unchanged since it was read; unconditionally if the store cannot
        compare."""
        import obstore  # noqa: PLC0415
        from obstore.exceptions import AlreadyExistsError, NotSupportedError, PreconditionError  # noqa: PLC0415

        mode: PutMode = "create"
        if seen is not None:
            known = {"e_tag": seen.etag, "version": seen.version}
            mode = cast("PutMode", {key: value for key, value in known.items() if value is not None})
        with self._asking(name):
            try:
                obstore.put(self._store, checked_name(name), content, mode=mode, use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
            except (NotSupportedError, NotImplementedError):
                obstore.put(self._store, checked_name(name), content, use_multipart=False)
        return True

    def delete(self, names: Sequence[str]) -> None:
        """Remove files, many by one request where the store can."""
        import obstore  # noqa: PLC0415

        for name in names:
            checked_name(name)
        if names:
            with self._asking(names[0]), _ignoring_missing():
                obstore.delete(self._store, list(names))

    @contextmanager
    def _asking(self, name: str) -> Iterator[None]:
        """Say what went wrong in the words of this project."""
        from obstore import exceptions  # noqa: PLC0415

        _obstore.check()
        where = f"{self.url}/{name}"
        try:
            try:
                yield
            except _BrokenBodyError as exc:
                raise exc.cause from None
        except FileNotFoundError as exc:
            raise self._not_found(where, str(exc)) from harmless(exc)
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as exc:
            raise self._forbidden(where) from harmless(exc)
        except exceptions.BaseError as exc:
            problem = _told(exc)
            if "404 Not Found" in problem:
                raise self._not_found(where, str(exc)) from harmless(exc)
            if "403 Forbidden" in problem or "401 Unauthorized" in problem:
                raise self._forbidden(where) from harmless(exc)
            raise DownloadError(f"{where}: {problem}", hint=_RESUME_HINT) from harmless(exc)

    def _not_found(self, where: str, said: str) -> SourceNotFoundError:
        if "NoSuchBucket" in said or "ContainerNotFound" in said:
            return SourceNotFoundError(f"{self.url}: no such bucket")
        return SourceNotFoundError(f"{where}: no such file")

    def _forbidden(self, where: str) -> ForbiddenError:
        wanted = _WHO_ASKS.get(urlsplit(where).scheme)
        return ForbiddenError(
            f"{where}: access denied", hint=wanted and f"give credentials in the environment: {wanted}"
        )


class _BrokenBodyError(Exception):
    """A connection broke, or fell silent, while a file came through it. obstore retries what breaks before that."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


@contextmanager
def _body() -> Iterator[None]:
    """Tell what goes wrong within the body of an answer from what goes wrong before."""
    from obstore.exceptions import BaseError  # noqa: PLC0415

    try:
        yield
    except BaseError as exc:
        raise _BrokenBodyError(exc) from exc


class _Retries:
    """The retries of one transfer, counted from the last byte that came."""

    def __init__(self) -> None:
        self.advanced()

    def advanced(self) -> None:
        """Reset the count."""
        self._failures = 0
        self._last = time.monotonic()

    def wait(self, error: _BrokenBodyError) -> None:
        """Wait until the next try; raise the error where there has been enough."""
        self._failures += 1
        if self._failures > environment.MAX_RETRIES or time.monotonic() - self._last > environment.RETRY_S:
            raise error
        time.sleep(random.uniform(0.5, 1.0) * _FIRST_DELAY_S * 2.0 ** (self._failures - 1))


def _retried(read: Callable[[], T]) -> T:
    """Return the result of a function, with retries while connections break."""
    retries = _Retries()
    while True:
        try:
            return read()
        except _BrokenBodyError as exc:
            retries.wait(exc)


def _import_obstore() -> None:
    try:
        import obstore  # noqa: F401, PLC0415
    except ImportError as exc:
        raise MissingExtraError(
            "datasets at a URL need obstore, which is not installed", hint="pip install 'rlx[cloud]'"
        ) from exc


# Its threads do not survive a fork, and a call of it would crash the child.
_obstore = ThisProcessOnly(*FORKED)


def _stored(name: str, result: "GetResult") -> Stored:
    return _described(name, result.meta, result.attributes.get(_CRC32C))


def _described(name: str, meta: "ObjectMeta", crc32c: str | None) -> Stored:
    return Stored(name, meta["size"], meta["e_tag"], meta["version"], crc32c)


@contextmanager
def _ignoring_missing() -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        return


def _told(exc: Exception) -> str:
    """Return the message of an obstore error, on one line without secrets, and the server's error code."""
    line = str(exc).partition("\n")[0].partition(": <?xml")[0] or type(exc).__name__
    line = _TIMES.sub(r"\1: ", without_secrets(line)).rstrip(" :")
    code = _CODE.search(str(exc))
    return f"{line} ({code[1]})" if code else line
