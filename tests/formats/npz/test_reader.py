"""npz archives that others wrote, whole and damaged."""

import io
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from rlx.errors import CorruptShardError, SourceError
from rlx.formats.npz import FORMAT
from rlx.formats.npz.reader import open_npz
from rlx.testing.source import FileContract, merge, read, steps_or_error, with_wrong_bytes

Arrays = dict[str, Any]
ONES, FINAL = np.ones(9), "trajectories/final/observation"
LENGTHS = (3, 1, 5)


def steps(lengths: tuple[int, ...] = LENGTHS) -> Arrays:
    """Rows that tell where they belong: ``100 * episode + t``."""
    rows = np.array([100 * number + t for number, length in enumerate(lengths) for t in range(length)])
    ends = np.array([t == length - 1 for length in lengths for t in range(length)])
    return {
        "observation": np.stack([rows, rows * 0], axis=1).astype(np.float32),
        "action": rows,
        "next/reward": rows / 2,
        "next/terminated": ends,
        "next/truncated": ends & False,
    }


def with_next(arrays: Arrays) -> Arrays:
    return {**arrays, "next/observation": arrays["observation"] + np.array([1, 0], np.float32)}


def with_table(arrays: Arrays) -> Arrays:
    finals = np.array([[3, 0], [101, 0], [205, 0]], np.float32)
    return {**arrays, "trajectories/length": np.array(LENGTHS), "trajectories/final/observation": finals}


def write(path: Path, arrays: Arrays, *, compressed: bool = True) -> Path:
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    return path


class TestNpz(FileContract):
    file, write, open = "steps.npz", staticmethod(write), staticmethod(open_npz)
    options: ClassVar = {"arrays": with_next(steps())}


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("more", [with_next, with_table])
def test_what_was_seen_last_is_there(tmp_path: Path, more: Any, compressed: bool) -> None:
    first, second, third = read(open_npz(write(tmp_path / "a.npz", more(steps()), compressed=compressed)), 0)
    assert first["observation"][:, 0].tolist() == [0, 1, 2, 3]
    assert second["reward"].tolist() == [50]
    assert (third["observation"][:, 0].tolist(), third.final_recorded) == ([200, 201, 202, 203, 204, 205], True)


def test_what_was_seen_last_is_not_there(tmp_path: Path) -> None:
    arrays = steps()
    arrays["next/truncated"], arrays["next/terminated"] = arrays["next/terminated"], arrays["next/truncated"]
    arrays["next/terminated"][2] = True
    first, second, third = read(open_npz(write(tmp_path / "a.npz", arrays)), 0)
    assert (first.steps, first.final_recorded) == (3, False)
    assert (second["observation"][:, 0].tolist(), second.final_recorded) == ([100, 0], False)
    assert (third["observation"][:, 0].tolist(), third.final_recorded) == ([200, 201, 202, 203, 204, 0], False)
    assert third["truncated"].tolist() == [False] * 4 + [True]


def test_rows_that_do_not_follow_each_other_are_trajectories_of_their_own(tmp_path: Path) -> None:
    arrays = {name: rows[[2, 0, 1, 3]] for name, rows in with_next(steps((4,))).items()}
    found = read(open_npz(write(tmp_path / "a.npz", arrays)), 0)
    assert [one["observation"][:, 0].tolist() for one in found] == [[2, 3], [0, 1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"next/reward": None}, "next/reward is missing"),
        ({"next/terminated": None}, "next/terminated is missing"),
        ({"observation": None}, "observation is missing"),
        ({"action": None}, "action is missing"),
        ({"action": np.zeros(8)}, "action: expected 9 rows as next/reward, found 8"),
        ({"next/truncated": np.zeros(3, bool)}, "next/truncated: expected 9 rows as next/reward, found 3"),
        ({"collector/traj_ids": np.zeros(3)}, "collector/traj_ids: expected 9 rows"),
        (
            {"action": np.array([None] * 9)},
            "action: neither numbers nor text",
        ),
        ({"action": np.full(9, np.nan)}, "action: expected finite numbers, found NaN in row 0"),
        ({"next/reward": np.full(9, -np.inf)}, "next/reward: expected finite numbers, found -inf in row 0"),
        (
            {
                "observation/a": np.zeros(9),
                "observation/b": np.zeros(9),
                "observation": None,
                "next/observation/b": ONES,
            },
            "next/observation/a is missing",
        ),
        (
            {
                "observation/a": np.zeros(9),
                "observation/b": np.zeros(9),
                "observation": None,
                FINAL: None,
                FINAL + "/b": ONES[:3],
            },
            "next/observation/a is missing",
        ),
        ({"next/observation": np.zeros((9, 3), np.float32)}, "next/observation: expected .* as observation"),
        ({"trajectories/length": np.array([3, 1, 4])}, "length: expected lengths that add up to 9 steps, found 8"),
        ({"trajectories/length": np.array([3, -1, 7])}, "length: expected lengths that add up to 9 steps"),
        ({"trajectories/length": np.ones(9)}, r"length: expected \[9\] of the kind iu, found float64\[9\]"),
        (
            {"trajectories/length": np.array([4, 3, 2])},
            "next/terminated: expected flags at the last step of a trajectory",
        ),
        ({"trajectories/episode": np.array([4, 5])}, "trajectories/episode: expected"),
        ({"trajectories/final/observation": np.zeros((2, 2), np.float32)}, "final/observation: expected float32"),
        ({"trajectories/final/observation": np.full((3, 2), np.nan, np.float32)}, "final/observation: .* NaN in row 0"),
    ],
)
def test_bad_arrays(tmp_path: Path, change: Arrays, message: str) -> None:
    tabled = any(name.startswith("trajectories/") for name in change)
    arrays = {**(with_table(steps()) if tabled else steps()), **change}
    path = write(tmp_path / "a.npz", {name: rows for name, rows in arrays.items() if rows is not None})
    with pytest.raises(
        CorruptShardError, match=message + ".*; expected arrays of one row per step: observation"
    ) as caught:
        read(open_npz(path), 0)
    assert str(path) in str(caught.value)


