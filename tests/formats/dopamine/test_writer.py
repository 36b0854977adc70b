"""What rlx writes in Dopamine's layout, by rlx's reader and by numpy alone; and small rings against Dopamine's."""

import gzip
import io
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import rlx
from rlx.block import Block
from rlx.errors import ExportError
from rlx.formats.dopamine.writer import DopamineExporter
from rlx.progress import Silent
from rlx.schema import Field, Role, Schema
from rlx.testing.dataset_exporter import SAMPLES, Arrays, DatasetExporterContract, random_block
from rlx.testing.exporter import contents
from rlx.testing.source import Trajectory, read
from rlx.verbs.export import SelectedShards, export_dataset
from rlx.verbs.inputs import open_source
from tests.dopamine_files import Episode, Ring, frame, row_values
from tests.factories import write_dataset

FINAL = "the final observation of 5 of 5 trajectories"
ENDS = "truncations: 2 of 5 trajectories did not terminate, and end as if they had"
VECTOR = r"one discrete action per step, found action float32\[2\]"
SHARED = Path(__file__).parents[3] / "../shared/data/dqn"
HELD = ("discrete actions", "pictures")


class TestDopamine(DatasetExporterContract):
    format = "dopamine"
    refused: ClassVar = {sample: VECTOR for sample in SAMPLES if sample not in HELD} | {
        "dict observations": "one observation per step, found observation/camera, observation/arm/angle",
        "multi-discrete actions": r"one discrete action per step, found action int64\[2\]",
        "dict actions": r"found action/move float32\[1\], action/turn float32\[1\]",
        "texts": "one observation per step, found observation/mission, observation/place",
    }
    rich = True
    always: ClassVar = [FINAL, ENDS]

    def expected(self, trajectory: Trajectory, sample: str) -> Arrays | None:
        arrays = super().expected(trajectory, sample) or {}
        arrays["observation"] = np.concatenate([arrays["observation"][:-1], arrays["observation"][-1:] * 0])
        arrays["terminated"] = arrays["terminated"] | arrays["truncated"]
        arrays["truncated"] = arrays["truncated"] & False
        if "h" in arrays:
            arrays["h"] = arrays["h"][:-1]
        return arrays

    def expected_role(self, name: str, field: Field) -> Role:
        return Role.STEP if name == "h" else field.role

    def keeps_final(self, trajectory: Trajectory) -> bool:  # noqa: ARG002
        return False


def written(
    path: Path, lengths: tuple[int, ...], capacity: int | None, *, sample: str = "discrete actions"
) -> list[Any]:
    """Exports terminal episodes of these lengths; returns the trajectories."""
    chosen = SAMPLES[sample]
    dataset = write_dataset(path / "data", [[random_block(chosen, lengths, ends="t")]], schema=chosen)
    source, _ = open_source(dataset.path, None)
    export_dataset(SelectedShards(source, [0]), path / "Pong/1", DopamineExporter(capacity), progress=Silent())
    return read(source, 0)


def load(path: Path, name: str, suffix: int) -> NDArray[Any]:
    """As code that was written for the DQN Replay Dataset does."""
    with gzip.open(path / f"Pong/1/replay_logs/{name}_ckpt.{suffix}.gz") as file:
        array: NDArray[Any] = np.load(file, allow_pickle=False)
        return array


def test_as_numpy_reads_a_whole_lap(tmp_path: Path) -> None:
    one, two = written(tmp_path, (4, 2), None)
    assert load(tmp_path, "add_count", 0) == 12
    assert load(tmp_path, "invalid_range", 0).tolist() == [11, 12, 0, 1, 2]
    assert load(tmp_path, "$store$_terminal", 0).tolist() == [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0]
    pad, none = np.zeros((3, 3), np.float32), np.zeros((1, 3), np.float32)
    rows = [pad, one["observation"][:-1], pad, two["observation"][:-1], none]
    np.testing.assert_array_equal(load(tmp_path, "$store$_observation", 0), np.concatenate(rows))
    actions = load(tmp_path, "$store$_action", 0)
    assert actions.dtype == np.int32
    assert actions.tolist() == [0, 0, 0, *one["action"], 0, 0, 0, *two["action"], 0]


def test_a_run_of_several_laps_rolls_by_one(tmp_path: Path) -> None:
    """As in the files of a million rows: every one starts with its second oldest row, and the last is half stale."""
    trajectories = written(tmp_path, (5, 9, 2, 4), capacity=12)
    rows = np.concatenate([np.concatenate([[0, 0, 0], one["reward"]]) for one in trajectories])
    assert [int(load(tmp_path, "add_count", suffix)) for suffix in range(3)] == [11, 23, 32 % 12]
    assert not load(tmp_path, "$store$_reward", 0)[11]
    np.testing.assert_array_equal(load(tmp_path, "$store$_reward", 0)[:11], rows[:11])
    np.testing.assert_array_equal(np.roll(load(tmp_path, "$store$_reward", 1), 1), rows[11:23])
    last = load(tmp_path, "$store$_reward", 2)
    np.testing.assert_array_equal(last[:8], rows[24:])
    np.testing.assert_array_equal(last[8:], rows[20:24])
    assert load(tmp_path, "invalid_range", 2).tolist() == [7, 8, 9, 10, 11]
    names = sorted(path.name for path in (tmp_path / "Pong/1/replay_logs").iterdir())
    assert len(names) == 3 * 6


