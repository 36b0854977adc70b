"""Datasets of the Hugging Face hub: read by ranges, written by one commit, through huggingface_hub.

Endpoint, token, cache and offline mode are those of huggingface_hub: ``HF_ENDPOINT``, ``HF_TOKEN`` or the token of
``hf auth login``, ``HF_HOME``, ``HF_HUB_OFFLINE``. Uploads use Xet where hf_xet is installed; ``HF_HUB_DISABLE_XET=1``
turns it off.
"""

import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote

import requests

from rlx.errors import (
    DownloadError,
    ForbiddenError,
    SourceError,
    SourceNotFoundError,
    imported,
)
from rlx.files.checksum import FileStat, pieces_of
from rlx.files.http import HttpFiles, HttpSession
from rlx.files.location import RESUME_HINT, Content, Upload, WritableLocation, checked_name
from rlx.files.retry import Cancel, RetryPolicy, TransientError
from rlx.files.urls import HUB, TAG
from rlx.progress import Progress
from rlx.wording import harmless, without_secrets

if TYPE_CHECKING:
    from huggingface_hub import CommitInfo, CommitOperation, CommitOperationAdd, HfApi

logger = logging.getLogger(__name__)

_MAIN = "main"
_ADDRESS = re.compile(
    r"hf://datasets/(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>refs/(?:pr|convert)/[^/]+|[^/]+))?(?P<path>/.*)?"
)
_REPO = re.compile(r"[\w.-]+/[\w.-]+")
_REFS = re.compile(r"refs/(?:pr|convert)/")
_SHA256 = re.compile(r'"?([0-9a-f]{64})"?')
_RESET_S = re.compile(r";\s*t=(\d{1,9})")
_LOGIN = "hf auth login, or set HF_TOKEN to a token that may {}"
_CONCURRENT = 8
_CONNECT_S = 10.0
_SILENCE_S = 60.0
DEFAULT_RETRY = RetryPolicy(first_delay_s=0.5)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HubAddress:
    """The place of a dataset on the hub.

    Args:
        revision: branch, tag or commit; None for the main branch.
    """

    repo: str
    revision: str | None = None
    path: str = ""

    @classmethod
    def parse(cls, url: str) -> "HubAddress":
        """Return the address that a URL means, in the notation of huggingface_hub.

        Raises:
            SourceError: it is of another form.

        Example:
            >>> HubAddress.parse("hf://datasets/me/pong@v1.0/run/5")
            HubAddress(repo='me/pong', revision='v1.0', path='run/5')
            >>> HubAddress.parse("hf://me/pong")
            Traceback (most recent call last):
            rlx.errors.SourceError: hf://me/pong is not a dataset of the hub: expected hf://datasets/ORG/NAME[@REV][/PATH]
        """
        found = _ADDRESS.fullmatch(url)
        if found is None:
            raise SourceError(
                f"{without_secrets(url)} is not a dataset of the hub: expected {HUB}ORG/NAME[@REV][/PATH]"
            )
        path = (found["path"] or "").strip("/")
        if path:
            checked_name(path)
        revision = found["revision"]
        return cls(found["repo"], None if revision is None else unquote(revision), path)

    def __str__(self) -> str:
        # As huggingface_hub writes it: only the names of pull requests and conversions keep their slashes.
        kept = "/" if self.revision and _REFS.match(self.revision) else ""
        revision = f"@{quote(self.revision, safe=kept)}" if self.revision else ""
        return f"{HUB}{self.repo}{revision}" + (f"/{self.path}" if self.path else "")


