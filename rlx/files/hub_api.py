"""Requests to the API of the Hugging Face hub: lists, timeouts, and the translation of its errors."""

import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from rlx.errors import DownloadError, ForbiddenError, SourceError, SourceNotFoundError, imported
from rlx.files.location import RESUME_HINT
from rlx.files.retry import Cancel, RetryPolicy, TransientError
from rlx.files.urls import HUB, TAG
from rlx.wording import harmless, without_secrets

if TYPE_CHECKING:
    from huggingface_hub import HfApi

logger = logging.getLogger(__name__)

_REPO = re.compile(r"[\w.-]+/[\w.-]+")
_RESET_S = re.compile(r";\s*t=(\d{1,9})")
_LOGIN = "hf auth login, or set HF_TOKEN to a token that may {}"
_CONNECT_S = 10.0
_SILENCE_S = 60.0
DEFAULT_RETRY = RetryPolicy(first_delay_s=0.5)
T = TypeVar("T")


class OutdatedError(SourceError):
    """The commit that a request builds on is not the newest."""


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

    def names(api: "HfApi") -> list[str]:
        return [str(entry.get("id")) for entry in islice(listed(api, "datasets", **wanted), limit)]

    found = DEFAULT_RETRY.run(lambda: asked(where, names), Cancel())
    odd = [name for name in found if not _REPO.fullmatch(name)]
    if odd:
        logger.warning("%s: left out %s: not names of datasets", where, ", ".join(odd))
    return [name for name in found if name not in odd]


def listed(api: "HfApi", route: str, **parameters: Any) -> Iterator[dict[str, Any]]:
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
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    api = HfApi(endpoint=endpoint(), library_name="rlx")
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
        from huggingface_hub.errors import HfHubHTTPError

        # huggingface_hub would wait for as long as the hub asks.
        raise HfHubHTTPError(f"HTTP {response.status_code}", response=response)


def _is_ours(request: Any) -> bool:
    """Return whether rlx sent a request; those to the hub's storage carry no User-Agent of huggingface_hub."""
    agent = request.headers.get("User-Agent", "")
    return _quiet.is_inside and (agent.startswith("rlx/") or "hf_hub/" not in agent)


def _foreign(where: str, exc: BaseException) -> BaseException:
    """Translate an exception of huggingface_hub or of its HTTP library; return any other unchanged."""
    from huggingface_hub.errors import HfHubHTTPError

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
    """Translate a response of the hub's API to an error of rlx, or a TransientError."""
    response = exc.response
    status = response.status_code if response is not None else 0
    headers = response.headers if response is not None else {}
    if status in (401, 403, 404):
        return refusal(where, None, status, headers.get("X-Error-Code", ""), headers.get("X-Error-Message", ""))
    if status == 412:
        return OutdatedError(f"{where}: another commit was pushed to it meanwhile", hint=RESUME_HINT)
    said = headers.get("X-Error-Message") or getattr(exc, "server_message", None) or ""
    error = DownloadError(f"{where}: HTTP {status}" + (f": {said}" if said else ""), hint=RESUME_HINT)
    if status in (408, 409, 429) or status >= 500:
        return TransientError(error, retry_after(headers))
    return error


def retry_after(headers: Mapping[str, str]) -> str | None:
    """Return when to ask again: the hub says it in either of two headers."""
    reset = _RESET_S.search(headers.get("RateLimit", ""))
    return headers.get("Retry-After") or (reset and reset[1])


def refusal(where: str, name: str | None, status: int, code: str, said: str) -> SourceError:
    """Return the error for 401, 403 and 404, which the hub distinguishes by a header."""
    file = where if name is None else f"{where}/{name}"
    if code == "GatedRepo":
        page = where.replace(HUB, f"{endpoint()}/datasets/").partition("@")[0]
        return ForbiddenError(f"{where}: access is gated", hint=f"accept its conditions at {page}, then hf auth login")
    if code == "EntryNotFound":
        return SourceNotFoundError(f"{file}: no such file")
    if code == "RevisionNotFound":
        return SourceNotFoundError(f"{where}: no such revision")
    if code == "RepoNotFound" and status == 404:
        return SourceNotFoundError(f"{where}: no such dataset")
    if code == "RepoNotFound":
        # Without a token, the hub answers alike for private and missing datasets.
        return ForbiddenError(f"{where}: no such dataset, or it is private", hint=_LOGIN.format("read it"))
    if status == 404:
        return SourceNotFoundError(f"{file}: no such file (HTTP 404)")
    return ForbiddenError(
        f"{where}: access denied (HTTP {status})" + (f": {said}" if said else ""), hint=_LOGIN.format("access it")
    )


def _without_secrets(record: logging.LogRecord) -> bool:
    """Hide what signs the URLs that huggingface_hub names in its warnings."""
    record.msg, record.args = without_secrets(record.getMessage()), ()
    return True


class _Quiet:
    """Context that hides huggingface_hub's progress bars, and secrets in its log, while any thread uses it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._enable = False

    @property
    def is_inside(self) -> bool:
        """Whether any thread is in the context."""
        return self._inside > 0

    def __enter__(self) -> None:
        from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars

        logging.getLogger("huggingface_hub.file_download").addFilter(_without_secrets)
        with self._lock:
            self._inside += 1
            if self._inside == 1 and not are_progress_bars_disabled():
                self._enable = True
                disable_progress_bars()

    def __exit__(self, *_: object) -> None:
        from huggingface_hub.utils.tqdm import enable_progress_bars

        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._enable:
                self._enable = False
                enable_progress_bars()


_quiet = _Quiet()


def is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE is set."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def endpoint() -> str:
    """Return the URL of the hub."""
    from huggingface_hub import constants

    return constants.ENDPOINT.rstrip("/")
