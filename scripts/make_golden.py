"""Writes tests/golden/v1: a small dataset of format version 1 that every later rlx must open.

It was run once. A later format version gets a directory of its own; this one is never written again.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from rlx.block import Block, single
from rlx.files import lock
from rlx.manifest import Manifest
from rlx.schema import Field, Role, Schema
from rlx.store.codec import DEFAULT
from rlx.store.dataset_writer import claimed, open_writer
from rlx.store.writer import train_dictionaries, write_shard

SCHEMA = Schema(
    {
        "observation/pixels": Field("uint8", (32, 32), Role.OBSERVATION, {"type": "Box", "low": 0, "high": 255}),
        "observation/position": Field("float32", (3,), Role.OBSERVATION),
        "action": Field("int64", (), Role.STEP, {"type": "Discrete", "n": 4}),
        "reward": Field("float32", (), Role.NEXT),
        "terminated": Field("bool", (), Role.NEXT),
        "truncated": Field("bool", (), Role.NEXT),
        "cost": Field("float16", (2,), Role.NEXT),
    }
)
LENGTHS = {"00000": [4, 7], "00001": [6]}


def trajectory(episode: int, length: int) -> Block:
    """Numbers that tell episode and step."""
    frames, steps = np.arange(length + 1), np.arange(length)
    pixels = np.arange(1024).reshape(32, 32) % 97 + 50 * np.eye(32, dtype=int)
    is_last = steps == length - 1
    return single(
        {
            "observation/pixels": ((pixels + (frames * (episode + 3))[:, None, None]) % 251).astype("uint8"),
            "observation/position": np.stack([frames, frames * 0.5, np.full(length + 1, episode)], 1).astype("float32"),
            "action": steps % 4,
            "reward": np.where(is_last, 10 * episode, 1).astype("float32"),
            "terminated": is_last & (episode != 1),
            "truncated": is_last & (episode == 1),
            "cost": np.stack([steps, -steps], 1).astype("float16"),
        },
        episode=episode,
        from_reset=episode != 2,
        final_recorded=True,
    )


def main(path: Path) -> None:
    """Writes the dataset."""
    lineage = [{"command": "scripts/make_golden.py", "rlx": "0.1.0", "parents": []}]
    described = Manifest("Golden/1", "zarr", DEFAULT.to_json(), SCHEMA, planned=list(LENGTHS), lineage=lineage)
    episode = 0
    with claimed(path):
        writer = open_writer(path, described)
        form = writer.format()
        for name, lengths in LENGTHS.items():
            blocks = [trajectory(episode + number, length) for number, length in enumerate(lengths)]
            episode += len(lengths)
            if not form.dictionaries:
                form = replace(form, dictionaries=train_dictionaries(blocks, form))
            record = write_shard(writer.partial(name), name, form, blocks)
            writer.commit(record, origin={"script": "make_golden.py"}, dropped={})
    (path / lock.FILE_NAME).unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
