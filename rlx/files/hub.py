"""Datasets of the Hugging Face hub: read by ranges, written by one commit, through huggingface_hub.

Endpoint, token, cache and offline mode are those of huggingface_hub: ``HF_ENDPOINT``, ``HF_TOKEN`` or the token of
``hf auth login``, ``HF_HOME``, ``HF_HUB_OFFLINE``. Uploads use Xet where hf_xet is installed; ``HF_HUB_DISABLE_XET=1``
turns it off.
"""

import io
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar, cast
from urllib.parse import quote, unquote

import requests

from rlx.errors import CorruptShardError, DownloadError, OptionError, SourceError, SourceNotFoundError, UrlError
from rlx.files import hub_api
from rlx.files.checksum import FileStat, digests_of, pieces_of
from rlx.files.http import HttpFiles, HttpSession
from rlx.files.hub_api import OutdatedError, asked, check_installed, endpoint, is_offline, listed, refusal, retry_after
from rlx.files.location import Content, Upload, WritableLocation, checked_name
from rlx.files.retry import Cancel, RetryPolicy
from rlx.files.urls import HUB
from rlx.progress import Progress
from rlx.wording import without_secrets

if TYPE_CHECKING:
    from huggingface_hub import CommitInfo, CommitOperation, CommitOperationAdd, HfApi

_ADDRESS = re.compile(
    r"hf://datasets/(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>refs/(?:pr|convert)/[^/]+|[^/]+))?(?P<path>/.*)?"
)
_REFS = re.compile(r"refs/(?:pr|convert)/")
_ETAG = re.compile(r'"?([0-9a-f]{64})"?')
_MAIN, _CARD = "main", "README.md"
_CONCURRENT = 8
_SHA256 = re.compile(r"[0-9a-f]{64}")
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
            UrlError: it is of another form.

        Example:
            >>> HubAddress.parse("hf://datasets/me/pong@v1.0/run/5")
            HubAddress(repo='me/pong', revision='v1.0', path='run/5')
            >>> HubAddress.parse("hf://me/pong")
            Traceback (most recent call last):
            rlx.errors.UrlError: hf://me/pong is not a dataset of the hub: expected hf://datasets/ORG/NAME[@REV][/PATH]
        """
        found = _ADDRESS.fullmatch(url)
        if found is None:
            raise UrlError(f"{without_secrets(url)} is not a dataset of the hub: expected {HUB}ORG/NAME[@REV][/PATH]")
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


@dataclass(frozen=True, slots=True)
class HubFiles(HttpFiles):
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
        from huggingface_hub import constants, get_token

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
            raise refusal(str(self.hub), name, status, code, said)
        HttpFiles._check_status(self, response, name)

    def _retry_after(self, headers: Mapping[str, str]) -> str | None:
        return retry_after(headers)

    def _describe(self, response: requests.Response, name: str) -> FileStat:
        """Return the metadata of the hub, not of the storage that it redirects to."""
        known = self.stored.get(self._address_of(name))
        if known is not None and response.url == known[0] and not response.history:
            return known[1]
        stat = HttpFiles._describe(self, response, name)
        first = (response.history or [response])[0].headers
        etag = first.get("X-Linked-ETag") or first.get("ETag") or stat.etag
        size = first.get("X-Linked-Size")
        sha256 = _ETAG.fullmatch(first.get("X-Linked-ETag") or "")
        return FileStat(
            name,
            self._where(name),
            bytes=int(size) if size and size.isdecimal() and len(size) < 19 else stat.bytes,
            sha256=sha256[1] if sha256 else None,
            etag=etag,
            version=first.get("X-Repo-Commit"),
        )


def _dropped(snapshot: Path) -> list[Path]:
    """Delete the files of a snapshot that differ from their git LFS checksum, from the cache too; return them."""
    files = [path for path in (snapshot, *snapshot.rglob("*")) if path.is_symlink() and path.is_file()]
    with ThreadPoolExecutor(_CONCURRENT) as pool:
        differing = [path for path, differs in zip(files, pool.map(_differs, files), strict=True) if differs]
    for path in differing:
        path.resolve().unlink()
        path.unlink()
    return differing


def _differs(link: Path) -> bool:
    # The cache names a file of git LFS by its sha256, and others by a shorter checksum.
    name = link.readlink().name
    if not _SHA256.fullmatch(name):
        return False
    expected = FileStat(name, str(link), sha256=name)
    return bool(digests_of(link, expected).differences(expected))


class _SentBytes:
    """Bytes of a file that were sent; bytes that are sent again count once."""

    def __init__(self, file: Upload) -> None:
        self.file = file
        self._reached = 0

    def reach(self, place: int) -> None:
        """Count the bytes up to an offset."""
        if place > self._reached:
            self.file.sent(place - self._reached)
            self._reached = place


class _CountedFile(io.FileIO):
    """A file that counts what is read of it."""

    def __init__(self, path: str, count: _SentBytes) -> None:
        super().__init__(path)
        self._count = count

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes."""
        piece = super().read(-1 if size is None else size)
        self._count.reach(self.tell())
        return piece