def test_no_steps(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="has no step"):
        open_npz(write(tmp_path / "a.npz", {name: rows[:0] for name, rows in steps().items()}))


def test_a_claim_beyond_what_the_file_can_hold(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npz", steps())
    huge = io.BytesIO()
    np.lib.format.write_array_header_1_0(huge, {"descr": "<i8", "fortran_order": False, "shape": (2**50,)})
    with zipfile.ZipFile(path, "a") as archive, archive.open("huge.npy", "w") as member:
        member.write(huge.getvalue())
    with pytest.raises(CorruptShardError, match=r"huge: expected at most .* bytes, found a claim of int64"):
        open_npz(path)


def test_any_byte_may_be_wrong(tmp_path: Path) -> None:
    """Whatever is damaged is an error that names the file, or steps that fit the schema."""
    whole = write(tmp_path / "a.npz", with_table(steps())).read_bytes()
    for damaged in with_wrong_bytes(whole, tmp_path / "b.npz", range(0, len(whole), 5)):
        steps_or_error(open_npz, damaged)


def test_which_archives_are_of_steps(tmp_path: Path) -> None:
    assert FORMAT.recognises(write(tmp_path / "a.npz", steps()))
    assert not FORMAT.recognises(write(tmp_path / "b.npz", {"weights": np.zeros(3)}))
    assert not FORMAT.recognises(tmp_path / "c.npz")


def test_texts_are_fields_and_what_else_is_there_is_named(tmp_path: Path) -> None:
    more = {
        "task": np.array(["go", "", "stop \u00fc"] * 3),
        "goal": np.array([b"home"] * 9),
        "next/info/lives": np.arange(9),
        "weights": np.zeros((3, 2)),
        "version": np.array(3),
        "note": np.array(["x"]),
        "notes": np.array([{}] * 9),
        "two words": np.zeros(9),
        "trajectories/mood": np.zeros(9),
    }
    path = write(tmp_path / "a.npz", {**with_next(steps()), **more})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("README.txt", "hello")
    source = open_npz(path)
    assert set(source.notes["not_taken"]) == {
        "weights", "version", "note", "notes", "two words", "trajectories/mood", "README.txt"
    }  # fmt: skip
    found = read(source, 0)
    assert [text for one in found for text in one["task"]] == ["go", "", "stop \u00fc"] * 3
    assert [text for one in found for text in one["goal"]] == ["home"] * 9
    assert np.concatenate([one["info/lives"] for one in found]).tolist() == [*range(9)]


def test_padding_is_left_out_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npz", {**with_next(steps()), "collector/mask": np.arange(9) < 8})
    source, dropped = open_npz(path), Counter[str]()
    assert sum(one.steps for one in merge(source.blocks(0, dropped), source.schema)) == 8
    assert dropped == {"padding": 1}


def test_what_is_known_of_each_step_is_used_without_a_table(tmp_path: Path) -> None:
    more = {
        "trajectories/episode": np.repeat([7, 3, 3], LENGTHS),
        "trajectories/from_reset": np.repeat([True, False, True], LENGTHS),
        "trajectories/cut": np.repeat([False, True, False], LENGTHS),
        "next/truncated": np.isin(np.arange(9), [3]),
        "next/terminated": np.isin(np.arange(9), [2, 8]),
    }
    found = read(open_npz(write(tmp_path / "a.npz", {**with_next(steps()), **more})), 0)
    assert [(one.episode, one.from_reset, one.cut) for one in found] == [
        (7, True, False),
        (3, False, True),
        (3, True, False),
    ]


def test_bytes_after_an_array(tmp_path: Path) -> None:
    path = write(tmp_path / "a.npz", steps())
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content + b"more" * (name == "action.npy"))
    with pytest.raises(CorruptShardError, match=r"action: expected an array \[9\], found trailing data"):
        read(open_npz(path), 0)
