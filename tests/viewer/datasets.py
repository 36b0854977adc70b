"""Datasets to be looked at: with colours, with numbers, and with all that is hard to show."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rlx.block import Block
from rlx.manifest import Manifest
from rlx.schema import Field, Role, Schema
from rlx.store.dataset import Dataset
from tests.factories import write_dataset

EVIL = "</script><script>alert('x')</script><img src=x onerror=alert(1)>&amp;" + "w" * 200
COLOURED = Schema.of(observation=("uint8", (24, 32, 3)), action=("float32", (2,)))
EVERYTHING = Schema(
    {
        "observation/front": Field("uint8", (24, 32, 3), Role.OBSERVATION),
        "observation/state": Field("float32", (7,), Role.OBSERVATION),
        "observation/task": Field("string", (), Role.OBSERVATION),
        "observation/wrist": Field("uint8", (18, 16), Role.OBSERVATION),
        "action": Field("float32", (7,), Role.STEP),
        "value": Field("float32", (), Role.STEP),
        "grip": Field("bool", (), Role.STEP),
        "reward": Field("float64", (), Role.NEXT),
        "terminated": Field("bool", (), Role.NEXT),
        "truncated": Field("bool", (), Role.NEXT),
    }
)
NUMBERS = Schema.of(observation=("float32", (4,)), action=("int64", ()))


def block(
    schema: Schema, rewards: list[list[float]], *, recorded: bool = True, seed: int = 0, colours: int = 200
) -> Block:
    """Trajectories with these rewards; everything else is drawn by the seed."""
    draw, lengths = np.random.default_rng(seed), np.array([len(one) for one in rewards], np.int64)
    steps, count = int(lengths.sum()), len(rewards)
    last = np.zeros(steps, bool)
    last[np.cumsum(lengths) - 1] = True
    field, action = schema["observation"], schema["action"]
    table = draw.integers(0, 256, (colours, 3)).astype(np.uint8)
    if field.dtype == "uint8":
        observation = table[draw.integers(0, colours, (steps + count, *field.shape[:2]))]
    else:
        observation = draw.normal(size=(steps + count, *field.shape)).astype(field.dtype)
    data = {
        "observation": observation,
        "action": (draw.normal(size=(steps, *action.shape)) * 3).astype(action.dtype),
        "reward": np.concatenate(rewards).astype(np.float32),
        "terminated": last,
        "truncated": np.zeros(steps, bool),
    }
    always = np.ones(count, bool)
    return Block(data, lengths, np.arange(count), always, always & recorded)


def coloured(
    path: Path, rewards: list[list[float]] | None = None, *, recorded: bool = True, colours: int = 200
) -> Dataset:
    """Small pictures, an action of two numbers."""
    rewards = rewards or [[0, 1.0, 0], [1.0] * 9, [0.0, -2.0]]
    return write_dataset(
        path, [[block(COLOURED, rewards, recorded=recorded, colours=colours)]], schema=COLOURED, codec="zstd"
    )


def numbers(path: Path, rewards: list[list[float]] | None = None) -> Dataset:
    """Observations of four numbers."""
    rewards = rewards or [[1.0] * n for n in (5, 40, 12)]
    return write_dataset(path, [[block(NUMBERS, rewards)]], schema=NUMBERS)


def everything(path: Path, lengths: Sequence[int] = (5, 9, 3)) -> Dataset:
    """Two cameras, a state, a text, an action of seven numbers, what a policy says, and a flag."""
    schema, draw = EVERYTHING, np.random.default_rng(0)
    length, count = np.array(lengths), len(lengths)
    last, always = np.zeros(length.sum(), bool), np.ones(count, bool)
    last[np.cumsum(length) - 1] = True
    data: dict[str, Any] = {"terminated": last, "truncated": last & False}
    data["value"] = np.arange(length.sum(), dtype=np.float32)
    data["observation/task"] = np.repeat([f"go to <b>{one}</b>\n\x1b[31m" for one in range(count)], length + 1)
    for name, field in schema.fields.items():
        rows = length.sum() + count * (field.role == Role.OBSERVATION)
        if name not in data:
            data[name] = draw.integers(0, 256, (rows, *field.shape)).astype(field.dtype)
    data["observation/task"] = data["observation/task"].astype(object)
    return write_dataset(path, [[Block(data, length, np.arange(count), always, always)]], schema=schema, codec="zstd")


def with_evil_names(path: Path) -> Path:
    """A dataset whose manifest says everywhere what would break out of a page."""
    listed = Manifest.load(path)
    lineage: list[dict[str, Any]] = [
        {"command": EVIL, "rlx": EVIL, "parents": [{"id": EVIL}]},
        {"parents": [], "command": EVIL},
        {},
    ]
    fields = dict(listed.schema.fields)
    fields["action"] = replace(fields["action"], space={"type": EVIL})
    shards = [replace(shard, statistics={**shard.statistics, EVIL: {"count": 0}}) for shard in listed.shards]
    schema = replace(listed.schema, fields=fields)
    replace(listed, id=EVIL, notes={EVIL: {EVIL: [EVIL]}}, lineage=lineage, schema=schema, shards=shards).save(path)
    return path
