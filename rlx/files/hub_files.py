"""Files of a dataset on the Hugging Face hub, read by the addresses at which it serves them."""

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

import requests

from rlx.errors import UrlError
from rlx.files.checksum import FileStat
from rlx.files.http import HttpFiles, HttpSession
from rlx.files.hub_api import refusal, retry_after
from rlx.files.location import checked_name
from rlx.files.urls import HUB
from rlx.wording import without_secrets

_ADDRESS = re.compile(
    r"hf://datasets/(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>refs/(?:pr|convert)/[^/]+|[^/]+))?(?P<path>/.*)?"
)
_REFS = re.compile(r"refs/(?:pr|convert)/")
_SHA256 = re.compile(r'"?([0-9a-f]{64})"?')


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
        sha256 = _SHA256.fullmatch(first.get("X-Linked-ETag") or "")
        return FileStat(
            name,
            self._where(name),
            bytes=int(size) if size and size.isdecimal() and len(size) < 19 else stat.bytes,
            sha256=sha256[1] if sha256 else None,
            etag=etag,
            version=first.get("X-Repo-Commit"),
        )