class Hub(WritableLocation):
    """The files of a dataset on the hub.

    The revision is resolved by the first answer, and all later requests read that commit. Written files stay
    invisible until ``replace`` commits them.

    Args:
        url: ``hf://datasets/ORG/NAME[@REV][/PATH]``.

    Raises:
        SourceError: the URL is of another form.
        MissingExtraError: huggingface_hub is not installed.
    """

    is_atomic = True
    # Enough for few requests, and few enough for the progress to be seen.
    max_batch = 32

    def __init__(self, url: str, *, retry: RetryPolicy | None = None) -> None:
        check_installed()
        self.address = HubAddress.parse(url)
        self.retry = retry or DEFAULT_RETRY
        self._lock = threading.Lock()
        self._commit: str | None = None
        self._additions: dict[str, CommitOperationAdd] = {}
        self._deletions: set[str] = set()
        self._sessions = threading.local()
        self._stored: dict[str, tuple[str, FileStat]] = {}

    def __repr__(self) -> str:
        return f"Hub({self.url!r})"

    @property
    def url(self) -> str:
        """The URL as it was given."""
        return str(self.address)

    @property
    def page(self) -> str:
        """URL of the repository for browsers."""
        return f"{_endpoint()}/datasets/{self.address.repo}"

    def public_url(self, name: str) -> str:
        """Return the URL at which a browser gets a file."""
        return f"{self.page}/resolve/{self.address.revision or _MAIN}/{self._in_repo(name)}"

    @property
    def pinned(self) -> str:
        """The URL with the commit that is read, once the hub has answered."""
        return str(HubAddress(self.address.repo, self._commit or self.address.revision, self.address.path))

    # ---- reading

    def _stat(self, name: str) -> FileStat:
        if (cached := self._cached(name)) is not None:
            return self._cached_stat(name, cached)
        stat = self._http._stat(checked_name(name))  # one request, without retries of its own
        self._pin(stat)
        return stat

    @contextmanager
    def _open(
        self, name: str, start: int = 0, stop: int | None = None, *, seen: FileStat | None = None
    ) -> Iterator[Content]:
        if (cached := self._cached(name)) is not None:
            yield Content(self._cached_stat(name, cached), start, _range_of(cached, start, stop))
            return
        with self._http._open(checked_name(name), start, stop, seen=seen) as content:
            self._pin(content.stat)
            yield content

    def _pin(self, stat: FileStat) -> None:
        with self._lock:
            if self._commit is None:
                self._commit = stat.version

    @property
    def _http(self) -> "_Resolving":
        session = getattr(self._sessions, "session", None)
        if session is None:
            session = self._sessions.session = HttpSession()
        return _Resolving(
            f"{_endpoint()}/datasets/{self.address.repo}/resolve/{quote(self._revision, safe='')}"
            + (f"/{quote(self.address.path)}" if self.address.path else ""),
            self.retry,
            hub=self.address,
            kept=session,
            stored=self._stored,
        )

    @property
    def _revision(self) -> str:
        return self._commit or self.address.revision or _MAIN

    def _in_repo(self, name: str) -> str:
        return f"{self.address.path}/{checked_name(name)}" if self.address.path else checked_name(name)

    def _cached(self, name: str) -> Path | None:
        """Return the file of huggingface_hub's cache, where the commit is known or the hub may not be asked."""
        from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415

        offline = _is_offline()
        if self._commit is None and not offline:
            return None
        found = try_to_load_from_cache(
            self.address.repo, self._in_repo(name), revision=self._revision, repo_type="dataset"
        )
        if isinstance(found, str):
            return Path(found)
        if offline:
            raise SourceNotFoundError(
                f"{self._where(name)}: HF_HUB_OFFLINE is set, and the file is not in the cache of huggingface_hub"
            )
        return None

    def _cached_stat(self, name: str, path: Path) -> FileStat:
        # Files of the cache are named by what the hub calls their ETag.
        etag = f'"{path.resolve().name}"'
        return FileStat(name, self._where(name), bytes=path.stat().st_size, etag=etag, version=self._commit)

    def list(self, below: str) -> Iterator[FileStat]:
        """Yield the files in a directory and in those below it."""
        return self._files(self._in_repo(below))

    def _files(self, below: str) -> Iterator[FileStat]:
        revision = quote(self._revision, safe="")
        route = f"datasets/{self.address.repo}/tree/{revision}" + (f"/{quote(below)}" if below else "")
        try:
            entries = self._ask(lambda api: list(_listed(api, route, recursive=True, expand=False)))
        except SourceNotFoundError:
            return
        skipped = len(self.address.path) + 1 if self.address.path else 0
        for entry in entries:
            if entry.get("type") == "file":
                name = checked_name(entry["path"][skipped:])
                sha256 = entry["lfs"]["oid"] if entry.get("lfs") else None
                yield FileStat(name, self._where(name), bytes=entry["size"], sha256=sha256)

    def snapshot(self, progress: Progress | None = None) -> Path:
        """Return a directory with all files, fetched into the cache of huggingface_hub as far as they are not there.

        Raises:
            SourceNotFoundError: the dataset or revision does not exist.
            ForbiddenError: it is private, or gated.
            DownloadError: the hub keeps failing.
        """
        from huggingface_hub import snapshot_download  # noqa: PLC0415

        if progress is not None and not _is_offline():
            self._fill_cache(progress)
        path = self.address.path
        below = [path, f"{path}/*"] if path else None

        def fetch(api: "HfApi") -> str:
            return snapshot_download(
                self.address.repo,
                repo_type="dataset",
                revision=self._revision,
                allow_patterns=below,
                endpoint=_endpoint(),
                token=api.token,
                library_name="rlx",
            )

        found = Path(self._ask(fetch))
        with self._lock:
            self._commit = found.name  # snapshots are directories named by their commit
        if not (found / path).exists():
            raise SourceNotFoundError(f"{self.url}: no such file or directory")
        return found / path

    def cached_files(self) -> Sequence[tuple[FileStat, bool]]:
        """Return all files of the location, and whether each is in the cache of huggingface_hub."""
        self._commit = self._head()
        return [(file, self._cached(file.name) is not None) for file in self._files(self.address.path)]

    def _fill_cache(self, progress: Progress) -> None:
        from huggingface_hub import hf_hub_download  # noqa: PLC0415

        self._commit = self._head()
        files = list(self._files(self.address.path))
        progress.expect("bytes", sum(file.bytes or 0 for file in files))

        def fetch(file: FileStat) -> None:
            self._ask(
                lambda api: hf_hub_download(
                    self.address.repo,
                    self._in_repo(file.name),
                    repo_type="dataset",
                    revision=self._revision,
                    endpoint=_endpoint(),
                    token=api.token,
                    library_name="rlx",
                )
            )
            progress.advance("bytes", file.bytes or 0)

        with ThreadPoolExecutor(_CONCURRENT) as pool:
            try:
                for _ in pool.map(fetch, files):
                    pass
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    # ---- writing

    def put(self, name: str, pieces: Iterable[bytes], *, bytes: int, crc32c: str) -> None:  # noqa: ARG002
        """Upload a file, which the next ``replace`` commits."""
        self.put_contents({name: b"".join(pieces)})

    def put_contents(self, files: Mapping[str, bytes]) -> None:
        """Upload small files by few requests; the next ``replace`` commits them."""
        from huggingface_hub import CommitOperationAdd  # noqa: PLC0415

        self._stage([CommitOperationAdd(self._in_repo(name), content) for name, content in files.items()])

    def put_all(self, files: Sequence[Upload]) -> None:
        """Upload files by few requests; those that the hub's storage has already are not sent."""
        from huggingface_hub import CommitOperationAdd  # noqa: PLC0415

        for file in files:
            for _ in file.pieces():  # checked before it is sent
                pass
        self._stage([CommitOperationAdd(self._in_repo(file.name), str(file.path)) for file in files])

    def _stage(self, additions: "Sequence[CommitOperationAdd]") -> None:
        self._ask(
            lambda api: api.preupload_lfs_files(
                self.address.repo,
                additions,
                repo_type="dataset",
                revision=self.address.revision,
                num_threads=1,
                free_memory=False,
            )
        )
        for addition in additions:
            if getattr(addition, "_should_ignore", False):
                raise SourceError(
                    f"{self.url}: the repository's .gitignore excludes {addition.path_in_repo}",
                    hint="remove that line of .gitignore, or push to another path",
                )
        with self._lock:
            for addition in additions:
                self._additions[addition.path_in_repo] = addition

    def replace(self, name: str, content: bytes, *, seen: FileStat | None) -> bool:
        """Commit all files that were put or deleted, and this one, unless somebody else has committed meanwhile."""
        from huggingface_hub import CommitOperationAdd  # noqa: PLC0415

        path, head = self._in_repo(name), self._head()
        is_new = seen is None and path not in self._deletions
        if (is_new and self._present([path], head)) or (seen is not None and seen.version != head):
            return False
        with self._lock:
            self._additions[path] = CommitOperationAdd(path, content)
        return self._commit_all(head)

    def _commit_all(self, parent: str) -> bool:
        """Commit all that was put or deleted; return whether the parent was still the newest commit."""
        from huggingface_hub import CommitOperationDelete  # noqa: PLC0415

        gone = self._present(sorted(self._deletions - set(self._additions)), parent)
        operations: list[CommitOperation] = [*self._additions.values(), *map(CommitOperationDelete, gone)]

        def commit(api: "HfApi") -> "CommitInfo":
            return api.create_commit(
                self.address.repo,
                operations,
                commit_message=f"Push {self.address.path or self.address.repo} with rlx",
                repo_type="dataset",
                revision=self.address.revision,
                parent_commit=parent,
                num_threads=1,
            )

        try:
            made = self._ask(commit)
        except _OutdatedError:
            return False
        with self._lock:
            self._commit = made.oid
            self._additions.clear()
            self._deletions.clear()
        return True

    def delete(self, names: Sequence[str]) -> None:
        """Let the next ``replace`` remove files."""
        self._deletions.update(self._in_repo(name) for name in names)

    def create(self, *, private: bool | None = None) -> None:
        """Make the repository, unless it exists.

        Args:
            private: whether only its owners may read it; the organisation's own default if None.

        Raises:
            ForbiddenError: the token may not write.
        """
        self._ask(lambda api: api.create_repo(self.address.repo, repo_type="dataset", private=private, exist_ok=True))

    def tagged(self, version: str) -> str | None:
        """Return the commit that a tag of the repository names."""
        try:
            refs = self._ask(lambda api: api.list_repo_refs(self.address.repo, repo_type="dataset"))
        except SourceNotFoundError:
            return None
        return next((tag.target_commit for tag in refs.tags if tag.name == version), None)

    def tag(self, version: str) -> None:
        """Tag the commit that was written last, or the newest."""
        commit = self._commit or self._head()
        self._ask(lambda api: api.create_tag(self.address.repo, tag=version, revision=commit, repo_type="dataset"))

    def _head(self) -> str:
        info = self._ask(
            lambda api: api.dataset_info(self.address.repo, revision=self.address.revision, files_metadata=False)
        )
        if info.sha is None:
            raise DownloadError(f"{self.url}: the hub does not say its commit")
        return info.sha

    def _present(self, paths: Sequence[str], commit: str) -> Sequence[str]:
        """Return those of the paths that are in a commit."""
        if not paths:
            return []
        found = self._ask(
            lambda api: api.get_paths_info(self.address.repo, [*paths], revision=commit, repo_type="dataset")
        )
        return [entry.path for entry in found]

    def _ask(self, request: "Callable[[HfApi], T]") -> T:
        return self.retry.run(lambda: asked(self.url, request), Cancel())