class Hub(WritableLocation):
    """The files of a dataset on the hub.

    The revision is resolved by the first answer, and all later requests read that commit. Written files stay
    invisible until ``replace`` commits them.

    Args:
        url: ``hf://datasets/ORG/NAME[@REV][/PATH]``.

    Raises:
        UrlError: the URL is of another form.
        MissingExtraError: huggingface_hub is not installed.
    """

    is_atomic = True
    # Enough for few requests, and few enough for the progress to be seen.
    max_batch = 32

    def __init__(self, url: str, *, retry: RetryPolicy | None = None) -> None:
        check_installed()
        self.address = HubAddress.parse(url)
        self.retry = retry or hub_api.DEFAULT_RETRY
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
        return f"{endpoint()}/datasets/{self.address.repo}"

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
    def _http(self) -> "HubFiles":
        session = getattr(self._sessions, "session", None)
        if session is None:
            session = self._sessions.session = HttpSession()
        return HubFiles(
            f"{endpoint()}/datasets/{self.address.repo}/resolve/{quote(self._revision, safe='')}"
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
        from huggingface_hub import try_to_load_from_cache

        offline = is_offline()
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

    def list(self, below: str | None = None) -> Iterator[FileStat]:
        """Yield the files in a directory and in those below it; all files by default."""
        return self._files(self.address.path if below is None else self._in_repo(below))

    def _files(self, below: str) -> Iterator[FileStat]:
        revision = quote(self._revision, safe="")
        route = f"datasets/{self.address.repo}/tree/{revision}" + (f"/{quote(below)}" if below else "")
        try:
            entries = self._ask(lambda api: list(listed(api, route, recursive=True, expand=False)))
        except SourceNotFoundError:
            return
        skipped = len(self.address.path) + 1 if self.address.path else 0
        for entry in entries:
            if entry.get("type") == "file":
                name = checked_name(entry["path"][skipped:])
                sha256 = entry["lfs"]["oid"] if entry.get("lfs") else None
                yield FileStat(name, self._where(name), bytes=entry["size"], sha256=sha256)

    def snapshot(self, progress: Progress | None = None) -> tuple[Path, Path]:
        """Return a directory with all files, and the card of the repository, if it has one.

        Missing ones are fetched into the cache of huggingface_hub.

        Raises:
            SourceNotFoundError: the dataset or revision does not exist.
            ForbiddenError: it is private, or gated.
            DownloadError: the hub keeps failing.
            CorruptShardError: a file differs from its checksum in git LFS, even after a second fetch.
        """
        from huggingface_hub import snapshot_download

        if progress is not None and not is_offline():
            self._fill_cache(progress)
        path = self.address.path
        below = [path, f"{path}/*", _CARD] if path else None

        def fetch(api: "HfApi") -> str:
            return snapshot_download(
                self.address.repo,
                repo_type="dataset",
                revision=self._revision,
                allow_patterns=below,
                endpoint=endpoint(),
                token=api.token,
                library_name="rlx",
            )

        found = Path(self._ask(fetch))
        with self._lock:
            self._commit = found.name  # snapshots are directories named by their commit
        if not (found / path).exists():
            raise SourceNotFoundError(f"{self.url}: no such file or directory")
        damaged = _dropped(found / path)
        if damaged and not is_offline():
            self._ask(fetch)
            damaged = _dropped(found / path)
        if damaged:
            name = damaged[0].relative_to(found).as_posix()
            raise CorruptShardError(f"{self.url}: {name} differs from its sha256 in git LFS")
        return found / path, found / _CARD

    def cached_files(self) -> Sequence[tuple[FileStat, bool]]:
        """Return all files of the location, and whether each is in the cache of huggingface_hub."""
        self._commit = self._head()
        return [(file, self._cached(file.name) is not None) for file in self._files(self.address.path)]

    def _fill_cache(self, progress: Progress) -> None:
        from huggingface_hub import hf_hub_download

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
                    endpoint=endpoint(),
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
        from huggingface_hub import CommitOperationAdd

        self._stage([CommitOperationAdd(self._in_repo(name), content) for name, content in files.items()])

    def put_all(self, files: Sequence[Upload]) -> None:
        """Upload files by few requests, except those that the hub's storage already has."""
        from huggingface_hub import CommitOperationAdd

        class Addition(CommitOperationAdd):
            """An upload that counts its bytes as they are read."""

            @contextmanager
            def as_file(self, with_tqdm: bool = False) -> "Iterator[BinaryIO]":  # noqa: ARG002
                with _CountedFile(str(self.path_or_fileobj), counts[self.path_in_repo]) as opened:
                    yield cast("BinaryIO", opened)

        counts = {self._in_repo(file.name): _SentBytes(file) for file in files}
        for file in files:
            for _ in file.pieces():  # checked before it is sent
                pass
        self._stage([Addition(name, str(count.file.path)) for name, count in counts.items()])
        for count in counts.values():  # also of what the hub has, or gets with the commit or by Xet
            count.reach(count.file.bytes)

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

    def is_unchanged(self, name: str) -> bool:
        """Return whether a file that was put is in the newest commit already, so that the next one omits it."""
        # What huggingface_hub was told when the file was put; a release without it counts the file as sent.
        added = self._additions[self._in_repo(name)]
        there = getattr(added, "_remote_oid", None)
        return there is not None and there == getattr(added, "_local_oid", None)

    def replace(self, name: str, content: bytes, *, seen: FileStat | None) -> bool:
        """Commit all files that were put or deleted, and this one, unless there was another commit meanwhile."""
        from huggingface_hub import CommitOperationAdd

        path, head = self._in_repo(name), self._head()
        is_new = seen is None and path not in self._deletions
        if (is_new and self._present([path], head)) or (seen is not None and seen.version != head):
            return False
        with self._lock:
            self._additions[path] = CommitOperationAdd(path, content)
        return self._commit_all(head)

    def _commit_all(self, parent: str) -> bool:
        """Commit all that was put or deleted; return whether the parent was still the newest commit."""
        from huggingface_hub import CommitOperationDelete

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
        except OutdatedError:
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
        """Return the commit that a tag of the repository names.

        Raises:
            OptionError: a branch has that name, which a tag cannot have too.
        """
        branches, tags = {_MAIN}, dict[str, str]()
        with suppress(SourceNotFoundError):
            refs = self._ask(lambda api: api.list_repo_refs(self.address.repo, repo_type="dataset"))
            branches |= {branch.name for branch in refs.branches}
            tags = {tag.name: tag.target_commit for tag in refs.tags}
        if version in branches:
            raise OptionError(
                f"`version` {version} is the name of a branch of {self.url}",
                hint="choose another `version`, such as v1",
            )
        return tags.get(version)

    def tag(self, version: str) -> None:
        """Tag the commit that was read or written last, or the newest."""
        commit = self._commit or self._head()
        self._ask(lambda api: api.create_tag(self.address.repo, tag=version, revision=commit, repo_type="dataset"))

    def at(self, version: str) -> "Hub":
        """Return the location of a version's files."""
        return Hub(str(replace(self.address, revision=version)), retry=self.retry)

    def _head(self) -> str:
        info = self._ask(
            lambda api: api.dataset_info(self.address.repo, revision=self.address.revision, files_metadata=False)
        )
        if info.sha is None:
            raise DownloadError(f"{self.url}: the hub does not state its commit")
        return info.sha

    def _present(self, paths: Sequence[str], commit: str) -> Sequence[str]:
        if not paths:
            return []
        found = self._ask(
            lambda api: api.get_paths_info(self.address.repo, [*paths], revision=commit, repo_type="dataset")
        )
        return [entry.path for entry in found]

    def _ask(self, request: "Callable[[HfApi], T]") -> T:
        return self.retry.run(lambda: asked(self.url, request), Cancel())


def _range_of(path: Path, start: int, stop: int | None) -> Iterator[bytes]:
    if start == 0 and stop is None:
        yield from pieces_of(path)
        return
    with path.open("rb") as file:
        file.seek(start)
        yield file.read() if stop is None else file.read(stop - start)
