import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium import spaces

import rlx
from rlx.errors import CorruptShardError, SourceError, SourceNotFoundError
from rlx.formats.common.rows import episodes as row_episodes
from rlx.formats.common.source import Source
from rlx.formats.finding import find_run
from rlx.formats.minari.layout import MAIN_DATA, METADATA, describe
from rlx.formats.minari.reader import Minari, find_runs, open_minari
from rlx.schema import Role
from rlx.testing.source import SourceContract, Trajectory, read
from tests.hdf5_files import declare, delete, external, group_instead, objects, replace, resize, set_row
from tests.minari_files import DICT, GREY, IMAGE, TUPLE, VECTOR, read_dataset, record_cart_pole, write_dataset


class MinariContract(SourceContract):
    def needed_files(self, source: Source, shard: int) -> list[str]:  # noqa: ARG002
        return [MAIN_DATA]

    @pytest.fixture
    def source(self, root: Path) -> Minari:
        return open_minari(root)


class TestVectors(MinariContract):
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return write_dataset(tmp_path, "some/vectors-v0") / "data"


class TestPictures(MinariContract):
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return write_dataset(tmp_path, "pictures-v0", observation=IMAGE, jpeg=True) / "data"


class TestShards(MinariContract):
    @pytest.fixture
    def root(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(row_episodes, "STEPS_PER_SHARD", 8)
        monkeypatch.setattr(row_episodes, "block_steps", lambda _: 4)
        return write_dataset(tmp_path, "many-v0", lengths=[5, 3, 1, 30, 2, 2]) / "data"

    def test_shards_are_whole_episodes(self, source: Minari) -> None:
        assert [[one.episode for one in read(source, shard)] for shard in source.shards()] == [[0, 1], [2, 3], [4, 5]]


def values_of(episode: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Minari's episode by rlx's names."""
    groups = {"observation": episode.observations, "action": episode.actions, "info": episode.infos or {}}
    flat = {"reward": episode.rewards, "terminated": episode.terminations, "truncated": episode.truncations}
    for name, group in groups.items():
        flat |= _flat(name, group)
    return flat


def _flat(name: str, group: Any) -> dict[str, Any]:
    if isinstance(group, dict):
        return {leaf: value for key, child in group.items() for leaf, value in _flat(f"{name}/{key}", child).items()}
    if isinstance(group, tuple):
        return _flat(name, {f"_index_{number}": child for number, child in enumerate(group)})
    if isinstance(group, list) or group.dtype == object:  # texts: of spaces decoded, of infos as they lie in the file
        return {name: np.array([text.decode() if isinstance(text, bytes) else text for text in group], object)}
    return {name: group}


def assert_equal(trajectory: Trajectory, episode: Any) -> None:
    expected = values_of(episode)
    assert set(trajectory.parts) == set(expected)
    for name, values in expected.items():
        assert trajectory[name].dtype == values.dtype
        np.testing.assert_array_equal(trajectory[name], values)


SPACES = {
    "vector": (None, None, False),
    "dict": (DICT, None, False),
    "tuple": (TUPLE, None, False),
    "jpeg": (IMAGE, None, True),
    "grey jpeg": (GREY, None, True),
    "raw pictures": (IMAGE, None, False),
    "pictures in a dict": (spaces.Dict({"camera": IMAGE, "goal": spaces.Discrete(3)}), None, True),
    "box actions": (None, spaces.Box(-1, 1, (2,), np.float32), False),
    "multi-discrete actions": (None, spaces.MultiDiscrete([3, 4]), False),
    "multi-binary": (spaces.MultiBinary(4), spaces.MultiBinary(2), False),
    "text": (spaces.Dict({"mission": spaces.Text(8), "vector": VECTOR}), spaces.Text(3, charset="a\u00e9"), False),
    "dict actions": (None, spaces.Dict({"move": spaces.Discrete(3), "turn": spaces.Box(0, 1)}), False),
}


@pytest.mark.parametrize("name", SPACES)
def test_every_value_is_what_minari_reads(name: str, tmp_path: Path) -> None:
    observation, action, jpeg = SPACES[name]
    chosen = {"observation": observation} if observation is not None else {}
    write_dataset(tmp_path, "aa/b-v1", action=action, jpeg=jpeg, **chosen)  # type: ignore[arg-type]
    source = open_minari(tmp_path / "aa/b-v1")
    trajectories = read(source, 0)
    episodes = read_dataset(tmp_path, "aa/b-v1")
    assert [trajectory.episode for trajectory in trajectories] == [0, 1, 2]
    for trajectory, episode in zip(trajectories, episodes, strict=True):
        assert_equal(trajectory, episode)
    assert source.schema["reward"].dtype == "float64"
    assert source.schema["info/score"].role == Role.OBSERVATION
    assert ("lossy_jpeg" in source.notes) == jpeg
    assert source.notes["not_taken"] == {"episode_*: attribute seed": "not part of any step"}


def test_cart_pole(tmp_path: Path) -> None:
    episodes = record_cart_pole(tmp_path, "cartpole/random-v0")
    source = find_run(tmp_path, "cartpole/random-v0", "minari")
    for trajectory, episode in zip(read(source, 0), episodes, strict=True):
        assert_equal(trajectory, episode)
    assert source.notes["environment"] == "CartPole-v1"
    assert json.loads(source.notes["env_spec"])["max_episode_steps"] == 20
    assert source.schema["action"].space == {"type": "Discrete", "n": 2, "start": 0}


def test_datasets_are_found_in_namespaces(tmp_path: Path) -> None:
    for id in ("flat-v0", "some/deep/nested-v3"):
        write_dataset(tmp_path, id)
    assert [run.id for run in find_runs(tmp_path)] == ["flat-v0", "some/deep/nested-v3"]
    assert [run.id for run in find_runs(tmp_path / "flat-v0/data")] == ["flat-v0"]
    assert find_runs(tmp_path / "nothing") == []


def test_an_episode_without_steps_is_counted(tmp_path: Path) -> None:
    root = write_dataset(tmp_path, "x-v0") / "data"
    with h5py.File(root / MAIN_DATA, "a") as file:
        for name in ("actions", "rewards", "terminations", "truncations"):
            file[f"episode_1/{name}"].resize(0, axis=0)
        for name in ("observations", "infos/score", "infos/deep/count", "infos/deep/name"):
            file[f"episode_1/{name}"].resize(1, axis=0)
        file["episode_1"].attrs["total_steps"] = 0
    change_metadata(root, total_steps=11)
    dropped: Counter[str] = Counter()
    assert sum(block.steps for block in open_minari(root).blocks(0, dropped)) == 11
    assert dropped == {"episode_without_step": 1}


DAMAGE = {
    "no rewards": (
        delete("episode_2/rewards"),
        "/episode_2/rewards is missing",
    ),
    "text for numbers": (
        replace("episode_0/actions", [b"left"] * 4),
        "/episode_0/actions: expected numbers",
    ),
    "objects for numbers": (objects("episode_0/observations"), "/episode_0/observations: expected numbers"),
    "an info less": (delete("episode_2/infos/score"), "episode_2/infos/score"),
    "a group for a dataset": (group_instead("episode_2/rewards"), "expected a dataset"),
    "a short observation": (resize("episode_2/observations", 7), "observations: expected 8 rows, found 7"),
    "a long action": (resize("episode_2/actions", 8), "actions: expected 2 chunks, found 1 stored"),
    "another dtype": (replace("episode_2/rewards", np.zeros(7, "f4")), r"expected float64\[\], found float32\[\]"),
    "another shape": (
        replace("episode_2/observations", np.zeros((8, 4), "f4")),
        r"expected float32\[3\], found float32\[4\]",
    ),
    "a scalar": (replace("episode_2/truncations", True), "found 0"),
    "early end": (
        replace("episode_2/truncations", np.arange(7) == 2),
        "expected it at the last step only, found it at step 2",
    ),
    "no such episode": (lambda f: f.move("episode_2", "episode_3"), "episode_2"),
    "nothing behind it": (declare("episode_2/rewards", (10**15,)), "found none stored"),
    "another file": (external("episode_2/rewards"), "leads to another file"),
    "another place": (
        lambda f: (
            f.__delitem__("episode_2/rewards"),
            f.__setitem__("episode_2/rewards", h5py.SoftLink("/episode_0/rewards")),
        ),
        "another place in this one",
    ),
    "a group of another file": (
        lambda f: (
            f.__delitem__("episode_2/infos/deep"),
            f.__setitem__("episode_2/infos/deep", h5py.ExternalLink("/etc/passwd", "/")),
        ),
        "infos/deep: leads to another file",
    ),
    "NaN": (set_row("episode_2/rewards", 3, np.nan), "rewards: expected finite numbers, found NaN in row 3"),
    "a number of steps of another episode": (
        lambda f: (f["episode_0"].attrs.modify("total_steps", 7), f["episode_2"].attrs.modify("total_steps", 4)),
        "/episode_0/rewards: expected 7 rows as total_steps of the episode says, found 4",
    ),
    "one too many": (lambda f: f.create_group("episode_3"), "expected 3 episodes, found 4"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named(name: str, tmp_path: Path) -> None:
    change, message = DAMAGE[name]
    root = write_dataset(tmp_path, "x-v0") / "data"
    with h5py.File(root / MAIN_DATA, "a") as file:
        change(file)
    with pytest.raises(CorruptShardError, match=message + ".*; expected Minari's layout: "):
        read(open_minari(root), 0)


@pytest.mark.parametrize("jpeg", [b"", b"not a picture", None], ids=["empty", "text", "cut"])
def test_a_damaged_picture_is_named(jpeg: bytes | None, tmp_path: Path) -> None:
    root = write_dataset(tmp_path, "x-v0", observation=IMAGE, jpeg=True) / "data"
    with h5py.File(root / MAIN_DATA, "a") as file:
        rows = file["episode_0/observations"]
        rows[3] = np.frombuffer(jpeg if jpeg is not None else bytes(rows[3])[:20], np.uint8)
    with pytest.raises(CorruptShardError, match=r"episode_0/observations: expected a JPEG picture at row 3"):
        read(open_minari(root), 0)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (b"", "expected JSON"),
        (b"[1]", "expected an object"),
        (b'{"minari_version": "0.5.3", "observation_space": "{"}', "observation_space: expected JSON"),
        (b'{"minari_version": "0.5.3", "observation_space": "{\\"type\\": 5}"}', "observation_space: expected a space"),
        (
            b'{"minari_version": "0.5.3", "action_space": "{\\"type\\": \\"Dict\\", \\"subspaces\\": \\"x\\"}"}',
            "action_space: expected a space, found str 1 deep",
        ),
        (
            b'{"minari_version": "0.5.3", "action_space": "{\\"type\\": \\"Box\\", \\"shape\\": [\\"x\\"]}"}',
            "action_space: shape: expected whole numbers",
        ),
    ],
)
def test_damaged_metadata(metadata: bytes, message: str, tmp_path: Path) -> None:
    root = write_dataset(tmp_path, "x-v0") / "data"
    (root / METADATA).write_bytes(metadata)
    with pytest.raises(CorruptShardError, match=message):
        open_minari(root)


def test_a_space_that_no_manifest_could_hold_is_left_out() -> None:
    assert describe({"type": "Discrete", "n": -1}) is None
    assert describe({"type": "Box", "high": 10**400}) == {"type": "Box"}


def change_metadata(root: Path, **values: Any) -> None:
    metadata = json.loads((root / METADATA).read_text())
    (root / METADATA).write_text(json.dumps({**metadata, **values}))


@pytest.mark.parametrize("version", ["0.3.1", "0.6.0", "1.0.0", "0.55", "newest"])
def test_versions_that_are_not_known(version: str, tmp_path: Path) -> None:
    root = write_dataset(tmp_path, "x-v0") / "data"
    change_metadata(root, minari_version=version)
    with pytest.raises(SourceError, match=f"metadata.json: minari_version: expected 0.4 or 0.5, found '{version}'"):
        open_minari(root)


@pytest.mark.parametrize("name", ["minari_version", "total_episodes", "total_steps"])
@pytest.mark.parametrize("value", [None, [3]])
def test_metadata_that_every_version_has(name: str, value: Any, tmp_path: Path) -> None:
    root = write_dataset(tmp_path, "x-v0") / "data"
    change_metadata(root, **{name: value})
    with pytest.raises(SourceError, match=rf"metadata.json: {name}: expected .*, found .*; expected Minari's layout"):
        open_minari(root)


@pytest.mark.parametrize("said", [float("nan"), [-float("inf")], 2**64, {"a": [[[[[[[]]]]]]] * 1000}, "x" * 10_000])
def test_metadata_that_a_manifest_cannot_keep(said: Any, tmp_path: Path) -> None:
    root = write_dataset(tmp_path / "root", "x-v0") / "data"
    change_metadata(root, score=said, author="Ada")
    source = open_minari(root)
    assert source.notes["minari"].get("author") == "Ada"
    assert "score" not in source.notes["minari"]
    assert source.notes["not_taken"]["metadata.json: score"] == "not part of any step"
    rlx.convert(root, tmp_path / "data", from_="minari", jobs=1)


def test_notes_that_rlx_would_not_write(tmp_path: Path) -> None:
    root = write_dataset(tmp_path / "root", "x-v0") / "data"
    change_metadata(root, rlx={"notes": {"seeds": 2**64}, "losses": [], "schema": {}})
    rlx.convert(root, tmp_path / "data", from_="minari", jobs=1)


def test_another_number_of_steps(tmp_path: Path) -> None:
    root = write_dataset(tmp_path, "x-v0") / "data"
    change_metadata(root, total_steps=13)
    with pytest.raises(CorruptShardError, match=r"main_data\.hdf5: expected 13 steps, found 12"):
        open_minari(root)


def test_what_is_no_hdf5_dataset(tmp_path: Path) -> None:
    root = write_dataset(tmp_path, "x-v0") / "data"
    metadata = json.loads((root / METADATA).read_text())
    (root / METADATA).write_text(json.dumps({**metadata, "data_format": "arrow"}))
    with pytest.raises(SourceNotFoundError, match=r"0/metadata\.json is missing"):
        open_minari(root)
    with pytest.raises(SourceNotFoundError, match=r"metadata.json is missing"):
        open_minari(tmp_path / "nothing")


def episodes_or_error(root: Path) -> list[int] | str:
    try:
        source = open_minari(root)
        return [one.episode for shard in source.shards() for one in read(source, shard)]
    except CorruptShardError as exc:
        return str(exc)


def test_flipped_bytes_are_values_or_a_named_error(tmp_path: Path) -> None:
    root = write_dataset(tmp_path / "whole", "x-v0") / "data"
    content = (root / MAIN_DATA).read_bytes()
    damaged = tmp_path / "damaged"
    shutil.copytree(root, damaged)
    chance, found = random.Random(0), []
    for _ in range(60):
        changed = bytearray(content)
        for _ in range(20):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        (damaged / MAIN_DATA).write_bytes(changed)
        found.append(episodes_or_error(damaged))
    assert all(one == [0, 1, 2] or MAIN_DATA in one for one in found)
    assert any(isinstance(one, str) for one in found)