class _OutdatedError(SourceError):
    """The commit that a request builds on is not the newest."""


@dataclass(frozen=True, slots=True)
class _Resolving(HttpFiles):
    """The addresses of the hub that lead to the files of a revision, wherever they are stored.

    Args:
        stored: where the hub has led to for a file, by its address, and what the hub said of the file. Such a URL holds
            for about an hour, so that most reads take one request, and not the hub's redirect as well.
    """

    hub: HubAddress = field(kw_only=True)
    kept: HttpSession = field(kw_only=True)
    stored: dict[str, tuple[str, FileStat]] = field(kw_only=True)

    def _session(self) -> AbstractContextManager[requests.Session]:
        return nullcontext(self.kept)

    def _headers(self) -> dict[str, str]:
        from huggingface_hub import constants, get_token  # noqa: PLC0415

        token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
        # It goes to the hub alone: requests drops it where an answer leads to another host.
        return {"Accept-Encoding": "identity", **({"Authorization": f"Bearer {token}"} if token else {})}

    def _ask(self, session: requests.Session, method: str, name: str, headers: Mapping[str, str]) -> requests.Response:
        address = self._address_of(name)
        known = self.stored.get(address) if method == "GET" else None
        if known is not None:
            # No token: the URL itself is signed. It has no If-Match either: the storage has ETags of its own.
            kept = {key: value for key, value in headers.items() if key != "If-Match"}
            response = self._request(session, method, name, known[0], {"Accept-Encoding": "identity", **kept})
            if response.status_code in (200, 206) or response.status_code >= 500:
                return response
            response.close()  # the signature has expired
            self.stored.pop(address, None)
        response = HttpFiles._ask(self, session, method, name, headers)
        if response.history and response.status_code in (200, 206):
            stat = self._describe(response, name)
            if stat.sha256 is not None and (stat.version or " ") in address:  # the file of a commit, which stays
                self.stored[address] = (response.url, stat)
        return response

    def _where(self, name: str) -> str:
        return f"{self.hub}/{name}"

    def _check_status(self, response: requests.Response, name: str) -> None:
        status = response.status_code
        code, said = response.headers.get("X-Error-Code", ""), response.headers.get("X-Error-Message", "")
        if status in (401, 403, 404):
            raise _refusal(str(self.hub), name, status, code, said)
        HttpFiles._check_status(self, response, name)

    def _retry_after(self, headers: Mapping[str, str]) -> str | None:
        return _retry_after(headers)

    def _describe(self, response: requests.Response, name: str) -> FileStat:
        """Return what the hub says, rather than the storage it leads to."""
        known = self.stored.get(self._address_of(name))
        if known is not None and response.url == known[0] and not response.history:
            return known[1]
        stat = HttpFiles._describe(self, response, name)
        first = (response.history or [response])[0].headers
        etag = first.get("X-Linked-ETag") or first.get("ETag") or stat.etag
        size = first.get("X-Linked-Size")
        sha256 = _SHA256.fullmatch(first.get("X-Linked-ETag") or "")
        return FileStat(
            name,
            self._where(name),
            bytes=int(size) if size and size.isdecimal() and len(size) < 19 else stat.bytes,
            sha256=sha256[1] if sha256 else None,
            etag=etag,
            version=first.get("X-Repo-Commit"),
        )


