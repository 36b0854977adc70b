"""All formats by 31 kinds of data, there and back: every loss is named before anything is written."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlx import convert
from rlx.block import Block
from rlx.errors import ExportError
from rlx.formats.registry import writable
from rlx.progress import Silent
from rlx.schema import FLAGS, TEXT, Field, Role, Schema
from rlx.store.dataset import Dataset
from rlx.testing.dataset_exporter import random_block
from rlx.testing.factories import write_dataset
from rlx.testing.round_trip import DESTINATIONS, check_there_and_back
from rlx.testing.source import read
from rlx.verbs.export import export
from rlx.verbs.inputs import open_source

_VECTOR = Field("float32", (3,), Role.OBSERVATION)
_BOX, _DISCRETE = Field("float32", (2,), Role.STEP), Field("int64", (), Role.STEP, {"type": "Discrete", "n": 6})
_REWARD = Field("float32", (), Role.NEXT)
_EMPTY: dict[str, Any] = {
    "none": Field("float32", (0,), Role.STEP),
    "later": Field("int64", (2, 0, 3), Role.NEXT),
    "seen": Field("uint8", (0,), Role.OBSERVATION),
    "info/none": Field("float64", (0, 4), Role.NEXT),
}
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
    "fields without values": of(**_EMPTY),
    "actions of another dtype": of(action=Field("uint8", (), Role.STEP)),
}


def test_how_many_kinds_there_are() -> None:
    assert len(KINDS) == 31


@pytest.mark.parametrize("format", writable("datasets"))
@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back(kind: str, format: str, tmp_path: Path) -> None:
    schema, block = KINDS[kind](_DISCRETE if format == "dopamine" else _BOX)
    check_there_and_back(schema, block, format, tmp_path)


@pytest.mark.parametrize("format", writable("datasets"))
def test_fields_without_values_come_back_from_every_format(format: str, tmp_path: Path) -> None:
    schema, block = of(**_EMPTY)(_DISCRETE if format == "dopamine" else _BOX)
    path = tmp_path / "there" / DESTINATIONS.get(format, "out")
    dataset = write_dataset(tmp_path / "data", [[block]], schema=schema)
    said = " ".join(export(dataset.path, path, format, progress=Silent()).losses)
    source, _ = open_source(path, None)
    for name, field in _EMPTY.items():
        found = source.schema[name]
        assert (found.dtype, found.shape) == (field.dtype, field.shape)
        assert found.role == field.role or f"the last {name}" in said
    assert source.notes.get("fields_without_values") is None
    assert sum(one.steps for shard in source.shards() for one in read(source, shard)) >= 7
    again = convert(path, tmp_path / "again", progress=Silent())
    assert set(_EMPTY) <= set(Dataset(again.dataset).schema)


@pytest.mark.parametrize("format", writable("datasets"))
@pytest.mark.parametrize("name", ["observation", "action"])
def test_the_only_observation_or_action_without_values_comes_back_or_is_refused(
    name: str, format: str, tmp_path: Path
) -> None:
    empty = Field("float32", (0,), Role.OBSERVATION if name == "observation" else Role.STEP)
    action = empty if name == "action" else _DISCRETE if format == "dopamine" else _BOX
    observation: dict[str, Any] = {name: empty} if name == "observation" else {}
    schema, block = of(**observation)(action)
    path = tmp_path / "there" / DESTINATIONS.get(format, "out")
    dataset = write_dataset(tmp_path / "data", [[block]], schema=schema)
    try:
        export(dataset.path, path, format, progress=Silent())
    except ExportError as exc:
        assert name in str(exc)  # noqa: PT017
        assert "[0]" in str(exc)  # noqa: PT017
        assert not path.parent.exists()
    else:
        assert open_source(path, None)[0].schema[name].shape == (0,)
