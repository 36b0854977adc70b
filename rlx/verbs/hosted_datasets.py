"""Datasets that other projects keep on the Hugging Face hub, under names of their own: ``minari:D4RL/door/human-v2``.

A name leads to a location; what reads its files follows from the files, as in ``rlx convert``.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import quote

from rlx.errors import SourceError, SourceNotFoundError
from rlx.files.urls import HUB
from rlx.wording import did_you_mean

if TYPE_CHECKING:
    from rlx.files.hub import Hub

_NAME = re.compile(r"(?P<scheme>[a-z]+):(?P<name>[\w.-]+(?:/[\w.-]+)*)(?:@(?P<revision>.+))?")
_VERSION = re.compile(r"(?P<name>.*)-v(?P<version>\d+)")
_MINARI = "farama-minari"
_MINARI_INDEX = "namespace_metadata.json"
_MAX_INDEX = 2**24
_MOST = 500  # of a search on the whole hub
_TASK = "task_categories:reinforcement-learning"
_REQUESTS = 8


@dataclass(frozen=True, slots=True)
class Hosted:
    """A dataset of a project on the hub.

    Args:
        scheme: ``minari``, ``lerobot`` or ``hf``.
        name: the project's name of it, such as ``D4RL/door/human-v2``.
        revision: branch, tag or commit; None for the main branch.
    """

    scheme: str
    name: str
    revision: str | None = None

    def __str__(self) -> str:
        return f"{self.scheme}:{self.name}" + (f"@{self.revision}" if self.revision else "")

    @property
    def id(self) -> str:
        """Id of the dataset below ``$RLX_HOME``."""
        return f"{self.scheme}/{self.name}"

    @property
    def url(self) -> str:
        """URL of its files: ``hf://datasets/...``."""
        repo, path = HOSTS[self.scheme].place(self.name)
        revision = f"@{quote(self.revision, safe='')}" if self.revision else ""
        return f"{HUB}{repo}{revision}" + (f"/{path}" if path else "")

    @property
    def game(self) -> str:
        """Name of the environment, from the project's name of the dataset."""
        parts = PurePosixPath(self.name).parts
        return parts[-2] if self.scheme == "minari" and len(parts) > 1 else parts[-1]


@dataclass(frozen=True, slots=True)
class HubProject:
    """A project's place on the hub.

    Args:
        place: returns the repository and the path in it of a dataset's name.
        names: lists the names of its datasets with a text in them, or all.
    """

    place: Callable[[str], tuple[str, str]]
    names: Callable[[str | None], Sequence[str]]


def hosted(run: str) -> Hosted | None:
    """Return the dataset of ``minari:ID``, ``lerobot:ID`` or ``hf:ORG/NAME``; None for any other run.

    Example:
        >>> hosted("minari:D4RL/door/human-v2").url
        'hf://datasets/farama-minari/D4RL/door/human-v2'
        >>> hosted("lerobot:pusht@v2.1").url
        'hf://datasets/lerobot/pusht@v2.1'
        >>> hosted("Pong/5")
    """
    if ":" not in run:
        return None
    found, scheme = _NAME.fullmatch(run), run.partition(":")[0]
    if scheme not in HOSTS:
        known = ", ".join(f"{name}:" for name in HOSTS)
        hint = did_you_mean(scheme, HOSTS) or "rlx list --remote"
        raise SourceNotFoundError(f"run {run!r}: expected GAME/NUMBER, or a name after one of {known}", hint=hint)
    if found is None or {".", ".."} & {*found["name"].split("/")} or (scheme == "hf" and "/" not in found["name"]):
        example = {"minari": "D4RL/door/human-v2", "lerobot": "pusht", "hf": "ORG/NAME"}[scheme]
        raise SourceNotFoundError(
            f"run {run!r}: expected a name such as {scheme}:{example}", hint=f"rlx list --remote --source {scheme}"
        )
    return Hosted(scheme, found["name"], found["revision"])


def located(run: Hosted) -> tuple[Hosted, "Hub"]:
    """Return the dataset, by default Minari's newest version, and the location of its files."""
    from rlx.files.hub import Hub

    if run.scheme == "minari" and not _VERSION.fullmatch(run.name):
        run = Hosted(run.scheme, _newest(run.name), run.revision)
    return run, Hub(run.url)


def listed(scheme: str, search: str | None = None) -> list[Hosted]:
    """Return a project's datasets, those with a text in their names, or of the hub's own search."""
    return [Hosted(scheme, name) for name in HOSTS[scheme].names(search)]


def _newest(name: str) -> str:
    names = _minari_names(None)
    versions = [found for one in names if (found := _VERSION.fullmatch(one)) and found["name"] == name]
    if not versions:
        near = did_you_mean(name, [found["name"] for one in names if (found := _VERSION.fullmatch(one))])
        raise SourceNotFoundError(f"Minari has no dataset {name}", hint=near or "rlx list --remote --source minari")
    return str(max(versions, key=lambda found: int(found["version"]))[0])


def _minari_names(search: str | None) -> list[str]:
    """Return the datasets that the index of each of Minari's namespaces lists."""
    from rlx.files.hub import Hub
    from rlx.files.hub_api import repositories

    def names(repo: str) -> list[str]:
        location = Hub(f"{HUB}{repo}")
        try:
            index = json.loads(location.get(_MINARI_INDEX, max_bytes=_MAX_INDEX)[0])
            found = index.get("datasets", [])
        except SourceNotFoundError:  # a dataset that is in no namespace
            return [repo.partition("/")[2]]
        except (ValueError, AttributeError) as exc:
            raise SourceError(f"{location.url}/{_MINARI_INDEX} is not an index of Minari") from exc
        return [name for name in found if isinstance(name, str)]

    repos = repositories(author=_MINARI)
    with ThreadPoolExecutor(_REQUESTS) as requests:
        found = {name for some in requests.map(names, repos) for name in some}
    return [name for name in sorted(found) if search is None or search.lower() in name.lower()]


def _lerobot_names(search: str | None) -> list[str]:
    from rlx.files.hub_api import repositories

    return sorted(repo.partition("/")[2] for repo in repositories(author="lerobot", search=search))


def _hub_names(search: str | None) -> list[str]:
    from rlx.files.hub_api import repositories

    return sorted(repositories(search=search, tag=None if search else _TASK, limit=_MOST))


def _minari_place(name: str) -> tuple[str, str]:
    namespace, _, path = name.partition("/")
    return f"{_MINARI}/{namespace}", path


HOSTS: Mapping[str, HubProject] = {
    "minari": HubProject(_minari_place, _minari_names),
    "lerobot": HubProject(lambda name: (name if "/" in name else f"lerobot/{name}", ""), _lerobot_names),
    "hf": HubProject(lambda name: ("/".join(name.split("/")[:2]), "/".join(name.split("/")[2:])), _hub_names),
}
