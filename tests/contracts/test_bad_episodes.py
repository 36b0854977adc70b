"""One episode that cannot be read stops a conversion, or is left out and named: the others are as without it."""

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

import rlx
from rlx.errors import CorruptShardError, DatasetExistsError, SourceError
from rlx.formats.common.skipping import HINT
from tests.array_record_files import changed_records
from tests.bad_files import CASES, CHUNKS, NAMES, RECORDS, minari
from tests.conftest import Cli
from tests.damage import Damage, at, column, h5, members, value
from tests.hdf5_files import delete, replace, set_row
from tests.minari_files import write_dataset

LENGTHS = (4, 1, 7, 2, 9)
ENDS = np.cumsum((0, *LENGTHS))
NAN = float("nan")


def crc(path: Path) -> None:
    """A byte of the first record of a TFRecord file is another."""
    content = bytearray(path.read_bytes())
    content[40] ^= 0xFF
    path.write_bytes(content)


def unfindable(path: Path) -> None:
    """The length of the third record of a TFRecord file is not that of its checksum."""
    content, start = bytearray(path.read_bytes()), 0
    for _ in range(2):
        start += int.from_bytes(content[start : start + 8], "little") + 16
    content[start] ^= 1
    path.write_bytes(content)


def unpickled(number: int) -> Damage:
    return at(
        "data_000000.array_record",
        lambda path: changed_records(path, lambda found: [*found[:number], b"none", *found[number + 1 :]]),
    )


def in_two(path: Path) -> None:
    """The third record of ArrayRecord becomes two pieces, the second of which is damaged."""

    def parted(found: list[dict[str, Any]]) -> list[Any]:
        whole = found[2]
        pieces: list[dict[str, Any]] = []
        for start, stop in ((0, 3), (3, 7)):
            piece = {
                name: rows[start:stop] if name[:5] != "final" else rows
                for name, rows in whole.items()
                if isinstance(rows, np.ndarray)
            }
            said = {**whole["rlx"], "start": start, "is_last": stop == 7}
            pieces.append({**piece, "sequence_length": stop - start, "rlx": said})
        pieces[0].pop("terminated")
        pieces[1]["rewards"] = np.full(4, NAN, np.float32)
        return [*found[:2], *pieces, *found[3:]]

    changed_records(path / "data_000000.array_record", parted)


def without_group(path: Path) -> None:
    with h5py.File(path / "data/main_data.hdf5", "a") as file:
        del file["episode_2"]


