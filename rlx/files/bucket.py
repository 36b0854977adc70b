"""Buckets of S3, Google Cloud Storage and Azure, and datasets below an HTTP(S) URL, through obstore.

Servers and credentials come from the environment variables that each cloud's own tools read. Without credentials,
requests are not signed, as public data require.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from rlx.errors import DownloadError, ForbiddenError, SourceError, SourceNotFoundError, UrlError, imported
from rlx.files.checksum import FileStat
from rlx.files.location import FORKED, RESUME_HINT, Content, WritableLocation, checked_name
from rlx.files.retry import RetryPolicy, TransientError
from rlx.files.urls import split_url
from rlx.fork import ThisProcessOnly
from rlx.wording import command, harmless, without_secrets

if TYPE_CHECKING:
    from obstore import GetResult, ObjectMeta, PutMode
    from obstore.store import ClientConfig, ObjectStore, RetryConfig


CONNECT_S = 10.0
STALL_S = 60.0  # a server that sends nothing for this long has failed
# If any of these is set, obstore looks for credentials itself.
_CREDENTIALS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "s3": (
            "AWS_ACCESS_KEY_ID",
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            "AWS_SKIP_SIGNATURE",
        ),
        "gs": (
            "GOOGLE_SERVICE_ACCOUNT",
            "GOOGLE_SERVICE_ACCOUNT_PATH",
            "GOOGLE_SERVICE_ACCOUNT_KEY",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "GOOGLE_BEARER_TOKEN",
            "GOOGLE_SKIP_SIGNATURE",
        ),
        "az": (
            "AZURE_STORAGE_ACCOUNT_KEY",
            "AZURE_STORAGE_ACCESS_KEY",
            "AZURE_STORAGE_SAS_KEY",
            "AZURE_STORAGE_SAS_TOKEN",
            "AZURE_STORAGE_TOKEN",
            "AZURE_CLIENT_ID",
            "AZURE_STORAGE_CLIENT_ID",
            "AZURE_FEDERATED_TOKEN_FILE",
            "AZURE_USE_AZURE_CLI",
            "AZURE_STORAGE_USE_EMULATOR",
            "AZURE_SKIP_SIGNATURE",
        ),
    }
)
_GCLOUD_LOGIN = Path("~/.config/gcloud/application_default_credentials.json")
_ENDPOINTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
        "gs": ("GOOGLE_BASE_URL", "STORAGE_EMULATOR_HOST"),
        "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    }
)


def is_anonymous(scheme: str) -> bool:
    """Return whether the environment holds no credentials for this kind of bucket."""
    if scheme == "gs" and _has_gcloud_login():
        return False
    return not any(os.environ.get(name) for name in _CREDENTIALS[scheme])


def _has_gcloud_login() -> bool:
    try:
        return _GCLOUD_LOGIN.expanduser().exists()
    except (RuntimeError, OSError):  # a user without a home directory, or one that is closed to it
        return False


def endpoint(scheme: str) -> str | None:
    """Return the server's URL; None for the cloud's own."""
    return next((found for name in _ENDPOINTS[scheme] if (found := os.environ.get(name))), None)


def store_for(url: str, policy: RetryPolicy) -> ObjectStore:
    """Return obstore's store for a URL, configured by the environment."""
    from obstore import store  # an extra
    from obstore.exceptions import BaseError

    scheme = urlsplit(url).scheme
    client: ClientConfig = {
        # The default ends every transfer after 30 s, however well it goes.
        "timeout": timedelta(hours=24),
        "read_timeout": timedelta(seconds=STALL_S),
        "connect_timeout": timedelta(seconds=CONNECT_S),
        # False also refuses redirects from https to http.
        "allow_http": not (url if scheme in ("http", "https") else endpoint(scheme) or "https:").startswith("https:"),
    }
    retry: RetryConfig = {
        "max_retries": policy.attempts - 1,
        "retry_timeout": timedelta(seconds=policy.max_silence_s),
    }
    try:
        if scheme in ("http", "https"):
            return store.HTTPStore(url, client_options=client, retry_config=retry)
        config: dict[str, Any] = {"skip_signature": True} if is_anonymous(scheme) else {}
        if found := endpoint(scheme):
            config["base_url" if scheme == "gs" else "endpoint"] = found
        kind: Any = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}[scheme]
        opened: ObjectStore = kind.from_url(url, config=config, client_options=client, retry_config=retry)
    except (BaseError, ValueError) as exc:  # from obstore, or from its check of the URL
        problem = next(iter(str(exc).splitlines()), type(exc).__name__)
        hint = "set AZURE_STORAGE_ACCOUNT_NAME" if "Account must be specified" in problem else None
        raise SourceError(f"{url}: {problem}", hint=hint) from harmless(exc)
    return opened


