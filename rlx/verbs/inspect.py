"""``rlx.inspect`` and ``rlx.cite``: what a dataset contains and where it came from."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rlx.files.urls import check_path, is_url
from rlx.verbs.arguments import StrPath
from rlx.verbs.options import AnyDatasetArgument, Option

if TYPE_CHECKING:
    from rlx.verbs.inspection import Inspection


def inspect(
    dataset: AnyDatasetArgument,
    *,
    stats: Annotated[bool, Option("Add statistics of returns, lengths, rewards, actions and observations.")] = False,
    trajectories: Annotated[bool, Option("Add a table of all trajectories.")] = False,
    plot: Annotated[
        StrPath | None, Option("Plot returns, lengths, rewards and actions to FILE.png.", metavar="FILE")
    ] = None,
) -> "Inspection":
    """Return what a dataset contains and where it came from.

    Returns and lengths are of whole episodes, from a reset to the end that the environment gave; pieces of episodes are
    counted separately. Reads only the manifest, with trajectories also their table, and with plot also rewards and
    actions.

    Args:
        dataset: the dataset's directory, its id below ``$RLX_HOME``, or its URL.
        stats: add statistics of returns, lengths, rewards, actions and observations.
        trajectories: add the table of all trajectories.
        plot: file to plot returns, lengths, rewards and actions to; ends in ``.png``.

    Raises:
        DatasetNotFoundError: dataset does not exist.
        IncompleteDatasetError: the dataset has no manifest yet.
        CorruptDatasetError: the manifest, or a file that is read, is damaged.
        FormatVersionError: a newer rlx wrote it.
        UnknownFormatError: the name of plot does not end in ``.png``.
        ForbiddenError: the server of a URL refuses access.
        DownloadError: fetching from a URL failed after all retries.

    Example:
        >>> found = rlx.inspect("Pong/5", stats=True)
        >>> found.steps, found.trajectories, found.schema["observation"]["shape"]
        (2491, 6, [84, 84])
        >>> found.stats["action"]["counts"]["0"]
        441
    """
    from rlx.verbs.inspection import inspection

    image = None if plot is None else Path(check_path("`plot`", plot, "a file"))
    return inspection(dataset, stats=stats, trajectories=trajectories, plot=image)


def cite(dataset: AnyDatasetArgument) -> list[str]:
    """Return BibTeX of a dataset: the entries of its ``CITATION.bib``, then the papers that its source names.

    ``rlx push --cite`` writes that file to the hub, and ``rlx pull`` downloads it; downloads of other projects'
    datasets write it from the card there. A paper that rlx does not know is returned as a BibTeX
    comment, as the source wrote it.

    Args:
        dataset: the dataset's directory, its id below ``$RLX_HOME``, or its URL.

    Raises:
        DatasetNotFoundError: dataset does not exist.
        CorruptDatasetError: the manifest is damaged.
        ForbiddenError: the server of a URL refuses access.
        DownloadError: fetching from a URL failed after all retries.

    Example:
        >>> [entry.partition("{")[2].partition(",")[0] for entry in rlx.cite("Pong/5")]
        ['agarwal2020optimistic', 'gulcehre2020rl']
    """
    from rlx.files.opening import open_location
    from rlx.home import locate
    from rlx.store.layout import find_dataset
    from rlx.verbs.citation import citations

    manifest = find_dataset(dataset)[1]
    return citations(manifest, open_location(dataset if is_url(dataset) else locate(dataset)))