# By format and kind: the damage, the episodes that it affects, and their names.
BAD: dict[str, tuple[Damage, tuple[int, ...], tuple[str, ...]]] = {
    "minari: rewards": (minari(delete("episode_2/rewards")), (2,), ("episode_2",)),
    "minari: first": (minari(delete("episode_0/observations")), (0,), ("episode_0",)),
    "minari: number of steps": (
        minari(lambda file: file["episode_2"].attrs.modify("total_steps", 6)),
        (2,),
        ("episode_2",),
    ),
    "minari: attribute": (minari(lambda file: file["episode_2"].attrs.pop("total_steps")), (2,), ("episode_2",)),
    "minari: missing": (without_group, (2,), ("episode_2",)),
    "minari: NaN": (minari(set_row("episode_4/observations", 9, NAN)), (4,), ("episode_4",)),
    "robomimic: actions": (h5(delete("data/demo_2/actions")), (2,), ("demo_2",)),
    "robomimic: first": (h5(delete("data/demo_0/obs")), (0,), ("demo_0",)),
    "robomimic: final": (h5(delete("data/demo_3/next_obs")), (3,), ("demo_3",)),
    "robomimic: shape": (h5(replace("data/demo_2/obs/observation", np.zeros((7, 9), "f4"))), (2,), ("demo_2",)),
    "robomimic: first shape": (h5(replace("data/demo_0/obs/observation", np.zeros((4, 9), "f4"))), (0,), ("demo_0",)),
    "minari: first shape": (minari(replace("episode_0/observations", np.zeros((5, 9), "f4"))), (0,), ("episode_0",)),
    "d3rlpy: first dtype": (h5(replace("actions_0", np.zeros((4, 2), "f8"))), (0,), ("episode 0",)),
    "robomimic: samples": (
        h5(lambda file: file["data/demo_2"].attrs.modify("num_samples", 8)),
        (2,),
        ("demo_2",),
    ),
    "robomimic: flags": (h5(lambda file: file["data/demo_2/dones"].write_direct(np.full(7, 2))), (2,), ("demo_2",)),
    "robomimic: two": (
        h5(delete("data/demo_0/rewards"), set_row("data/demo_4/actions", 1, NAN)),
        (0, 4),
        ("demo_0", "demo_4"),
    ),
    "d3rlpy: actions": (h5(delete("actions_2")), (2,), ("episode 2",)),
    "d3rlpy: first": (h5(delete("observations_0")), (0,), ("episode 0",)),
    "d3rlpy: flag": (h5(replace("terminated_2", 0.5)), (2,), ("episode 2",)),
    "d4rl": (h5(set_row("observations", 9, NAN)), (2,), ("episode 2",)),
    "lerobot": (at(CHUNKS, column("action", value(NAN, 9))), (2,), ("episode 2",)),
    "lerobot: final": (
        at("meta/final_observations.parquet", column("observation.state", value(NAN, 2))),
        (2,),
        ("episode 2",),
    ),
    "rlds: first": (CASES["rlds"]["infinite rewards"][0], (0,), (f"{RECORDS}: record 0",)),
    "rlds: checksum": (at(RECORDS, crc), (0,), (f"{RECORDS}: record 0",)),
    "rlds: unfindable": (at(RECORDS, unfindable), (2, 3, 4), (f"{RECORDS}: records 2 to 4",)),
    "torchrl": (CASES["torchrl"]["infinite rewards"][0], (2,), ("episode 2",)),
    "parquet": (column("observation", value(NAN, 9)), (2,), ("episode 2",)),
    "parquet: last": (column("next/reward", value(NAN, 22)), (4,), ("episode 4",)),
    "hf_parquet": (column("next/reward", value(NAN, 9)), (2,), ("episode 2",)),
    "npz": (CASES["npz"]["infinite rewards"][0], (2,), ("episode 2",)),
    "lance": (CASES["lance"]["infinite rewards"][0], (2,), ("episode 2",)),
    "mds": (CASES["mds"]["infinite rewards"][0], (2,), ("episode 2",)),
    "array_record: pickle": (unpickled(2), (2,), ("data_000000.array_record: record 2",)),
    "array_record: first": (unpickled(0), (0,), ("data_000000.array_record: record 0",)),
    "array_record: piece": (in_two, (2,), ("data_000000.array_record: record 2",)),
}


def copied(exported: Path, format: str, tmp_path: Path) -> Path:
    shutil.copytree(exported / format, tmp_path / "in")
    return tmp_path / "in" / NAMES.get(format, "a.h5")


def rewards(path: Path) -> NDArray[Any]:
    rows: NDArray[Any] = rlx.open(path)[:]["next", "reward"].numpy()[:, 0]
    return rows


def without(rows: NDArray[Any], episodes: tuple[int, ...]) -> NDArray[Any]:
    return np.concatenate(
        [rows[ENDS[number] : ENDS[number + 1]] for number in range(len(LENGTHS)) if number not in episodes]
    )


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_episode_is_left_out_and_the_others_taken(kind: str, exported: Path, tmp_path: Path) -> None:
    format, (damage, episodes, names) = kind.split(":")[0], BAD[kind]
    path = copied(exported, format, tmp_path)
    damage(path)

    with pytest.raises(SourceError) as error:
        rlx.convert(path, tmp_path / "stopped", jobs=1).raise_for_failures()
    assert error.value.hint == HINT

    report = rlx.convert(path, tmp_path / "new", on_error="skip", jobs=1).raise_for_failures()
    np.testing.assert_array_equal(rewards(tmp_path / "new"), without(rewards(exported / "vectors"), episodes))
    assert tuple(report.left_out.reasons) == names
    assert report.left_out.count == len(names)
    assert report.to_json()["episodes_left_out"] == rlx.open(tmp_path / "new").manifest.notes["episodes_left_out"]


@pytest.mark.parametrize("kind", ["minari: first", "array_record: piece", "lerobot"])
def test_an_export_leaves_the_same_out(kind: str, exported: Path, tmp_path: Path) -> None:
    path = copied(exported, kind.split(":")[0], tmp_path)
    BAD[kind][0](path)
    report = rlx.convert(path, tmp_path / "new.npz", to="npz", on_error="skip")
    assert tuple(report.left_out.reasons) == BAD[kind][2]
    assert rlx.convert(path, tmp_path / "new.npz", to="npz", on_error="skip").skipped_shards == 1
    with pytest.raises((SourceError, DatasetExistsError)):
        rlx.convert(path, tmp_path / "new.npz", to="npz")
    rlx.convert(tmp_path / "new.npz", tmp_path / "again", jobs=1)
    np.testing.assert_array_equal(rewards(tmp_path / "again"), without(rewards(exported / "vectors"), BAD[kind][1]))


