"""The bases that runs are downloaded from: an ordered list, each of which is tried where those before it fail.

``RLX_SOURCES`` has the list, separated by spaces; else ``sources.toml`` among the user's settings:

    sources = ["https://mirror.example/atari_episodes_ordered", {url = "/data/dqn", layout = "dopamine"}, "default"]

``default`` stands for rlx's own list, which is used without either.
"""

import os
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from rlx.errors import FileAccessError, ForbiddenError, OptionError, RlxError, SourceNotFoundError
from rlx.files.disk import file_error, opened_file
from rlx.files.location import Location
from rlx.files.opening import open_source
from rlx.files.retry import RetryPolicy
from rlx.formats import rl_unplugged
from rlx.formats.dopamine.reader import DopamineLayout
from rlx.home import config_file
from rlx.wording import without_secrets

VARIABLE = "RLX_SOURCES"
FILE_NAME = "sources.toml"
BUILT_IN = "built-in"
LAYOUTS = ("rlu", "dopamine")
_DEFAULT = "default"
_EXAMPLE = 'sources = ["https://host/atari_episodes_ordered", "default"]'
_MAX_BYTES = 2**20
# Where another base follows, it is tried soon instead.
_SOON = RetryPolicy(attempts=3, first_delay_s=0.5, max_delay_s=4.0, max_retry_after_s=30.0, max_silence_s=60.0)
_ONCE = RetryPolicy(attempts=1)
_PROBES = 16
_PROBE_CONNECT_S = 3.0
_PROBE_READ_S = 5.0


@dataclass(frozen=True, slots=True)
class Base:
    """Location of the files of runs.

    Args:
        address: URL or directory.
        layout: ``rlu`` or ``dopamine``; None to find out.
        configured: where it is configured: ``RLX_SOURCES``, the path of ``sources.toml``, or ``built-in``.
    """

    address: str
    layout: str | None = None
    configured: str = BUILT_IN

    @property
    def url(self) -> str:
        """URL or directory, without any password or token."""
        return without_secrets(self.address)

    @property
    def is_ordered(self) -> bool:
        """Whether its episodes are known to be in the order of play."""
        return rl_unplugged.is_ordered(self.address)


DEFAULTS = (Base(rl_unplugged.URL, "rlu"), Base(rl_unplugged.UNORDERED_URL, "rlu"))


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """A configured base, and what it answers.

    Args:
        source: URL or directory, without any password or token.
        configured: where it is configured: ``RLX_SOURCES``, the path of ``sources.toml``, or ``built-in``.
        layout: ``rlu`` or ``dopamine``, as configured or found; None if unknown.
        state: ``ok``; ``missing``, if it lacks the run that was asked for; ``refused``; or ``unreachable``.
        seconds: until it answered.
        message: its error; None if it is ok.
    """

    source: str
    configured: str
    layout: str | None
    state: str
    seconds: float
    message: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the keys that scripts rely on."""
        return asdict(self)


def configured_bases() -> list[Base]:
    """Return the bases to try, in order."""
    if (text := os.environ.get(VARIABLE)) is not None and text.strip():
        return list(_bases(text.split(), VARIABLE))
    path = config_file(FILE_NAME)
    try:
        with opened_file(path) as file:
            content = file.read(_MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return list(DEFAULTS)
    except OSError as exc:
        raise file_error(exc, path) from exc
    try:
        document = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as exc:
        raise OptionError(f"{path} is not TOML: {exc}", hint=_EXAMPLE) from exc
    entries = document.get("sources")
    if not isinstance(entries, list) or not entries or document.keys() != {"sources"}:
        raise OptionError(f"{path}: expected a list of sources and nothing else", hint=_EXAMPLE)
    return list(_bases(entries, str(path)))


def _bases(entries: Sequence[Any], configured: str) -> Iterator[Base]:
    for entry in entries:
        table = {"url": entry} if isinstance(entry, str) else entry
        if not isinstance(table, dict) or not isinstance(table.get("url"), str) or table.keys() - {"url", "layout"}:
            found = without_secrets(str(entry))[:100]
            raise OptionError(f"{configured}: expected a URL or {{url, layout}}, found {found}", hint=_EXAMPLE)
        layout = table.get("layout")
        if layout is not None and layout not in LAYOUTS:
            raise OptionError(f"{configured}: unknown layout {layout!r}: expected {' or '.join(LAYOUTS)}")
        if table["url"] == _DEFAULT:
            yield from DEFAULTS
        else:
            yield Base(table["url"], layout, configured)


Place = tuple[Base, Location | RlxError]


def opened(bases: Sequence[Base]) -> list[Place]:
    """Return the location of each base, or the error of opening it; no server is asked yet."""
    return [(base, _location(base, None if base is bases[-1] else _SOON)) for base in bases]


def _location(base: Base, retry: RetryPolicy | None) -> Location | RlxError:
    try:
        return open_source(base.address, retry=retry)
    except RlxError as exc:
        return exc


def probe(bases: Sequence[Base], run: str) -> list[SourceStatus]:
    """Ask every base for the first file of a run, all at once, each for some seconds at most."""
    with ThreadPoolExecutor(_PROBES) as pool:
        return list(pool.map(lambda base: _probed(base, run), bases))


def _probed(base: Base, run: str) -> SourceStatus:
    from rlx.files.http import HttpFiles  # who reads a directory does without

    started = time.monotonic()
    location = _location(base, _ONCE)
    if isinstance(location, HttpFiles):
        location = replace(location, connect_timeout_s=_PROBE_CONNECT_S, read_timeout_s=_PROBE_READ_S)
    layout, error = base.layout, location if isinstance(location, RlxError) else None
    if isinstance(location, Location):
        layout, error = _answered(location, base.layout, *run.split("/"))
    state = "ok" if error is None else _STATES.get(type(error), "unreachable")
    seconds = round(time.monotonic() - started, 3)
    return SourceStatus(base.url, base.configured, layout, state, seconds, None if error is None else str(error))


_STATES: dict[type[RlxError], str] = {
    ForbiddenError: "refused",
    FileAccessError: "refused",
    SourceNotFoundError: "missing",
}


def _answered(location: Location, layout: str | None, game: str, number: str) -> tuple[str | None, RlxError | None]:
    """Return the layout in which a base has a run, or the first error that says more than that it lacks it."""
    names = [("rlu", rl_unplugged.shard_file(game, int(number), 0))] if layout != "dopamine" else []
    if layout != "rlu":
        prefixed = (DopamineLayout(game, int(number), prefix) for prefix in ("", "dqn/"))
        names += [("dopamine", one.index_files()[0]) for one in prefixed]
    errors: list[RlxError] = []
    for found, name in names:
        try:
            location.stat(name)
        except SourceNotFoundError as exc:
            errors.append(exc)
        except RlxError as exc:
            return layout, exc
        else:
            return found, None
    return layout, errors[0]
