"""All formats by 31 kinds of data, there and back: every loss is named before anything is written."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlx.block import Block
from rlx.formats.registry import writable
from rlx.schema import FLAGS, TEXT, Field, Role, Schema
from rlx.testing.dataset_exporter import random_block
from rlx.testing.round_trip import check_there_and_back

_VECTOR = Field("float32", (3,), Role.OBSERVATION)
_BOX, _DISCRETE = Field("float32", (2,), Role.STEP), Field("int64", (), Role.STEP, {"type": "Discrete", "n": 6})
_REWARD = Field("float32", (), Role.NEXT)
Kind = Callable[[Field], tuple[Schema, Block]]


def of(change: Callable[[Block], Block] = lambda block: block, ends: str = "tx", **fields: Any) -> Kind:
    """Trajectories of these fields and the usual ones, changed."""

    def made(action: Field) -> tuple[Schema, Block]:
        chosen = {"observation": _VECTOR, "action": action, "reward": _REWARD, **fields}
        if any(name.startswith("observation/") for name in fields):
            del chosen["observation"]
        schema = Schema({**chosen, **FLAGS})
        return schema, change(random_block(schema, (4, 1, 3), ends=ends))

    return made


def below(name: str, **fields: Field) -> dict[str, Any]:
    return {f"{name}/{part}": field for part, field in fields.items()}


def flagged(terminated: bool, truncated: bool) -> Callable[[Block], Block]:
    def change(block: Block) -> Block:
        last = np.logical_or(block.data["terminated"], block.data["truncated"])
        return replace(block, data={**block.data, "terminated": last & terminated, "truncated": last & truncated})

    return change


def valued(name: str, *values: float) -> Callable[[Block], Block]:
    def change(block: Block) -> Block:
        rows: Any = block.data[name].copy()
        rows.reshape(-1)[: len(values)] = values
        return replace(block, data={**block.data, name: rows})

    return change


def cut(block: Block) -> Block:
    return replace(block, cut=np.array([False, True, False]), from_reset=np.array([True, False, True]))


def _seen(dtype: str, *shape: int) -> Field:
    return Field(dtype, shape, Role.OBSERVATION)


KINDS: Mapping[str, Kind] = {
    "plain": of(),
    "terminated and truncated": of(flagged(True, True)),
    "truncated only": of(flagged(False, True)),
    "terminated only": of(flagged(True, False)),
    "ends without a flag": of(ends="u"),
    "finals not recorded": of(ends="T"),
    "some finals recorded": of(ends="tTx"),
    "cut and started late": of(cut, ends="tut"),
    "odd episode numbers": of(lambda block: replace(block, episodes=np.array([7, 3, 11]))),
    "pictures": of(observation=_seen("uint8", 24, 24)),
    "colour pictures": of(observation=_seen("uint8", 24, 20, 3)),
    "channels first": of(observation=_seen("uint8", 3, 24, 20)),
    "pictures of five channels": of(observation=_seen("uint8", 24, 24, 5)),
    "deep pictures": of(observation=_seen("uint16", 24, 24)),
    "pictures of floats": of(observation=_seen("float32", 16, 16, 3)),
    "several observations": of(**below("observation", camera=_seen("uint8", 24, 24, 3), arm=_seen("float64", 2))),
    "nested observations": of(**below("observation", **{"a/b": _seen("float32", 2), "a_b": _seen("float32", 2)})),
    "observations of float64": of(observation=_seen("float64", 3)),
    "observations of float16": of(observation=_seen("float16", 3)),
    "observations of bool": of(observation=_seen("bool", 3)),
    "large whole numbers": of(
        valued("big", 2**63 - 1, -(2**63), 2**53 + 1),
        big=Field("int64", (), Role.STEP),
        wide=Field("uint64", (), Role.NEXT),
    ),
    "scalar observations": of(observation=_seen("int32")),
    "arrays of many dimensions": of(deep=Field("float32", (2, 1, 3, 2), Role.NEXT)),
    "rewards of float64": of(valued("reward", 0.1, 1e300), reward=Field("float64", (), Role.NEXT)),
    "rewards of float16": of(reward=Field("float16", (), Role.NEXT)),
    "rewards of whole numbers": of(valued("reward", 2**24 + 1), reward=Field("int64", (), Role.NEXT)),
    "infos that are not finite": of(
        valued("info/x", float("nan"), float("inf"), -0.0), **below("info", x=Field("float32", (), Role.NEXT))
    ),
    "infos of every role": of(
        **below(
            "info", a=Field("int32", (), Role.OBSERVATION), b=Field("bool", (), Role.STEP), c=Field(TEXT, (), Role.NEXT)
        )
    ),
    "texts": of(task=Field(TEXT, (), Role.STEP), said=Field(TEXT, (2,), Role.NEXT)),
    "fields without values": of(none=Field("float32", (0,), Role.STEP)),
    "actions of another dtype": of(action=Field("uint8", (), Role.STEP)),
}


def test_how_many_kinds_there_are() -> None:
    assert len(KINDS) == 31


@pytest.mark.parametrize("format", writable("datasets"))
@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back(kind: str, format: str, tmp_path: Path) -> None:
    schema, block = KINDS[kind](_DISCRETE if format == "dopamine" else _BOX)
    check_there_and_back(schema, block, format, tmp_path)
