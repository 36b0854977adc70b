"""Every check catches a mutant of a good dataset, and none fires on the good ones."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.block import Block
from rlx.checks.check import Severity
from rlx.checks.examination import Examination, digests, examine
from rlx.schema import Field, Role, Schema
from rlx.store.dataset import Dataset
from rlx.transform.registry import TRANSFORMS
from rlx.transform.transitions import split
from tests.factories import SMALL, collected, join, make_block, write_dataset

GAMES = ("Pong", "MsPacman")
_VECTORS = Schema.of(observation=("float32", (4,)), action=("int64", ()))
VECTORS = ("CartPole-v1", "Pendulum-v1", "MountainCar-v0", "FrozenLake-v1", "Blackjack-v1")
Mutation = Callable[[Block], Block]
pytestmark = pytest.mark.xdist_group("mutants")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    sizes = dict.fromkeys((f"ALE/{game}-v5" for game in GAMES), 3000) | dict.fromkeys(VECTORS, 2000)
    directory = tmp_path_factory.mktemp("good")
    return {name: Dataset(collected(name, directory / name, steps=steps, seed=3)) for name, steps in sizes.items()}


def examined(dataset: Dataset, blocks: Sequence[Block], schema: Schema | None = None) -> Examination:
    manifest = dataset.manifest
    return examine(blocks, schema or manifest.schema, name=manifest.id, notes=manifest.notes)


def severe(found: Examination) -> set[str]:
    return {one.check for one in found.findings if one.severity != Severity.NOTE}


def test_good_datasets_have_no_findings(good: dict[str, Dataset]) -> None:
    for name, dataset in good.items():
        found = examined(dataset, list(dataset.blocks()))
        assert not severe(found), (name, found.findings)
        assert (found.steps, found.trajectories) == (len(dataset), len(dataset.trajectories))


def test_findings_do_not_depend_on_blocks(good: dict[str, Dataset]) -> None:
    dataset = good["CartPole-v1"]
    whole = join(list(dataset.blocks()))
    few, _ = split(whole, _VECTORS, int(whole.lengths[:12].sum()))  # every piece is looked at, of one step or more
    changed = [_doubled(_nan(few))]
    expected = [one.to_json() for one in examined(dataset, changed).findings]
    assert expected
    for size in (1, 7, 64):
        pieces = [piece for block in changed for piece in _cut(block, size)]
        assert [one.to_json() for one in examined(dataset, pieces).findings] == expected


def test_digests_do_not_depend_on_blocks(good: dict[str, Dataset]) -> None:
    dataset = good["ALE/MsPacman-v5"]
    block = join(list(dataset.blocks()))
    found = [digests(_cut(block, size), dataset.schema) for size in (10_000, 50)]
    assert found[0] == found[1]
    assert len(found[0]) == len(dataset.trajectories)


def _cut(block: Block, size: int, schema: Schema = _VECTORS) -> list[Block]:
    """Pieces of so many steps, the last with the rest; halved again and again, as every split copies what is left."""
    if block.steps <= size:
        return [block]
    pieces = -(-block.steps // size)
    first, rest = split(block, schema, pieces // 2 * size)
    return [*_cut(first, size, schema), *_cut(rest, size, schema)]


def _changed(block: Block, **columns: object) -> Block:
    return replace(block, data={**block.data, **columns})  # type: ignore[dict-item]


def _shifted(block: Block) -> Block:
    """Rewards stored with the step after the one that brought them; the last of each trajectory is lost."""
    reward = np.roll(block.data["reward"], 1)
    reward[np.cumsum(block.lengths) - block.lengths] = 0
    return _changed(block, reward=reward)


def _early(block: Block) -> Block:
    reward = np.roll(block.data["reward"], -1)
    reward[np.cumsum(block.lengths) - 1] = 0
    return _changed(block, reward=reward)


def _both(block: Block) -> Block:
    done = block.data["terminated"].astype(bool) | block.data["truncated"].astype(bool)
    return _changed(block, terminated=done, truncated=done.copy())


def _neither(block: Block) -> Block:
    never = np.zeros(block.steps, bool)
    return _changed(block, terminated=never, truncated=never.copy())


def _nan(block: Block) -> Block:
    observation = block.data["observation"].copy()
    observation[17, 0] = np.nan
    return _changed(block, observation=observation)


def _doubled(block: Block) -> Block:
    return join([block, block])


def _joined(block: Block) -> Block:
    """Each two episodes as one: the final observation of the first is lost."""
    count = len(block.lengths) // 2 * 2
    rows = np.cumsum(block.lengths + 1) - 1
    keep = np.ones(len(block.data["observation"]), bool)
    keep[rows[0:count:2]] = False
    flags = {name: block.data[name].copy() for name in ("terminated", "truncated")}
    ends = (np.cumsum(block.lengths) - 1)[0:count:2]
    for column in flags.values():
        column[ends] = False
    pairs = block.lengths[:count].reshape(-1, 2).sum(axis=1)
    lengths = np.concatenate([pairs, block.lengths[count:]])
    always = np.ones(len(lengths), bool)
    data = {**block.data, **flags, "observation": block.data["observation"][keep]}
    return Block(data, lengths, np.arange(len(lengths)), always, always)


def _outside(block: Block) -> Block:
    return _changed(block, action=block.data["action"] + 1)


def _constant_action(block: Block) -> Block:
    return _changed(block, action=np.ones_like(block.data["action"]))


def _black(block: Block) -> Block:
    observation = block.data["observation"].copy()
    observation[100:300] = 0
    return _changed(block, observation=observation)


def _all_black(block: Block) -> Block:
    return _changed(block, observation=np.zeros_like(block.data["observation"]))


def _repeated(block: Block) -> Block:
    observation = block.data["observation"].copy()
    observation[1::4] = observation[0::4][: len(observation[1::4])]
    observation[2::4] = observation[0::4][: len(observation[2::4])]
    observation[3::4] = observation[0::4][: len(observation[3::4])]
    return _changed(block, observation=observation)


def _signs(block: Block) -> Block:
    return _changed(block, reward=np.sign(block.data["reward"]))


def _large(block: Block) -> Block:
    return _changed(block, reward=block.data["reward"] * np.float32(2**26))  # type: ignore[operator]


def _single_steps(block: Block) -> Block:
    """Every step a trajectory, as a reader makes them of next observations that do not match."""
    count = block.steps
    segment = np.repeat(np.arange(len(block.lengths)), block.lengths)
    rows = (np.stack([np.arange(count), np.arange(count) + 1], axis=1) + segment[:, None]).reshape(-1)
    first = np.zeros(count, bool)
    first[np.cumsum(block.lengths) - block.lengths] = True
    data = {**block.data, "observation": block.data["observation"][rows]}
    return Block(data, np.ones(count, np.int64), segment, first, np.ones(count, bool), cut=np.ones(count, bool))


@pytest.mark.parametrize(
    ("name", "mutation", "check", "severity"),
    [
        ("CartPole-v1", _shifted, "shifted", "error"),
        ("Pendulum-v1", _shifted, "shifted", "error"),
        ("ALE/MsPacman-v5", _shifted, "shifted", "error"),
        ("ALE/MsPacman-v5", _early, "shifted", "error"),
        ("CartPole-v1", _both, "both-flags", "error"),
        ("CartPole-v1", _neither, "no-flag", "error"),
        ("CartPole-v1", _nan, "not-finite", "error"),
        ("CartPole-v1", _doubled, "duplicate", "error"),
        ("ALE/Pong-v5", _doubled, "duplicate", "error"),
        ("FrozenLake-v1", _doubled, "duplicate", "note"),
        ("CartPole-v1", _joined, "joined", "error"),
        ("MountainCar-v0", _joined, "too-long", "error"),
        ("Pendulum-v1", _joined, "too-long", "error"),
        ("CartPole-v1", _outside, "outside-space", "error"),
        ("ALE/Pong-v5", _outside, "outside-space", "error"),
        ("CartPole-v1", _constant_action, "constant", "warning"),
        ("ALE/Pong-v5", _black, "black", "warning"),
        ("ALE/Pong-v5", _all_black, "black", "error"),
        ("ALE/Pong-v5", _repeated, "repeated", "warning"),
        ("ALE/MsPacman-v5", _signs, "clipped", "warning"),
        ("CartPole-v1", _large, "rounded", "warning"),
        ("CartPole-v1", _single_steps, "broken", "warning"),
    ],
)
def test_mutants_are_caught(good: dict[str, Dataset], name: str, mutation: Mutation, check: str, severity: str) -> None:
    dataset = good[name]
    found = examined(dataset, [mutation(join(list(dataset.blocks())))])
    caught = [one for one in found.findings if one.check == check]
    assert caught, found.findings
    assert str(caught[0].severity) == severity
    assert caught[0].count > 0
    assert "`fix`" not in caught[0].remedy or len(caught[0].trajectories), "it promises what `fix` does not do"
    for transform in re.findall(r"--transform (\S+)", caught[0].remedy):
        assert transform.partition(":")[0] in TRANSFORMS


@pytest.mark.parametrize(
    ("field", "column", "check"),
    [
        ("timestamp", lambda position: position * 0.05, None),
        ("timestamp", lambda position: np.where(position == 9, 0.0, position * 0.05), "clock"),
        ("frame_index", lambda position: np.minimum(position, 11.0), "clock"),
        ("is_init", lambda position: position == 0, None),
        ("is_init", lambda position: position % 10 == 0, "joined"),
        ("info/lives", lambda position: position * 0 + 3.0, "constant"),
        ("info/score", lambda position: np.where(position == 3, np.nan, position), "not-finite"),
    ],
)
def test_extra_fields(
    good: dict[str, Dataset], field: str, column: Callable[[np.ndarray], np.ndarray], check: str | None
) -> None:
    dataset = good["CartPole-v1"]
    block = join(list(dataset.blocks()))
    begins = np.cumsum(block.lengths) - block.lengths
    values = np.asarray(column(np.arange(block.steps) - np.repeat(begins, block.lengths)))
    schema = Schema({**dataset.schema.fields, field: Field(values.dtype.name, (), Role.STEP)})
    found = examined(dataset, [_changed(block, **{field: values})], schema)
    assert [one.check for one in found.findings] == ([] if check is None else [check])


def test_a_clock_goes_on_in_the_next_block(good: dict[str, Dataset]) -> None:
    dataset = good["CartPole-v1"]
    whole = join(list(dataset.blocks()))
    begins = np.cumsum(whole.lengths) - whole.lengths
    position = np.arange(whole.steps) - np.repeat(begins, whole.lengths)
    schema = Schema({**dataset.schema.fields, "timestamp": Field("float64", (), Role.STEP)})
    for values, expected in ((position * 0.05, []), (np.where(position == 7, 0.0, position * 0.05), ["clock"])):
        pieces = _cut(_changed(whole, timestamp=values), 7, schema)
        assert [one.check for one in examined(dataset, pieces, schema).findings] == expected


def test_unrecorded_final_observations_are_not_black(good: dict[str, Dataset]) -> None:
    dataset = good["ALE/MsPacman-v5"]
    block = join(list(dataset.blocks()))
    observation = block.data["observation"].copy()
    observation[np.cumsum(block.lengths + 1) - 1] = 0
    unrecorded = replace(_changed(block, observation=observation), final_recorded=np.zeros(len(block.lengths), bool))
    assert not severe(examined(dataset, [unrecorded]))


@pytest.mark.parametrize(
    ("space", "is_outside"),
    [
        ({"type": "MultiDiscrete", "nvec": [5000, 5000]}, False),
        ({"type": "MultiDiscrete", "nvec": [5000, 2]}, True),
        ({"type": "MultiDiscrete", "nvec": [5000, 5000], "start": [0, 4000]}, True),
        ({"type": "MultiBinary", "n": 2}, True),
        ({"type": "MultiDiscrete"}, False),
        ({"type": "Graph"}, False),
    ],
)
def test_actions_of_several_numbers_and_their_space(space: dict[str, Any], is_outside: bool, tmp_path: Path) -> None:
    schema = Schema({**SMALL.fields, "action": Field("int64", (2,), Role.STEP, space)})
    block = make_block((3, 5))
    block = replace(block, data={**block.data, "action": np.full((8, 2), 1004)})
    dataset = write_dataset(tmp_path / "d", [[block]], schema=schema)
    found = [one.check for one in rlx.doctor(dataset.path).findings]
    assert ("outside-space" in found) == is_outside
