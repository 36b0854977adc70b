"""Small experience that shows at a glance what is wrong with it: observation = 1000 * episode + t."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.manifest import Manifest
from rlx.schema import Field, Role, Schema
from rlx.store.codec import Codec
from rlx.store.dataset import Dataset
from rlx.store.dataset_writer import claimed, open_writer
from rlx.store.layout import shard_name
from rlx.store.writer import train_dictionaries, write_shard

SMALL = Schema.of(observation=("int32", (2,)), action=("int64", ()))


def make_block(
    lengths: Sequence[int] = (3, 5), *, first_episode: int = 0, schema: Schema = SMALL, terminated: bool = True
) -> Block:
    """Whole trajectories of these lengths; what a step holds is ``1000 * episode + t``, in every observation number.

    action is t, reward 1, and the last step of each trajectory is terminated, or else truncated. Any other field holds
    what the observation does; a text says it, but for ``task``, which is one of the trajectory.
    """
    episodes = np.arange(first_episode, first_episode + len(lengths), dtype=np.int64)
    pairs = list(zip(episodes, lengths, strict=True))
    step = np.concatenate([np.zeros(0, np.int64), *(np.arange(length) for _, length in pairs)])
    frame = np.concatenate([np.zeros(0), *(1000 * episode + np.arange(length + 1) for episode, length in pairs)])
    last = np.zeros(len(step), bool)
    last[np.cumsum(lengths, dtype=np.int64) - 1] = True
    data: dict[str, NDArray[np.generic]] = {
        "action": step.astype(schema["action"].dtype),
        "reward": np.ones(len(step), schema["reward"].dtype),
        "terminated": last & terminated,
        "truncated": last & (not terminated),
    }
    seen = np.repeat(1000 * episodes, np.array(lengths, np.int64)) + step
    for name, field in schema.fields.items():
        if name not in data:
            numbers = frame if field.role == Role.OBSERVATION else seen
            data[name] = _filled(numbers // 1000 if name == "task" else numbers, field, name)
    always = np.ones(len(lengths), bool)
    return Block(data, np.array(lengths, np.int64), episodes, always, always)


def _filled(numbers: NDArray[Any], field: Field, name: str) -> NDArray[np.generic]:
    rows = numbers.astype(np.int64)
    if field.is_text:
        rows = np.array([f"{name} {number}" for number in rows.tolist()], object)
    filled = np.broadcast_to(rows.reshape(-1, *(1 for _ in field.shape)), (len(rows), *field.shape))
    return filled.astype(field.numpy_dtype)


def join(blocks: Sequence[Block]) -> Block:
    """One block of several that end with whole trajectories."""
    data = {name: np.concatenate([block.data[name] for block in blocks]) for name in blocks[0].data}
    return Block(
        data,
        np.concatenate([block.lengths for block in blocks]),
        np.concatenate([block.episodes for block in blocks]),
        np.concatenate([block.from_reset for block in blocks]),
        np.concatenate([block.final_recorded for block in blocks]),
        cut=np.concatenate([block.cut for block in blocks]),
    )


def cut(block: Block, steps: Sequence[int]) -> list[Block]:
    """The same steps in blocks that end after that many steps each; the rest is one more block."""
    ends = np.cumsum(block.lengths)
    edges = [0, *np.minimum(np.cumsum(steps, dtype=np.int64), block.steps).tolist(), block.steps]
    return [_piece(block, ends, start, stop) for start, stop in pairwise(edges) if stop > start]


def _piece(block: Block, ends: NDArray[np.int64], start: int, stop: int) -> Block:
    first, last = int((ends <= start).sum()), int((ends < stop).sum())
    lengths = np.diff([start, *ends[first:last], stop])
    is_open = bool(ends[last] > stop)
    observations = slice(start + first, stop + last + (not is_open))
    count = block.steps
    data = {
        name: array[slice(start, stop) if len(array) == count else observations] for name, array in block.data.items()
    }
    here = slice(first, last + 1)
    columns = (block.episodes[here], block.from_reset[here], block.final_recorded[here])
    return Block(data, lengths, *columns, is_open, block.cut[here])


def write_dataset(
    path: Path,
    shards: Sequence[Sequence[Block]],
    *,
    schema: Schema = SMALL,
    store: str = "zarr",
    codec: str = "zstd-dict",
    planned: int | None = None,
) -> Dataset:
    """A dataset of these shards, as the pipeline writes them."""
    names = [shard_name(number) for number in range(planned or len(shards))]
    lineage = [{"command": "rlx download Test/1", "rlx": "0", "parents": []}]
    described = Manifest("Test/1", store, Codec.parse(codec).to_json(), schema, planned=names, lineage=lineage)
    with claimed(path):
        writer = open_writer(path, described)
        form = writer.format()
        first = next(filter(None, shards), [])
        if not form.dictionaries:
            form = replace(form, dictionaries=train_dictionaries(first, form))
        for name, blocks in zip(names, shards, strict=False):
            if name not in writer.manifest.listed:
                writer.commit(write_shard(writer.partial(name), name, form, blocks), origin={}, dropped={})
        if not writer.manifest.shards:
            writer.save()
    return Dataset(path)
