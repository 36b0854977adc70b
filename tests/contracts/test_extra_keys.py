"""No reader drops a key in silence: one that its format does not know is a field, or it is named before reading."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from rlx.formats.common.fields import NOT_TAKEN
from rlx.testing.source import read
from rlx.verbs.inputs import open_source
from tests.bad_files import NAMES
from tests.extra_keys import ADD, IMPOSSIBLE, KINDS, Values

FIELDS = ("numbers", "vectors", "no numbers")
CASES = [(format, kind) for format in ADD for kind in KINDS if kind not in IMPOSSIBLE.get(format, ())]


def with_key(exported: Path, format: str, key: str, values: Values, place: Path) -> Path:
    """A copy of a format's file with one key more."""
    shutil.copytree(exported / format, place)
    path = place / NAMES.get(format, "a.h5")
    ADD[format](path, key, values)
    return path


@pytest.mark.parametrize(("format", "kind"), CASES)
def test_an_unknown_key_is_a_field_or_is_named(
    format: str, kind: str, exported: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = with_key(exported, format, "extra", KINDS[kind], tmp_path / "in")
    before, _ = open_source(exported / format / NAMES.get(format, "a.h5"), format)
    caplog.clear()
    source, _ = open_source(path, format)
    reasons = {key: reason for key, reason in source.notes.get(NOT_TAKEN, {}).items() if "extra" in key}
    if "extra" in source.schema:
        assert not reasons
        assert set(source.schema) == {*before.schema, "extra"}
        assert kind in (*FIELDS, "texts")
        found = np.concatenate([one["extra"] for shard in source.shards() for one in read(source, shard)])
        if format != "dopamine":  # whose rows lie in a ring
            np.testing.assert_array_equal(found, KINDS[kind])
    else:
        assert kind not in FIELDS
        assert len(reasons) == 1
        (key,) = reasons
        assert any(f"{key} ({reasons[key]})" in record.getMessage() for record in caplog.records)
        assert set(source.schema) == set(before.schema)


@pytest.mark.parametrize("format", [format for format in ADD if format not in ("dopamine", "d3rlpy")])
def test_a_name_that_no_field_may_have_is_named(format: str, exported: Path, tmp_path: Path) -> None:
    path = with_key(exported, format, "two words", KINDS["numbers"], tmp_path / "in")
    source, _ = open_source(path, format)
    (reason,) = (reason for key, reason in source.notes[NOT_TAKEN].items() if "two words" in key)
    assert reason
    assert [one.steps for shard in source.shards() for one in read(source, shard)]


@pytest.mark.parametrize("format", [format for format in ADD if format not in ("dopamine", "d3rlpy", "lerobot")])
def test_a_key_in_a_group_is_a_field(format: str, exported: Path, tmp_path: Path) -> None:
    path = with_key(exported, format, "params/loc", KINDS["vectors"], tmp_path / "in")
    source, _ = open_source(path, format)
    assert source.schema["params/loc"].shape == (2,)
