"""There and back: every fact of a dataset comes back from an export, or the export says that it does not.

An export that cannot hold a dataset refuses it by name, and writes nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import ExportError
from rlx.progress import Silent
from rlx.schema import FLAGS, Schema
from rlx.testing.factories import write_dataset
from rlx.testing.source import Trajectory, read
from rlx.verbs.export import export
from rlx.verbs.inputs import open_source

# Name of the file or directory, for formats that mind it.
DESTINATIONS = {"minari": "out-v0", "dopamine": "out/1", "rlds": "out/1.0.0"}
# What is true of a whole trajectory: how to find it, and a word of every loss that names it.
_FACTS: Mapping[str, tuple[Callable[[Trajectory], Any], Sequence[str]]] = {
    "terminated": (lambda one: bool(one["terminated"][-1]), ("terminat",)),
    # A recording that stops before the episode ends is read as truncated and marked as cut.
    "truncated": (lambda one: bool(one["truncated"][-1]) and not _is_cut(one), ("truncat", "last step")),
    "from_reset": (lambda one: one.from_reset, ("start in the middle",)),
    "final_recorded": (lambda one: one.final_recorded, ("final observation",)),
    "cut": (lambda one: _is_cut(one), ("truncat", "last step")),
    "episode": (lambda one: one.episode, ("episode numbers",)),
}


def check_there_and_back(schema: Schema, block: Block, format: str, directory: Path) -> None:
    """Fail unless everything of a block comes back from a format, or is named before anything is written."""
    dataset = write_dataset(directory / "data", [[block]], schema=schema)
    path = directory / "there" / DESTINATIONS.get(format, "out")
    try:
        report = export(dataset.path, path, format, progress=Silent())
    except ExportError as exc:
        assert not path.parent.exists()
        assert _named(str(exc), [*schema, "steps"]), str(exc)  # noqa: PT017
        return
    said = "; ".join([*report.losses, *map(" as ".join, report.names.items())])
    source, _ = open_source(path, None)
    before = read(open_source(dataset.path, None)[0], 0)
    after = [one for shard in source.shards() for one in read(source, shard)]
    if "outcome of the last step" in said and len(after) < len(before):
        before = [one for one in before if one.steps > 1 or one["terminated"][-1]]
    assert len(after) == len(before), format
    for one, other in zip(before, after, strict=True):
        is_shorter = one.steps == other.steps + 1 and "last step" in said
        assert one.steps == other.steps or is_shorter, f"{format}: {other.steps} of {one.steps} steps: {said}"
    for fact, (of, words) in _FACTS.items():
        if [*map(of, before)] != [*map(of, after)]:
            assert any(word in said for word in words), f"{format} loses {fact}: {said}"
    for name, field in schema.fields.items():
        found = source.schema.fields.get(name)
        if found is None or (found.dtype, found.shape, found.role) != (field.dtype, field.shape, field.role):
            assert _named(said, [name]), f"{format} loses {name}, {field} -> {found}: {said}"
        elif name not in FLAGS:
            for one, other in zip(before, after, strict=True):
                _check_rows(one, other, name, said, format)
    added = [name for name in source.schema if name not in schema.fields and name not in said]
    assert added == [] or ("become a tuple" in said and {name.split("/")[0] for name in added} == {"observation"})


def _is_cut(one: Trajectory) -> bool:
    return one.cut or not (one["terminated"][-1] or one["truncated"][-1])


def _check_rows(one: Trajectory, other: Trajectory, name: str, said: str, format: str) -> None:
    steps = other.steps
    _check_equal(one[name][:steps], other[name][:steps], name, format)
    is_named = _named(said, [f"last {name}"]) or "final observation" in said
    if len(one[name]) > one.steps and one.final_recorded and not is_named:
        _check_equal(one[name][steps:], other[name][steps:], name, format)


def _check_equal(one: NDArray[Any], other: NDArray[Any], name: str, format: str) -> None:
    np.testing.assert_array_equal(one, other, err_msg=f"{format}: {name}")


def _named(said: str, names: Sequence[str]) -> bool:
    words = {word.strip(".,:;'") for word in said.split()}
    return any(name in words or name in said for name in names)