def check_installed() -> None:
    """Raise MissingExtraError unless huggingface_hub is installed."""
    imported("huggingface_hub", f"{HUB} needs huggingface_hub", "hub")


def repositories(
    *, author: str | None = None, search: str | None = None, tag: str | None = None, limit: int | None = None
) -> list[str]:
    """Return datasets of the hub as ``ORG/NAME``.

    Args:
        author: only those of this organisation or user.
        search: only those with this text in their names.
        tag: only those with this tag; ``rlx`` is on those that rlx has pushed.
        limit: at most this many.

    Raises:
        ForbiddenError: the token is refused.
        DownloadError: the hub keeps failing.
    """
    check_installed()
    wanted = {"author": author, "search": search, "filter": tag, "limit": limit, "full": tag == TAG or None}
    where = f"{HUB}{author or ''}".rstrip("/")

    def listed(api: "HfApi") -> list[str]:
        return [str(entry.get("id")) for entry in islice(_listed(api, "datasets", **wanted), limit)]

    found = DEFAULT_RETRY.run(lambda: asked(where, listed), Cancel())
    odd = [name for name in found if not _REPO.fullmatch(name)]
    if odd:
        logger.warning("%s: left out %s: not names of datasets", where, ", ".join(odd))
    return [name for name in found if name not in odd]