# A killed process loses about this many bytes of each transfer.
_PIECE_BYTES = 1 << 16
# S3 takes 10,000 parts at most, of 5 MiB at least but for the last.
_PART_BYTES = 8 << 20
_MAX_PARTS = 9_000
_PARTS_AT_ONCE = 4
# Azure requires C# identifiers: no hyphen.
_CRC32C = "rlxcrc32c"
# Parts of obstore's messages: the request; its duration and retries; the server's error code.
_REQUEST = re.compile(r"^(Generic \w+ error: )+(Error performing \w+ \S+(?= in ))?")
_TIMES = re.compile(r" in [\d.]+\S*?s(, after \d+ retries)?(?:, max_retries: .*?)? +- ")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_WHO_ASKS: Mapping[str, str] = MappingProxyType(
    {
        "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        "gs": "GOOGLE_APPLICATION_CREDENTIALS",
        "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    }
)
DEFAULT_RETRY = RetryPolicy(first_delay_s=0.2)


class Bucket(WritableLocation):
    """The files below a URL of a bucket, or of a web server, which can only be read.

    Args:
        url: ``s3://bucket/prefix``, ``gs://``, ``az://container/prefix``, ``http://`` or ``https://``.
        retry: policy for failures; obstore itself retries those before the first byte of an answer.
    """

    def __init__(self, url: str, *, retry: RetryPolicy | None = None) -> None:
        parts = split_url(url)
        if not parts.netloc:
            raise UrlError(f"{without_secrets(url)} is not a URL: expected {parts.scheme}://BUCKET/...")
        if parts.query or parts.fragment:
            raise UrlError(f"{without_secrets(url)}: expected no query after the URL of a dataset")
        self.retry = retry or DEFAULT_RETRY
        self.is_read_only = parts.scheme in ("http", "https")
        self._shown = without_secrets(url).rstrip("/")
        self._address = url.rstrip("/")
        imported("obstore", "datasets at a URL need obstore", "cloud")

    def __repr__(self) -> str:
        return f"Bucket({self.url!r})"

    @property
    def url(self) -> str:
        """The URL, without any password."""
        return self._shown

    @cached_property
    def _store(self) -> ObjectStore:
        return store_for(self._address, self.retry)

    def _stat(self, name: str) -> FileStat:
        import obstore  # an extra

        with self._asking(name):
            return self._stored(name, obstore.get(self._store, checked_name(name), options={"head": True}))

    @contextmanager
    def _open(
        self, name: str, start: int = 0, stop: int | None = None, *, seen: FileStat | None = None
    ) -> Iterator[Content]:
        import obstore
        from obstore.exceptions import NotSupportedError

        options: Any = {}
        if start or stop is not None:
            options["range"] = {"offset": start} if stop is None else (start, stop)
        if seen is not None and seen.strong_etag:
            options["if_match"] = seen.strong_etag
        with self._asking(name):
            try:
                result = obstore.get(self._store, checked_name(name), options=options)
            except NotSupportedError:  # a server without ranges, which can still send the whole file
                if stop is not None or not start:
                    raise
                del options["range"]
                result = obstore.get(self._store, checked_name(name), options=options)
        pieces = self._streamed(name, result) if stop is None else self._joined(name, result)
        yield Content(self._stored(name, result), result.range[0], pieces)

    def _streamed(self, name: str, result: GetResult) -> Iterator[bytes]:
        pieces = iter(result.stream(min_chunk_size=_PIECE_BYTES))
        while True:
            with self._receiving(name):
                piece = next(pieces, None)
            if piece is None:
                return
            yield bytes(piece)

    def _joined(self, name: str, result: GetResult) -> Iterator[bytes]:
        with self._receiving(name):
            content = bytes(result.bytes())
        yield content

    @contextmanager
    def _receiving(self, name: str) -> Iterator[None]:
        """Make errors within the body of a response retryable: obstore retries only earlier ones."""
        try:
            with self._asking(name):
                yield
        except DownloadError as exc:
            raise TransientError(exc) from exc

    def list(self, below: str) -> Iterator[FileStat]:
        """Yield the files below a prefix."""
        import obstore

        with self._asking(below):
            for some in obstore.list(self._store, prefix=checked_name(below)):
                for meta in some:
                    yield self._described(meta["path"], meta, None)

    def put(self, name: str, pieces: Iterable[bytes], *, bytes: int, crc32c: str) -> None:
        """Write a file, in parts where it is large; its checksum is kept as the object's metadata."""
        import obstore

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

    def replace(self, name: str, content: bytes, *, seen: FileStat | None) -> bool:
        """Write a small file if its content is unchanged since it was read; unconditionally if the store cannot
        compare."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, NotSupportedError, PreconditionError

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
        import obstore

        for name in names:
            checked_name(name)
        if names:
            with self._asking(names[0]), suppress(FileNotFoundError):
                obstore.delete(self._store, list(names))

    @contextmanager
    def _asking(self, name: str) -> Iterator[None]:
        from obstore import exceptions

        _obstore.check()
        where = f"{self.url}/{name}"
        try:
            yield
        except FileNotFoundError as exc:
            raise self._not_found(where, str(exc)) from harmless(exc)
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as exc:
            raise self._forbidden(where) from harmless(exc)
        except exceptions.PreconditionError as exc:
            raise self._changed(name) from harmless(exc)
        except exceptions.NotSupportedError as exc:
            if "Range request" not in str(exc):
                raise DownloadError(f"{where}: {_message_of(exc)}") from harmless(exc)
            raise DownloadError(
                f"{where}: the server sends whole files only, expected one that answers range requests",
                hint=f"copy the dataset first: {command('rlx', 'pull', self.url)}",
            ) from harmless(exc)
        except exceptions.BaseError as exc:
            problem = _message_of(exc)
            if "Content-Length Header missing" in problem:
                problem = "the server does not give the length of the file; expected a Content-Length header"
            if "404 Not Found" in problem:
                raise self._not_found(where, str(exc)) from harmless(exc)
            if "403 Forbidden" in problem or "401 Unauthorized" in problem:
                raise self._forbidden(where) from harmless(exc)
            raise DownloadError(f"{where}: {problem}", hint=RESUME_HINT) from harmless(exc)

    def _not_found(self, where: str, said: str) -> SourceNotFoundError:
        if "NoSuchBucket" in said or "ContainerNotFound" in said:
            return SourceNotFoundError(f"{self.url}: no such bucket")
        return SourceNotFoundError(f"{where}: no such file")

    def _forbidden(self, where: str) -> ForbiddenError:
        wanted = _WHO_ASKS.get(urlsplit(where).scheme)
        return ForbiddenError(
            f"{where}: access denied", hint=wanted and f"give credentials in the environment: {wanted}"
        )

    def _stored(self, name: str, result: GetResult) -> FileStat:
        return self._described(name, result.meta, result.attributes.get(_CRC32C))

    def _described(self, name: str, meta: ObjectMeta, crc32c: str | None) -> FileStat:
        return FileStat(
            name,
            self._where(name),
            bytes=meta["size"],
            crc32c=crc32c,
            etag=meta["e_tag"],
            version=meta["version"],
            modified=meta["last_modified"].isoformat(),
        )


# Its threads do not survive a fork, and a call of it would crash the child.
_obstore = ThisProcessOnly(*FORKED)


def _message_of(exc: Exception) -> str:
    """Return the message of an obstore error, on one line without secrets, and the server's error code."""
    line = str(exc).partition("\n")[0].partition(": <?xml")[0] or type(exc).__name__
    line = _TIMES.sub(r"\1: ", without_secrets(_REQUEST.sub("", line))).strip(" ,:")
    code = _CODE.search(str(exc))
    return f"{line} ({code[1]})" if code else line
