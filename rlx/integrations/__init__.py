"""rlx in the training loops of other projects: one module each.

``record`` writes the steps of any gymnasium loop into a dataset. ``stable_baselines3`` does so for that project's
loops, and keeps the steps of its replay buffers compressed; ``d3rlpy`` and ``tianshou`` make their buffers of a
dataset; ``torchrl`` joins storages and samplers of both projects; ``lerobot`` gives steps with others before and after
them; ``rllib`` writes the offline data that RLlib reads.
"""

import os

from rlx.errors import SchemaMismatchError
from rlx.store.dataset import Dataset


def with_arrays(dataset: Dataset | str | os.PathLike[str], *names: str) -> Dataset:
    """Return a dataset, after a check that it has these fields, each one array.

    Raises:
        SchemaMismatchError: a field is missing, or is several arrays.
    """
    source = dataset if isinstance(dataset, Dataset) else Dataset(dataset)
    if missing := [name for name in names if name not in source.schema]:
        raise SchemaMismatchError(f"fields {', '.join(source.schema)}: expected {missing[0]}, one array")
    return source
