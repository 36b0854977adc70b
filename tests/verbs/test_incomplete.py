"""A dataset that lacks shards: every command that makes another of it says so before, as the result looks complete."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import rlx
from rlx.manifest import Manifest
from tests.factories import make_block, write_dataset

VERBS: dict[str, Callable[[Path, Path], object]] = {
    "convert": lambda source, to: rlx.convert(source, to),
    "export": lambda source, to: rlx.convert(source, to, to="npz"),
    "preprocess": lambda source, to: rlx.preprocess(source, to, transform=["clip_reward"]),
    "split": lambda source, to: rlx.split(source, [0.5, 0.5], output=to),
    "merge": lambda source, to: rlx.merge([source], to),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("missing", [0, 1])
def test_missing_shards_are_counted(verb: str, missing: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = write_dataset(tmp_path / "set", [[make_block([3, 4], first_episode=2 * shard)] for shard in range(2)]).path
    names = [*Manifest.load(source).listed, "00002"]
    replace(Manifest.load(source), planned=sorted(names)[: 2 + missing]).save(source)
    with caplog.at_level(logging.WARNING):
        VERBS[verb](source, tmp_path / "to")
    expected = [f"{source} is not complete: 1 of 3 shards missing, and left out"] if missing else []
    assert [message for message in caplog.messages if "not complete" in message] == expected