def _listed(api: "HfApi", route: str, **parameters: Any) -> Iterator[dict[str, Any]]:
    """Yield the entries of a list, page by page.

    ``HfApi`` does so too, but waits as long as a server asks for, and retries every request that is retried here.
    """
    hub: Any = import_module("huggingface_hub.utils")

    url: str | None = f"{api.endpoint}/api/{route}"
    query: dict[str, Any] | None = {key: value for key, value in parameters.items() if value is not None}
    while url is not None:
        answer = hub.get_session().get(url, params=query, headers=hub.build_hf_headers(library_name="rlx"))
        hub.hf_raise_for_status(answer)
        entries = answer.json()
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise DownloadError(f"{url}: expected a list of entries, found {type(entries).__name__}")
        yield from entries
        url, query = answer.links.get("next", {}).get("url"), None


def asked(where: str, request: "Callable[[HfApi], T]") -> T:
    """Return the hub's answer to one request.

    Raises:
        TransientError: another request may succeed.
        SourceNotFoundError, ForbiddenError, DownloadError: it will not.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled  # noqa: PLC0415

    api = HfApi(endpoint=_endpoint(), library_name="rlx")
    try:
        with _quiet:
            _watch_requests()
            return request(api)
    except OfflineModeIsEnabled as exc:
        raise DownloadError(f"{where}: HF_HUB_OFFLINE is set") from harmless(exc)
    except HfHubHTTPError as exc:
        raise _error(where, exc) from harmless(exc)
    except (SourceError, TransientError):
        raise
    except ValueError as exc:  # what huggingface_hub refuses before it asks, such as a card with an unknown licence
        raise SourceError(f"{where}: {' '.join(str(exc).split())}") from harmless(exc)
    except Exception as exc:
        raise _foreign(where, exc) from harmless(exc)


def _watch_requests() -> None:
    """Have the client of huggingface_hub, which waits for ever, give up as all other clients of rlx do."""
    session = import_module("huggingface_hub.utils").get_session()
    for event, hook in (("request", _limit_silence), ("response", _raise_if_passing)):
        if hook not in session.event_hooks[event]:
            session.event_hooks = {**session.event_hooks, event: [*session.event_hooks[event], hook]}


def _limit_silence(request: Any) -> None:
    if _is_ours(request):
        given = request.extensions.get("timeout", {})
        limits = {"connect": _CONNECT_S, "read": _SILENCE_S, "write": _SILENCE_S, "pool": _SILENCE_S}
        request.extensions["timeout"] = {key: min(limit, given.get(key) or limit) for key, limit in limits.items()}


def _raise_if_passing(response: Any) -> None:
    if _is_ours(response.request) and (response.status_code == 429 or response.status_code >= 500):
        from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415

        # huggingface_hub would wait for as long as the hub asks.
        raise HfHubHTTPError(f"HTTP {response.status_code}", response=response)


def _is_ours(request: Any) -> bool:
    """Return whether a request is of rlx, and not of others in this process; the storage is not told whose it is."""
    agent = request.headers.get("User-Agent", "")
    return _quiet.is_inside and (agent.startswith("rlx/") or "hf_hub/" not in agent)


def _foreign(where: str, exc: BaseException) -> BaseException:
    """Return what an exception of huggingface_hub means, or of the HTTP library that its version uses; else itself."""
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415

    cause: BaseException | None = exc
    while cause is not None:
        package = type(cause).__module__.partition(".")[0]
        problem = without_secrets(str(cause).partition("\n")[0]) or type(cause).__name__
        if isinstance(cause, HfHubHTTPError):
            return _error(where, cause)
        if package in ("httpx", "httpx2", "httpcore", "requests", "urllib3"):
            return TransientError(DownloadError(f"{where}: {problem}", hint=RESUME_HINT))
        if package == "huggingface_hub" and cause.__cause__ is None:
            return SourceError(f"{where}: {problem}")
        cause = cause.__cause__
    return exc


def _error(where: str, exc: Any) -> Exception:
    """Return what an answer of the hub's API means: an error of rlx, or a TransientError."""
    response = exc.response
    status = response.status_code if response is not None else 0
    headers = response.headers if response is not None else {}
    if status in (401, 403, 404):
        return _refusal(where, None, status, headers.get("X-Error-Code", ""), headers.get("X-Error-Message", ""))
    if status == 412:
        return _OutdatedError(f"{where}: somebody else has pushed to it meanwhile", hint=RESUME_HINT)
    said = headers.get("X-Error-Message") or getattr(exc, "server_message", None) or ""
    error = DownloadError(f"{where}: HTTP {status}" + (f": {said}" if said else ""), hint=RESUME_HINT)
    if status in (408, 409, 429) or status >= 500:
        return TransientError(error, _retry_after(headers))
    return error


