"""Datasets as the offline data of RLlib: Parquet with the columns that its algorithms read."""

import os
from pathlib import Path
from types import ModuleType
from typing import Any

from numpy.typing import NDArray
from tensordict import NestedKey

from rlx.errors import DatasetExistsError
from rlx.files.atomic import whole
from rlx.integrations import with_arrays
from rlx.store.dataset import Dataset
from rlx.store.foreign_types import arrow_file, from_rows, pyarrow, write_tables

_PIECE_STEPS = 1000
# Names of ray.rllib.core.columns.Columns.
_COLUMNS: dict[str, NestedKey] = {
    "obs": "observation",
    "actions": "action",
    "new_obs": ("next", "observation"),
    "rewards": ("next", "reward"),
    "terminateds": ("next", "terminated"),
    "truncateds": ("next", "truncated"),
    "eps_id": ("collector", "traj_ids"),
}


def write_parquet(dataset: Dataset | str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Write the steps of a dataset as a Parquet file for ``AlgorithmConfig.offline_data(input_=[path])``.

    A row is a step: observation, action, reward, next observation, its flags, and the number of its trajectory. RLlib
    reads each row as a transition. Other fields are left out.

    Args:
        dataset: dataset with one array of observations and one of actions, or its path, id or URL.
        path: the file; it appears once it is complete.

    Raises:
        SchemaMismatchError: observations or actions are several arrays.
        DatasetExistsError: path exists.
        MissingExtraError: pyarrow is not installed.

    Example:
        >>> from rlx.integrations.rllib import write_parquet
        >>> write_parquet("cartpole", "cartpole.parquet")
        >>> import pyarrow.parquet
        >>> pyarrow.parquet.read_table("cartpole.parquet").column_names
        ['obs', 'actions', 'new_obs', 'rewards', 'terminateds', 'truncateds', 'eps_id']
    """
    source = with_arrays(dataset, "observation", "action")
    target = Path(path)

    def check() -> None:
        if target.exists():
            raise DatasetExistsError(f"{target} exists", hint="remove it, or choose another path")

    check()
    arrow, _ = pyarrow()
    tables = (_table(arrow, source, start) for start in range(0, max(1, len(source)), _PIECE_STEPS))
    with whole(target, check) as partial, arrow_file(partial, "wb") as file:
        write_tables(file, tables)


def _table(arrow: ModuleType, source: Dataset, start: int) -> Any:
    steps = source[start : start + _PIECE_STEPS]
    columns: dict[str, NDArray[Any]] = {name: steps.get(key).numpy() for name, key in _COLUMNS.items()}
    for name in ("rewards", "terminateds", "truncateds", "eps_id"):
        columns[name] = columns[name].reshape(len(steps))
    columns["eps_id"] = columns["eps_id"].astype(str).astype(object)
    return arrow.table({name: from_rows(rows) for name, rows in columns.items()})
