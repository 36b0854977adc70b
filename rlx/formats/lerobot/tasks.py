"""The tasks of a dataset of LeRobot: a text for every number in the column ``task_index``."""

from pathlib import Path

from rlx.errors import CorruptShardError
from rlx.formats.common.parquet_file import opened
from rlx.formats.lerobot.columns import TASK, Feature
from rlx.schema import TEXT
from rlx.store.arrow import to_rows

FILE_NAME = "meta/tasks.parquet"
TASK_INDEX = "task_index"
# Pandas' name of an unnamed index, as LeRobot's is in some releases.
_NAMES = (TASK, "__index_level_0__")
_SCANNED_ROWS = 2**14


def read_tasks(root: Path) -> Feature | None:
    """Return the column of the tasks; None where a dataset has no table of them.

    Raises:
        CorruptShardError: the table is damaged, or has no texts in it.
    """
    path = root / FILE_NAME
    if not path.is_file():
        return None
    texts: dict[int, str] = {}
    with opened(path) as file:
        name = next((name for name in _NAMES if name in file.names), TASK)
        for batch in file.batches((TASK_INDEX, name), _SCANNED_ROWS):
            try:
                numbers, found = to_rows(batch[TASK_INDEX], ()), to_rows(batch[name], ())
            except ValueError as exc:
                raise CorruptShardError(f"{path}: {TASK_INDEX} or {name}: {exc}") from exc
            if numbers.dtype.kind not in "iu" or found.dtype != object:
                raise CorruptShardError(
                    f"{path}: expected whole numbers and texts, found {numbers.dtype} and {found.dtype}"
                )
            texts.update(zip(numbers.tolist(), found.tolist(), strict=True))
    return Feature(TASK_INDEX, TEXT, (1,), is_image=False, tasks=texts)