def _retry_after(headers: Mapping[str, str]) -> str | None:
    """Return when to ask again: the hub says it in either of two headers."""
    reset = _RESET_S.search(headers.get("RateLimit", ""))
    return headers.get("Retry-After") or (reset and reset[1])


def _refusal(where: str, name: str | None, status: int, code: str, said: str) -> SourceError:
    """Return the error for 401, 403 and 404, which the hub tells apart by a header."""
    file = where if name is None else f"{where}/{name}"
    if code == "GatedRepo":
        page = where.replace(HUB, "https://huggingface.co/datasets/").partition("@")[0]
        return ForbiddenError(f"{where}: access is gated", hint=f"accept its conditions at {page}, then hf auth login")
    if code == "EntryNotFound":
        return SourceNotFoundError(f"{file}: no such file")
    if code == "RevisionNotFound":
        return SourceNotFoundError(f"{where}: no such revision")
    if code == "RepoNotFound" and status == 404:
        return SourceNotFoundError(f"{where}: no such dataset")
    if code == "RepoNotFound":
        # Without a token, the hub does not tell what is private from what does not exist.
        return ForbiddenError(f"{where}: no such dataset, or it is private", hint=_LOGIN.format("read it"))
    if status == 404:
        return SourceNotFoundError(f"{file}: no such file (HTTP 404)")
    return ForbiddenError(
        f"{where}: access denied (HTTP {status})" + (f": {said}" if said else ""), hint=_LOGIN.format("access it")
    )


class _Quiet:
    """Keeps huggingface_hub from drawing progress bars of its own while any thread asks it: progress is a parameter."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._enable = False

    @property
    def is_inside(self) -> bool:
        """Whether any thread asks."""
        return self._inside > 0

    def __enter__(self) -> None:
        from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars  # noqa: PLC0415

        with self._lock:
            self._inside += 1
            if self._inside == 1 and not are_progress_bars_disabled():
                self._enable = True
                disable_progress_bars()

    def __exit__(self, *_: object) -> None:
        from huggingface_hub.utils.tqdm import enable_progress_bars  # noqa: PLC0415

        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._enable:
                self._enable = False
                enable_progress_bars()


_quiet = _Quiet()


def _is_offline() -> bool:
    from huggingface_hub import constants  # noqa: PLC0415

    return bool(constants.HF_HUB_OFFLINE)


def _endpoint() -> str:
    from huggingface_hub import constants  # noqa: PLC0415

    return constants.ENDPOINT.rstrip("/")


def _range_of(path: Path, start: int, stop: int | None) -> Iterator[bytes]:
    if start == 0 and stop is None:
        yield from pieces_of(path)
        return
    with path.open("rb") as file:
        file.seek(start)
        yield file.read() if stop is None else file.read(stop - start)
