"""``rlx.list_runs``: the datasets that are here, and the runs that can be downloaded."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict, Unpack, overload

from rlx.errors import OptionError
from rlx.files.urls import check_path
from rlx.verbs.arguments import StrPath, check_exclusive
from rlx.verbs.options import SOURCE, Argument, Option

if TYPE_CHECKING:
    from rlx.verbs.runs import CatalogEntry
    from rlx.verbs.sources import SourceStatus

_PROBED_GAME = "Pong"


def _games() -> Sequence[str]:
    from rlx.formats.rl_unplugged import GAMES

    return GAMES


class _ListArguments(TypedDict, total=False):
    remote: bool
    local: bool
    game: str | None
    source: str | None
    search: str | None


@overload
def list_runs(
    url: StrPath | None = None, *, sources: Literal[False] = False, **arguments: Unpack[_ListArguments]
) -> "list[CatalogEntry]": ...


@overload
def list_runs(
    url: StrPath | None = None, *, sources: Literal[True], **arguments: Unpack[_ListArguments]
) -> "list[SourceStatus]": ...


def list_runs(
    url: Annotated[StrPath | None, Argument("Location to list instead.", metavar="URL|DIR", default=False)] = None,
    *,
    remote: Annotated[bool, Option("Downloadable runs only.")] = False,
    local: Annotated[bool, Option("Datasets below $RLX_HOME only.")] = False,
    game: Annotated[
        str | None, Option("Runs of this game only.", metavar="GAME", default=False, completes=_games)
    ] = None,
    source: Annotated[str | None, SOURCE] = None,
    search: Annotated[str | None, Option("Names that contain this text only.", metavar="TEXT", default=False)] = None,
    sources: Annotated[bool, Option("The configured sources of rlx download, and whether they answer.")] = False,
) -> "list[CatalogEntry] | list[SourceStatus]":
    """List local datasets and downloadable runs; a run that is both is listed once, as the local dataset.

    Args:
        url: URL or directory to list instead, with rlx's datasets in the directory; of ``hf://datasets/ORG[/NAME]``,
            the datasets that rlx has pushed there.
        remote: downloadable runs only.
        local: datasets below ``$RLX_HOME`` only.
        game: runs of this game only, case-insensitive.
        source: URL or directory to list after the local datasets; or ``minari``, ``lerobot`` or ``hf`` (the whole hub);
            by default ``rlu``, rlx's built-in list of RL Unplugged.
        search: only names with this text, case-insensitive.
        sources: list the bases that runs are downloaded from instead, each with its answer for run 1 of game,
            Pong by default; ``$RLX_SOURCES`` or ``~/.config/rlx/sources.toml`` configures them.

    Raises:
        OptionError: arguments conflict, or the configured list of sources is invalid.
        SourceNotFoundError: the directory does not exist.
        ForbiddenError: the server refuses all requests.
        DownloadError: the server does not answer.

    Example:
        >>> [run.id for run in rlx.list_runs(remote=True, game="Pong")]  # doctest: +SKIP
        ['Pong/1', 'Pong/2', 'Pong/3', 'Pong/4', 'Pong/5']
    """
    for name, text in (("game", game), ("source", source), ("search", search)):
        if not isinstance(text, str | None):
            raise OptionError(f"`{name}` {text!r}: expected a text")
    if sources:
        if remote or local or (url, source, search) != (None, None, None):
            raise OptionError("`sources` can only be combined with `game`")
        from rlx.verbs.sources import configured_bases, probe

        return probe(configured_bases(), f"{game or _PROBED_GAME}/1")
    return each_once(*here_and_there(url, remote=remote, local=local, game=game, source=source, search=search))


def here_and_there(
    url: StrPath | None, *, remote: bool, local: bool, game: str | None, source: str | None, search: str | None
) -> "tuple[list[CatalogEntry], list[CatalogEntry]]":
    """Return the local datasets, and the downloadable runs; see ``list_runs``."""
    from rlx.verbs.runs import local_runs, remote_runs

    check_exclusive(("remote", remote or None), ("local", local or None))
    if url is not None:
        if local or source is not None:
            raise OptionError(f"{url}: a location excludes `local` and `source`")
        remote, source = True, str(check_path("url", url, "a path or a URL"))
    here = [] if remote else [entry for entry in local_runs() if entry.is_of(game, search)]
    return here, [] if local else remote_runs(source, game, search)


def each_once(here: "Sequence[CatalogEntry]", there: "Sequence[CatalogEntry]") -> "list[CatalogEntry]":
    """Return local datasets, and those downloadable runs that are not among them."""
    names = {entry.id for entry in here}
    return [*here, *(run for run in there if run.id not in names)]
