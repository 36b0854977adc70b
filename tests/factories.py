"""Small experience that shows at a glance what is wrong with it: that of ``rlx.testing``, and what only rlx tests."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import int64

import rlx
from rlx.block import single
from rlx.collector.environment.gym_env import GymEnv
from rlx.manifest import Manifest
from rlx.schema import Field, Role, Schema
from rlx.store.dataset import Dataset
from rlx.store.layout import shard_directory
from rlx.store.writer import checksums
from rlx.testing.factories import SMALL as SMALL
from rlx.testing.factories import cut as cut
from rlx.testing.factories import join as join
from rlx.testing.factories import make_block as make_block
from rlx.testing.factories import write_dataset as write_dataset

# Rows of 1,200 bytes: what a codec compresses.
LARGE = Schema.of(observation=("uint16", (20, 30)), action=("int64", ()))
# Texts that repeat themselves, texts that never do, and texts that were observed.
TEXT_FIELDS = {
    "task": Field("string", (), Role.STEP),
    "observation/words": Field("string", (2,), Role.OBSERVATION),
    "info/said": Field("string", (), Role.NEXT),
}
TEXT = Schema(
    {"observation/state" if name == "observation" else name: field for name, field in SMALL.fields.items()}
    | TEXT_FIELDS
)


def collected(environment: str, path: Path, **options: Any) -> Path:
    """A dataset of an environment, collected in this process: a worker's process takes a second to start."""
    return rlx.collect(GymEnv(environment), output=path, **options).dataset


def relist(path: Path) -> None:
    """Lists the shards' files as they are now: a manifest that agrees with whatever was done to them."""
    listed = Manifest.load(path)
    shards = [replace(shard, files=checksums(shard_directory(path, shard.name))) for shard in listed.shards]
    replace(listed, shards=shards).save(path)


def seen(dataset: Dataset, steps: Sequence[int]) -> list[int]:
    """The first number of each step's observation: ``1000 * episode + t``."""
    numbers: list[int] = dataset[list(steps)]["observation"].flatten(1)[:, 0].to(int64).tolist()
    return numbers


def numbered_dataset(path: Path, lengths: tuple[int, ...] = (7, 5, 11, 14)) -> Dataset:
    """A dataset of a shard for each trajectory; actions number its steps."""
    shards, first = [], 0
    for episode, length in enumerate(lengths):
        steps, ends = np.arange(first, first + length), np.zeros(length, bool)
        columns = {
            "observation": np.repeat(np.arange(length + 1, dtype="float32")[:, None], 3, 1),
            "action": steps,
            "reward": steps.astype("float32"),
            "terminated": ends,
            "truncated": ends,
        }
        shards.append([single(columns, episode=episode)])
        first += length
    return write_dataset(path, shards, schema=Schema.of(("float32", (3,)), ("int64", ())), codec="zstd")
