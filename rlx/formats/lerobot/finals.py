"""The table of final observations that rlx writes into a dataset of LeRobot."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rlx.errors import CorruptShardError
from rlx.formats.common.parquet_file import opened
from rlx.formats.common.rows.episodes import RowEpisode
from rlx.store.arrow import to_rows

FILE_NAME = "meta/final_observations.parquet"
_COLUMNS = ("episode_index", "length")
# Which later releases of rlx add: whether the recording of the episode was cut.
_CUT = "cut"
_SCANNED_ROWS = 2**14


def with_finals(root: Path, episodes: Sequence[RowEpisode]) -> list[RowEpisode]:
    """Return the episodes of a dataset, each with whether its final observation is in the table, and whether it was
    cut.

    Raises:
        CorruptShardError: the table is damaged, or is not of these episodes: somebody has changed them since.
    """
    path, known = root / FILE_NAME, list(episodes)
    if not path.is_file():
        return known
    last = -1
    with opened(path) as file:
        names = (*_COLUMNS, *([_CUT] if _CUT in file.names else []))
        for batch in file.batches(names, _SCANNED_ROWS):
            try:
                numbers, lengths, *cuts = (to_rows(batch[name], ()).tolist() for name in names)
            except ValueError as exc:
                raise CorruptShardError(f"{path}: {' or '.join(_COLUMNS)}: {exc}") from exc
            for number, length, *cut in zip(numbers, lengths, *cuts, strict=True):
                if not (last < number < len(known) and known[int(number)].rows == length):
                    raise CorruptShardError(
                        f"{path}: expected the numbers and lengths of episodes, found {number} of {length} steps",
                        hint=f"rm {path} if the dataset was changed since rlx wrote it; last steps are left out then",
                    )
                known[int(number)] = replace(known[int(number)], final_recorded=True, cut=cut == [True])
                last = number
    return known
