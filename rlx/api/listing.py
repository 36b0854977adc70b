"""``rlx.list_runs``."""

from collections.abc import Sequence

from rlx.errors import OptionError
from rlx.pipeline.catalog import CatalogEntry, local_runs, remote_runs


def list_runs(
    *, remote: bool = False, local: bool = False, game: str | None = None, source: str | None = None
) -> list[CatalogEntry]:
    """List local datasets and downloadable runs; a run that is both is listed once, as the local dataset.

    Args:
        remote: downloadable runs only.
        local: datasets below ``$RLX_HOME`` only.
        game: runs of this game only, case-insensitive.
        source: URL or directory of the runs; rlx's built-in list of RL Unplugged by default.

    Raises:
        OptionError: remote and local are both given.
        SourceNotFoundError: the directory does not exist.
        ForbiddenError: the server refuses all requests.
        DownloadError: the server does not answer.

    Example:
        >>> [run.id for run in rlx.list_runs(remote=True, game="Pong")]  # doctest: +SKIP
        ['Pong/1', 'Pong/2', 'Pong/3', 'Pong/4', 'Pong/5']
    """
    return each_once(*here_and_there(remote=remote, local=local, game=game, source=source))


def here_and_there(
    *, remote: bool, local: bool, game: str | None, source: str | None
) -> tuple[list[CatalogEntry], list[CatalogEntry]]:
    """Return the local datasets, and the downloadable runs; see ``list_runs``."""
    if remote and local:
        raise OptionError("remote and local are mutually exclusive")
    here = [] if remote else [entry for entry in local_runs() if entry.is_of(game)]
    return here, [] if local else remote_runs(source, game)


def each_once(here: Sequence[CatalogEntry], there: Sequence[CatalogEntry]) -> list[CatalogEntry]:
    """Return local datasets, and those downloadable runs that are not among them."""
    names = {entry.id for entry in here}
    return [*here, *(run for run in there if run.id not in names)]
