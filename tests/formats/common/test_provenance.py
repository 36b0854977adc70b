"""Spaces that a file tells of are those of its fields, or none: it may tell of anything."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlx.formats.common.provenance import EMPTY, SCHEMA, NotedRun, as_noted
from rlx.formats.npz.reader import Npz, open_npz

SIX = {"type": "Discrete", "n": 6}
ACTION = {"dtype": "int64", "shape": [], "role": "step", "space": SIX}


@pytest.fixture
def run(tmp_path: Path) -> Npz:
    arrays: dict[str, Any] = {
        "observation": np.zeros((3, 2), "f4"),
        "action": np.arange(3),
        "next/reward": np.zeros(3, "f4"),
        "next/terminated": np.array([False, False, True]),
    }
    np.savez(tmp_path / "run.npz", **arrays)
    return open_npz(tmp_path / "run.npz")


def noted(run: Npz, spaces: Any) -> Npz:
    return Npz(run.root, run.file_name, run.fields, {**run.notes, SCHEMA: spaces}, run.episodes, run.finals)


def test_a_run_that_tells_of_none_is_itself(run: Npz) -> None:
    assert as_noted(run) is run


def test_spaces_are_those_of_the_fields(run: Npz) -> None:
    spaced = as_noted(noted(run, {"action": ACTION}))
    assert isinstance(spaced, NotedRun)
    assert {name: spaced.schema[name].space for name in spaced.schema if spaced.schema[name].space} == {"action": SIX}
    assert spaced.notes == run.notes
    assert (spaced.id, spaced.root, spaced.shards(), spaced.files(0)) == (run.id, run.root, (0,), run.files(0))


def test_fields_that_are_only_noted(run: Npz) -> None:
    empty = {"dtype": "uint8", "shape": [0], "role": "observation"}
    told = {
        "none": empty,
        "full": ACTION,
        "action": empty,
        "bad": {**empty, "dtype": "object"},
        "worse": 5,
        "a//b": empty,
    }
    for said, added in ((told, set[str]()), ({**told, "a//b": 0}, {"none"})):
        found = as_noted(Npz(run.root, run.file_name, run.fields, {**run.notes, EMPTY: said}, run.episodes, run.finals))
        assert set(found.schema) - set(run.schema) == added
        for block in found.blocks(0, Counter()):
            block.check(found.schema)
        assert found.notes == run.notes


@pytest.mark.parametrize(
    "told",
    [
        {"action": {**ACTION, "dtype": "int32"}},
        {"action": {**ACTION, "shape": [1]}},
        {"action": {**ACTION, "role": "next"}},
        {"action": {**ACTION, "space": "six"}},
        {"action": {"space": SIX}},
        {"action": {**ACTION, "space": {"type": "Discrete", "n": -1}}},
        {"action": {**ACTION, "space": {"type": 5}}},
        {"action": SIX},
        {"action": [1]},
        {"another": ACTION},
    ],
)
def test_spaces_of_other_fields_are_none(told: Any, run: Npz) -> None:
    spaced = as_noted(noted(run, told))
    assert [name for name in spaced.schema if spaced.schema[name].space] == []
    assert SCHEMA not in spaced.notes