@pytest.mark.parametrize("kind", ["minari: rewards", "robomimic: actions", "rlds: first", "parquet", "npz", "lerobot"])
def test_an_error_names_the_option(kind: str, exported: Path, cli: Cli, tmp_path: Path) -> None:
    path = copied(exported, kind.split(":")[0], tmp_path)
    BAD[kind][0](path)
    stopped = cli("convert", path, tmp_path / "new", "--jobs", 1)
    assert stopped.code == 3
    assert "hint: --on-error skip leaves out what cannot be read, names it, and takes the other episodes" in stopped.err
    result = cli("convert", path, tmp_path / "new", "--jobs", 1, "--on-error", "skip", "--json")
    assert result.code == 0
    said = json.loads(result.out)["episodes_left_out"]
    assert (said["count"], *said["reasons"]) == (1, *BAD[kind][2])
    assert f"left out: 1 episode that cannot be read: {BAD[kind][2][0]} (" in result.err


@pytest.mark.parametrize("format", ["minari", "robomimic", "d3rlpy"])
def test_a_file_of_bad_episodes_only_is_an_error(format: str, exported: Path, tmp_path: Path) -> None:
    path = copied(exported, format, tmp_path)
    name = {"minari": "episode_{}/actions", "robomimic": "data/demo_{}/actions", "d3rlpy": "actions_{}"}[format]
    for number in range(len(LENGTHS)):
        at("data/main_data.hdf5" if format == "minari" else "", h5(delete(name.format(number))))(path)
    with pytest.raises(CorruptShardError, match="5 episodes that cannot be read"):
        rlx.convert(path, tmp_path / "new", on_error="skip", jobs=1)


@pytest.mark.parametrize("storage", ["arrow", "parquet"])
@pytest.mark.parametrize("name", ["part-0", "metadata.json"])
def test_an_episode_in_a_file_of_its_own(storage: str, name: str, tmp_path: Path) -> None:
    path = write_dataset(tmp_path, "a-v0", lengths=LENGTHS, data_format=storage)
    rlx.convert(path, tmp_path / "good", jobs=1)
    file = path / "data/2" / (name if name == "metadata.json" else f"{name}.{storage}")
    file.write_bytes(file.read_bytes()[:20])
    report = rlx.convert(path, tmp_path / "new", on_error="skip", jobs=1)
    np.testing.assert_array_equal(rewards(tmp_path / "new"), without(rewards(tmp_path / "good"), (2,)))
    assert [*report.left_out.reasons] == ["episode_2"]


def test_shards_that_other_processes_read(exported: Path, tmp_path: Path) -> None:
    path = copied(exported, "rlds", tmp_path)
    at(RECORDS, crc)(path)
    report = rlx.convert(path, tmp_path / "new", on_error="skip", jobs=2)
    assert [*report.left_out.reasons] == [f"{RECORDS}: record 0"]


def test_what_is_wrong_with_a_whole_file_stops(exported: Path, tmp_path: Path) -> None:
    path = copied(exported, "minari", tmp_path)
    at("data/metadata.json", members(lambda _: {"total_episodes": "five"}))(path)
    with pytest.raises(CorruptShardError, match="total_episodes"):
        rlx.convert(path, tmp_path / "new", on_error="skip", jobs=1)


def test_a_total_that_no_episode_explains_stops(exported: Path, tmp_path: Path) -> None:
    path = copied(exported, "minari", tmp_path)
    at("data/metadata.json", members(lambda said: {"total_steps": said["total_steps"] + 1}))(path)
    with pytest.raises(CorruptShardError, match="expected 24 steps, found 23"):
        rlx.convert(path, tmp_path / "new", on_error="skip", jobs=1)


def test_functions_without_the_option_do_not_name_it(exported: Path, cli: Cli, tmp_path: Path) -> None:
    path = copied(exported, "parquet", tmp_path)
    BAD["parquet"][0](path)
    assert "on-error" not in (result := cli("doctor", path)).err + result.out