@given(lengths=st.lists(st.integers(1, 15), min_size=1, max_size=8).map(tuple), capacity=st.integers(6, 40) | st.none())
@settings(max_examples=25)
def test_any_ring_is_read_back(lengths: tuple[int, ...], capacity: int | None, tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("ring")
    wanted = written(path, lengths, capacity)
    source, _ = open_source(path, None)
    assert source.id == "Pong/1"
    found = [trajectory for shard in source.shards() for trajectory in read(source, shard)]
    assert [one.steps for one in found] == list(lengths)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one["observation"][:-1], other["observation"][:-1])
        np.testing.assert_array_equal(one["action"], other["action"])
        np.testing.assert_array_equal(one["reward"], other["reward"])


@pytest.mark.parametrize("lengths", [(8, 30, 12), (6, 7), (16, 20), (12, 2), (2, 2, 9, 40, 3)])
def test_the_same_as_dopamine_writes(tmp_path: Path, lengths: tuple[int, ...]) -> None:
    """But for the slot that nothing was ever written to: there Dopamine leaves what the memory held."""
    ring = Ring(tmp_path / "theirs", capacity=20)
    ring.run(Episode(length) for length in lengths)
    chosen = Schema.of(observation=("uint8", (2, 2)), action=("int64", ()))
    row, blocks = 0, []
    for number, length in enumerate(lengths):
        row += 3
        rows = range(row, row + length)
        values = [row_values(one) for one in rows]
        ends = np.arange(length) == length - 1
        data: dict[str, NDArray[Any]] = {
            "observation": np.stack([*(frame(one, (2, 2)) for one in rows), np.zeros((2, 2), np.uint8)]),
            "action": np.array([action for action, _ in values]),
            "reward": np.array([reward for _, reward in values], np.float32),
            "terminated": ends,
            "truncated": ends & False,
        }
        always = np.array([True])
        blocks.append(Block(data, np.array([length]), np.array([number]), always, ~always))
        row += length
    dataset = write_dataset(tmp_path / "data", [blocks], schema=chosen)
    source, _ = open_source(dataset.path, None)
    export_dataset(SelectedShards(source, [0]), tmp_path / "Pong/1", DopamineExporter(20), progress=Silent())
    ours, theirs = contents(tmp_path / "Pong/1/replay_logs"), contents(tmp_path / "theirs")
    for name, content in ours.items():
        found, wanted = (np.load(io.BytesIO(gzip.decompress(one))) for one in (content, theirs[name]))
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        written_to = slice(0, min(row, 19)) if ".0." in name and "store" in name else ...
        np.testing.assert_array_equal(found[written_to], wanted[written_to], err_msg=name)


def test_actions_of_64_bits(tmp_path: Path) -> None:
    block = random_block(SAMPLES["discrete actions"], (3,))
    block.data["action"][1] = 2**40
    dataset = write_dataset(tmp_path / "data", [[block]], schema=SAMPLES["discrete actions"])
    source, _ = open_source(dataset.path, None)
    with pytest.raises(ExportError, match="actions of 32 bits, found larger ones in action"):
        export_dataset(SelectedShards(source, [0]), tmp_path / "out", DopamineExporter(), progress=Silent())
    assert not (tmp_path / "out").exists()


def test_the_note_on_rewards_comes_back(tmp_path: Path) -> None:
    block = random_block(SAMPLES["discrete actions"], (7, 4))
    block.data["reward"][:] = 1  # as if clipped
    data = write_dataset(tmp_path / "set", [[block]], schema=SAMPLES["discrete actions"])
    replace(data.manifest, notes={"rewards": "raw"}).save(data.path)
    rlx.convert(data.path, tmp_path / "Pong/1", to="dopamine")
    assert open_source(tmp_path / "Pong/1", None)[0].notes["rewards"] == "raw"


@pytest.mark.skipif(not SHARED.is_dir(), reason="the sample files are not beside the repository")
def test_a_run_that_dopamine_logged_comes_out_as_it_was(tmp_path: Path) -> None:
    source, _ = open_source(SHARED / "Pong/1", None)
    experience = SelectedShards(source, list(source.shards()))
    export_dataset(experience, tmp_path / "Pong/1", DopamineExporter(5000), progress=Silent())
    theirs = SHARED / "Pong/1/replay_logs"
    names = sorted(path.name for path in theirs.iterdir())
    assert sorted(path.name for path in (tmp_path / "Pong/1/replay_logs").iterdir()) == names
    for name in names:
        with gzip.open(theirs / name) as theirs_file, gzip.open(tmp_path / "Pong/1/replay_logs" / name) as ours_file:
            wanted, found = np.load(theirs_file), np.load(ours_file)
        written_to = slice(4999) if ".0." in name and "store" in name else ...
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_array_equal(found[written_to], wanted[written_to], err_msg=name)
