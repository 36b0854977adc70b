"""Storages as TorchRL fills them: lanes side by side, collectors in turn, rings that wrap; and dumped buffers."""

import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from rlx.errors import CorruptShardError, SourceError
from rlx.formats.torchrl import FORMAT
from rlx.formats.torchrl.reader import open_torchrl
from rlx.testing.source import Trajectory, read
from tests.conftest import Cli

Steps = Any  # a TensorDict, which torch.cat and torch.stack are not known to take


@dataclass
class Lane:
    """One environment, stepped for ever: observation ``1000 * id + t``, an episode of 3 to 9 steps after the other."""

    ids: Iterator[int]
    seed: int
    id: int = 0
    step: int = 0
    length: int = 0

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.reset()

    def reset(self) -> None:
        self.id, self.step, self.length = next(self.ids), 0, int(self.random.integers(3, 10))

    def steps(self, count: int) -> Steps:
        """The next steps [count]."""
        rows: dict[str, list[Any]] = {name: [] for name in ("seen", "after", "done", "id")}
        for _ in range(count):
            number = 1000 * self.id + self.step
            self.step += 1
            done = self.step == self.length
            for name, value in zip(rows, (number, number + 1, done, self.id), strict=True):
                rows[name].append(value)
            if done:
                self.reset()
        ends = torch.tensor(rows["done"])[:, None]
        after = {"observation": torch.tensor(rows["after"])[:, None].float(), "reward": torch.ones(count, 1)}
        flags = {"done": ends, "terminated": ends, "truncated": ends & False}
        return TensorDict(
            {
                "observation": torch.tensor(rows["seen"])[:, None].float(),
                "action": torch.tensor(rows["seen"]),
                "next": {**after, **flags},
                "collector": {"traj_ids": torch.tensor(rows["id"])},
            },
            [count],
        )


def environments(count: int) -> list[Lane]:
    ids = iter(range(10_000))
    return [Lane(ids, seed) for seed in range(count)]


def ring(batches: list[Steps], capacity: int) -> tuple[Steps, int, int]:
    """What a storage holds after these batches [time, ...], how many rows of it, and where the next one goes."""
    rows: Steps = torch.cat(batches)
    held = rows.new_zeros(capacity, *rows.shape[1:])
    for number in range(len(rows)):
        held[number % capacity] = rows[number]
    return held, min(len(rows), capacity), len(rows) % capacity


def dump(path: Path, held: Steps, filled: int, written: int) -> Path:
    """A buffer as ``ReplayBuffer.dumps`` of TorchRL 0.14 writes it."""
    held.memmap(path / "storage")
    lanes = held.numel() // len(held)
    (path / "storage/storage_metadata.json").write_text(
        json.dumps({"metadata": {}, "is_pytree": False, "len": filled * lanes})
    )
    (path / "writer").mkdir()
    (path / "writer/metadata.json").write_text(json.dumps({"cursor": written % len(held), "write_count": written}))
    (path / "buffer_metadata.json").write_text(json.dumps({"batch_size": 8}))
    return path


def told(one: Trajectory) -> tuple[int, int, int, bool, bool]:
    """Id, first and last observation, whether it starts at a reset and whether it was cut."""
    seen = one["observation"][:, 0].astype(int)
    assert (np.diff(seen) == 1).all(), "no trajectory is made of two"
    assert (seen // 1000 == one.episode).all()
    return one.episode, int(seen[0]) % 1000, int(seen[-1]) % 1000, one.from_reset, one.cut


def episodes(lanes: list[Steps], skipped: int = 0) -> list[tuple[int, int, int, bool, bool]]:
    """The same of the steps of each environment, of which the first ones were overwritten: the slow and obvious way."""
    found = []
    for rows in lanes:
        seen, done = rows["observation"][:, 0].int().tolist(), rows["next", "done"][:, 0].tolist()
        start = skipped
        for row in range(skipped, len(seen)):
            if done[row] or row == len(seen) - 1:
                first = seen[start] % 1000
                is_known = start > skipped or not skipped
                found.append((seen[row] // 1000, first, seen[row] % 1000 + 1, first == 0 and is_known, not done[row]))
                start = row + 1
    return found


@pytest.mark.parametrize("capacity", [200, 120, 100, 97])
@pytest.mark.parametrize("count", [2, 3])
def test_time_before_lanes_as_torchrl_stores_them(tmp_path: Path, count: int, capacity: int) -> None:
    environments_ = environments(count)
    lanes: list[Steps] = [torch.cat([one.steps(20) for _ in range(6)]) for one in environments_]
    held, filled, _ = ring([torch.stack(list(lanes), 1)], capacity)
    source = open_torchrl(dump(tmp_path / "buffer", held, filled, 120))
    assert source.notes["time_dimension"] == 0
    assert [told(one) for one in read(source, 0)] == episodes(lanes, skipped=max(0, 120 - capacity))


@pytest.mark.parametrize("capacity", [400, 240, 100, 97])
def test_collectors_in_turn(tmp_path: Path, capacity: int) -> None:
    """Batches of 20 steps of two collectors one after the other: no episode is cut where a batch ends."""
    one, other = environments(2)
    batches = [lane.steps(20) for _ in range(6) for lane in (one, other)]
    held, filled, _ = ring(list(batches), capacity)
    source = open_torchrl(dump(tmp_path / "buffer", held, filled, 240))
    found = [told(trajectory) for trajectory in read(source, 0)]
    is_left = torch.arange(240) >= 240 - filled
    expected = []
    for first in (0, 20):
        mine = (torch.arange(240) % 40 // 20 == first // 20) & is_left
        expected += episodes([torch.cat(list(batches))[mine]])
    assert sorted(piece[:3] for piece in found) == sorted(piece[:3] for piece in expected)
    assert sorted(piece[4] for piece in found) == sorted(piece[4] for piece in expected)
    by_first = {piece[:2]: piece[3] for piece in found}
    assert not any(is_reset for (_, first), is_reset in by_first.items() if first), "pieces do not start at a reset"
    if capacity >= 240:
        assert all(by_first.values())


def test_a_wrapped_ring_whose_cursor_is_not_told(tmp_path: Path) -> None:
    """Of ``storage.dumps`` alone: what follows the last row stands in the first."""
    (lane,) = environments(1)
    steps = lane.steps(130)
    held, filled, _ = ring([steps], 100)
    path = dump(tmp_path / "buffer", held, filled, 130) / "storage"
    (path.parent / "writer/metadata.json").unlink()
    found = {told(one)[:3] for one in read(open_torchrl(path), 0)}
    assert found == {piece[:3] for piece in episodes([steps], skipped=30)}


def test_fragments_before_time(tmp_path: Path) -> None:
    """A storage that is extended along its first dimension: batches [2, 20], one below the other."""
    one, other = environments(2)
    batches = [[one.steps(20), other.steps(20)] for _ in range(6)]
    held, filled, _ = ring([torch.stack(list(batch)) for batch in batches], 30)
    source = open_torchrl(dump(tmp_path / "buffer", held, filled, 12))
    assert source.notes["time_dimension"] == 1
    expected = episodes([torch.cat([batch[lane] for batch in batches]) for lane in (0, 1)])
    assert sorted(map(told, read(source, 0))) == sorted(expected)


def test_three_dimensions(tmp_path: Path) -> None:
    lanes = [one.steps(30) for one in environments(6)]
    held: Steps = torch.stack(list(lanes), 1).reshape(30, 3, 2)
    source = open_torchrl(dump(tmp_path / "buffer", held, 30, 30))
    assert source.notes["time_dimension"] == 0
    assert [told(one) for one in read(source, 0)] == episodes(lanes)


def test_a_flag_in_mid_episode_ends_a_piece_and_the_rest_is_one_too(tmp_path: Path) -> None:
    """What ``set_truncated=True`` writes at the end of each batch."""
    (lane,) = environments(1)
    steps = lane.steps(40)
    steps["next", "truncated"][[9, 19, 29, 39]] |= ~steps["next", "terminated"][[9, 19, 29, 39]]
    steps["next", "done"] = steps["next", "truncated"] | steps["next", "terminated"]
    held, filled, _ = ring([steps], 100)
    found = list(map(told, read(open_torchrl(dump(tmp_path / "buffer", held, filled, 40)), 0)))
    assert all(is_reset == (first == 0) for _, first, _, is_reset, _ in found)
    resumed = {(id, first) for id, first, _, _, _ in found if first}
    assert resumed, "a flag stands in the middle of an episode"
    assert all(cut for id, _, last, _, cut in found if (id, last) in resumed)


def test_is_init_says_where_an_episode_starts(tmp_path: Path) -> None:
    (lane,) = environments(1)
    steps = lane.steps(130)
    steps["is_init"] = steps["observation"] % 1000 == 0
    held, filled, _ = ring([steps], 100)
    found = list(map(told, read(open_torchrl(dump(tmp_path / "buffer", held, filled, 130)), 0)))
    assert all(is_reset == (first == 0) for _, first, _, is_reset, _ in found)


def without_ids(steps: Steps) -> Steps:
    return steps.exclude("collector")


def without_next(steps: Steps) -> Steps:
    return steps.exclude(("next", "observation"))


def alike(steps: Steps) -> Steps:
    """Every step of every environment shows the same."""
    steps = steps.exclude("collector")
    steps["observation"] = steps["next", "observation"] = torch.zeros_like(steps["observation"])
    return steps


@pytest.mark.parametrize("change", [without_ids, without_next])
@pytest.mark.parametrize("time", [0, 1])
def test_ids_or_observations_tell_which_dimension_is_time(
    tmp_path: Path, change: Callable[..., Any], time: int
) -> None:
    lanes = [change(one.steps(30)) for one in environments(2)]
    source = open_torchrl(_written(tmp_path, torch.stack(lanes, 1 - time)))
    assert source.notes["time_dimension"] == time


@pytest.mark.parametrize("change", [alike, lambda steps: without_ids(without_next(steps))])
def test_time_is_never_guessed(tmp_path: Path, change: Callable[..., Any]) -> None:
    path = _written(tmp_path, torch.stack([change(one.steps(30)) for one in environments(2)], 1))
    with pytest.raises(SourceError, match=r"which dimension of the batch \[30, 2\] is time: 0 or 1") as caught:
        open_torchrl(path)
    assert caught.value.hint == f"rlx convert {path} DST --from torchrl:time_dim=0"
    assert open_torchrl(path, time_dim=1).notes["time_dimension"] == 1
    with pytest.raises(SourceError, match=r"time_dim=2: expected a dimension of the batch \[30, 2\], 0 to 1"):
        open_torchrl(path, time_dim=2)


def _written(tmp_path: Path, steps: Steps) -> Path:
    steps.memmap(tmp_path / "steps")
    return tmp_path / "steps"


def test_padding_is_no_step(tmp_path: Path) -> None:
    """What ``split_trajs=True`` pads is masked."""
    lanes = [one.steps(10) for one in environments(2)]
    steps: Steps = torch.stack(list(lanes))
    mask = torch.ones(2, 10, dtype=torch.bool)
    mask[1, 7:] = False
    steps["collector", "mask"] = mask
    steps[1, 7:] = steps[1, 7:].apply(torch.zeros_like)
    source = open_torchrl(_written(tmp_path, steps))
    assert source.padding == 3
    assert [told(one)[:3] for one in read(source, 0)] == [piece[:3] for piece in episodes([lanes[0], lanes[1][:7]])]


@pytest.mark.parametrize("value", [float("nan"), -0.0])
@pytest.mark.parametrize("name", ["score", "info/score", "hidden"])
def test_what_is_no_observation_breaks_no_episode(tmp_path: Path, name: str, value: float) -> None:
    (lane,) = environments(1)
    steps = lane.steps(30)
    path = tuple(name.split("/"))
    steps[path] = torch.full((30, 1), value)
    steps[("next", *path)] = torch.full((30, 1), value)
    steps[("next", *path)][3] = abs(value)
    source = open_torchrl(_written(tmp_path, steps))
    assert [told(one) for one in read(source, 0)] == episodes([steps])
    assert np.array_equal(read(source, 0)[0][name][0], [value], equal_nan=True)


def test_an_observation_may_be_minus_zero(tmp_path: Path) -> None:
    (lane,) = environments(1)
    steps = lane.steps(30)
    steps["observation"][1:3] = -0.0
    steps["next", "observation"][:2] = 0.0
    assert len(read(open_torchrl(_written(tmp_path, steps)), 0)) == len(episodes([steps]))


@pytest.mark.parametrize(
    ("name", "kept", "left"), [("score", "score", "next/score"), ("info/score", "next/info/score", "info/score")]
)
def test_what_does_not_go_on_is_kept_once_and_named(tmp_path: Path, name: str, kept: str, left: str) -> None:
    (lane,) = environments(1)
    steps = lane.steps(30)
    for number, path in enumerate((name, f"next/{name}")):
        steps[tuple(path.split("/"))] = torch.arange(30) + 100 * number
    source = open_torchrl(_written(tmp_path, steps))
    assert source.notes["not_taken"] == {left: f"{kept} does not continue from step to step"}
    found = np.concatenate([one[name] for one in read(source, 0)])
    assert found.tolist() == steps[tuple(kept.split("/"))].tolist()
    assert len(read(source, 0)) == len(episodes([steps]))


def test_a_buffer_is_recognised_and_its_state_is_named(tmp_path: Path) -> None:
    (lane,) = environments(1)
    held, filled, _ = ring([lane.steps(30)], 100)
    path = dump(tmp_path / "buffer", held, filled, 30)
    (path / "sampler").mkdir()
    (path / "transform.t").write_bytes(b"pickled")
    assert FORMAT.recognises(path)
    source = open_torchrl(path)
    assert source.id == "buffer"
    assert list(source.notes["not_taken"]) == ["sampler", "transform.t"]


BAD_METADATA: dict[str, tuple[str, dict[str, Any], str]] = {
    "too long": ("storage/storage_metadata.json", {"len": 500}, "len: expected at most 200, found 500"),
    "no lane": ("storage/storage_metadata.json", {"len": 31}, "len: expected a multiple of 2, found 31"),
    "cursor": ("writer/metadata.json", {"cursor": 101}, "cursor: expected at most 100, found 101"),
    "no cursor": ("writer/metadata.json", {}, "cursor: expected at most 100, found None"),
}


@pytest.mark.parametrize("kind", BAD_METADATA)
def test_bad_metadata(tmp_path: Path, kind: str) -> None:
    name, content, message = BAD_METADATA[kind]
    lanes = [one.steps(130) for one in environments(2)]
    held, filled, _ = ring([torch.stack(list(lanes), 1)], 100)
    path = dump(tmp_path / "buffer", held, filled, 130)
    (path / name).write_text(json.dumps(content))
    with pytest.raises(CorruptShardError, match=message):
        open_torchrl(path)


def test_an_ensemble_and_a_tree_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "storage/0").mkdir(parents=True)
    (tmp_path / "storage/1").mkdir()
    (tmp_path / "buffer_metadata.json").write_text("{}")
    with pytest.raises(SourceError, match="holds 2 storages, 0, 1; expected one") as caught:
        open_torchrl(tmp_path)
    assert str(caught.value.hint).startswith(f"rlx convert {tmp_path}/storage/0 DST")
    tree = tmp_path / "tree"
    (tree / "storage").mkdir(parents=True)
    (tree / "buffer_metadata.json").write_text("{}")
    (tree / "storage/storage_metadata.json").write_text(json.dumps({"is_pytree": True}))
    with pytest.raises(SourceError, match="holds a tree of tensors"):
        open_torchrl(tree)


def test_texts_are_fields_and_other_objects_are_named(tmp_path: Path) -> None:
    lanes = [one.steps(30) for one in environments(2)]
    words: Steps = [[f"task {number % 3} of {lane}" for number in range(30)] for lane in range(2)]
    steps: Steps = torch.stack(list(lanes))
    steps["task"] = NonTensorStack.from_list(words)
    steps["goal"] = NonTensorData("home", batch_size=[2, 30])
    counts: Steps = [[*range(30)]] * 2
    steps["count"] = NonTensorStack.from_list(counts)
    source = open_torchrl(_written(tmp_path, steps))
    assert source.notes["not_taken"] == {"count": "neither numbers nor text"}
    found = read(source, 0)
    assert np.concatenate([one["task"] for one in found]).tolist() == [*words[0], *words[1]]
    assert set(np.concatenate([one["goal"] for one in found])) == {"home"}
    assert [told(one) for one in found] == episodes(lanes)


def test_several_texts_of_a_step(tmp_path: Path) -> None:
    (lane,) = environments(1)
    steps = lane.steps(3)
    steps["words"] = NonTensorStack("a", "b", "c")
    path = _written(tmp_path, steps)
    file = path / "words/meta.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "data": [["a", "b"], ["c", ""], ["d", "e"]]}))
    source = open_torchrl(path)
    assert source.schema["words"].shape == (2,)
    assert read(source, 0)[0]["words"].tolist() == [["a", "b"], ["c", ""], ["d", "e"]]


def test_text_that_is_pickled_is_not_taken(tmp_path: Path) -> None:
    (lane,) = environments(1)
    steps = lane.steps(30)
    steps["task"] = NonTensorData("home", batch_size=[30])
    path = _written(tmp_path, steps)
    (path / "task/meta.json").write_text("{}")
    (path / "task/other.pickle").write_bytes(b"cos\nsystem\n(S'touch /tmp/bad'\ntR.")
    assert open_torchrl(path).notes["not_taken"] == {"task": "neither numbers nor text"}


class TestAsTorchRLWrites:
    """The storages and buffers of the installed TorchRL, which the test extra leaves out: pip install 'rlx[bench]'."""

    @pytest.fixture
    def data(self) -> Any:
        return pytest.importorskip("torchrl.data", reason="TorchRL is not installed")

    @pytest.mark.parametrize("storage", ["LazyMemmapStorage", "LazyTensorStorage"])
    @pytest.mark.parametrize(("ndim", "capacity"), [(1, 400), (1, 100), (2, 400), (2, 100)])
    def test_a_buffer(self, tmp_path: Path, data: Any, storage: str, ndim: int, capacity: int) -> None:
        lanes = environments(2)
        buffer = data.ReplayBuffer(storage=getattr(data, storage)(capacity, ndim=ndim), batch_size=8)
        batches = []
        for _ in range(6):
            batches.append([lane.steps(20) for lane in lanes])
            steps: Steps = torch.stack(list(batches[-1]))
            buffer.extend(steps if ndim == 2 else steps.reshape(-1))
        buffer.dumps(tmp_path / "buffer")
        source = open_torchrl(tmp_path / "buffer")
        kept = len(buffer) // 2 if ndim == 2 else 120 - (240 - len(buffer)) // 2
        whole: list[Steps] = [torch.cat([batch[lane] for batch in batches]) for lane in (0, 1)]
        expected = episodes(whole, skipped=120 - kept)
        found = [told(one) for one in read(source, 0)]
        if capacity == 400:
            assert sorted(found) == sorted(expected)
            assert len(found) == len({id for id, *_ in found}), "one trajectory per episode"
        elif ndim == 2:
            assert found == expected
        assert source.notes.get("time_dimension") == (0 if ndim == 2 else None)

    def test_texts_and_a_sampler(self, tmp_path: Path, data: Any) -> None:
        (lane,) = environments(1)
        steps = lane.steps(30)
        steps["task"] = NonTensorStack(*[f"task {number % 3}" for number in range(30)])
        sampler = data.SliceSampler(slice_len=2)
        buffer = data.TensorDictReplayBuffer(storage=data.LazyTensorStorage(100), sampler=sampler, batch_size=4)
        buffer.extend(steps)
        buffer.dumps(tmp_path / "buffer")
        found = read(open_torchrl(tmp_path / "buffer"), 0)
        assert np.concatenate([one["task"] for one in found]).tolist() == [f"task {number % 3}" for number in range(30)]
        assert [told(one) for one in found] == episodes([steps])

    def test_out_again_every_value_is_as_it_was(self, cli: Cli, tmp_path: Path, data: Any) -> None:
        """What a policy wrote, its state, infos and texts too, through a buffer of TorchRL's on both ends."""
        (lane,) = environments(1)
        steps = lane.steps(60)
        steps = steps[: int(steps["next", "done"].nonzero()[-1, 0]) + 1]
        count = len(steps)
        state = torch.rand(count + 1, 2)
        steps["h"], steps["next", "h"] = state[:-1], state[1:]
        steps["action_log_prob"] = torch.rand(count)
        steps["params", "loc"] = torch.rand(count, 2, dtype=torch.float64)
        steps["next", "info", "score"] = torch.full((count, 1), float("nan"))
        steps["task"] = NonTensorStack(*[f"task {number % 3}" for number in range(count)])
        buffer = data.ReplayBuffer(storage=data.LazyTensorStorage(100), batch_size=4)
        buffer.extend(steps)
        buffer.dumps(tmp_path / "buffer")
        assert cli("convert", tmp_path / "buffer", tmp_path / "data").code == 0
        result = cli("convert", tmp_path / "data", tmp_path / "out", "--to", "torchrl")
        assert (result.code, result.err) == (0, "")
        storage = data.TensorStorage(TensorDict.load_memmap(tmp_path / "out"))
        found = data.ReplayBuffer(storage=storage, batch_size=4)[:]
        for key in steps.keys(True, True):
            if isinstance(steps[key], torch.Tensor):
                assert found[key].dtype == steps[key].dtype, key
                np.testing.assert_array_equal(found[key].numpy(), steps[key].numpy(), err_msg=str(key))
            else:
                assert list(found[key]) == list(steps[key])


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"prefix": "collector"},
        {"prefix": "data"},
        {"trajectory_key": "trajectory"},
        {"trajectory_key": ("data", "trajectory")},
        {"done_key": "done"},
    ],
)
@pytest.mark.parametrize("has_ids", [True, False])
def test_padding_wherever_torchrl_marks_it(keys: dict[str, Any], has_ids: bool, tmp_path: Path) -> None:
    with warnings.catch_warnings(action="ignore"):
        utils = pytest.importorskip("torchrl.collectors.utils")
    rows = environments(1)[0].steps(30)
    whole = rows.clone()
    ids = rows.pop("collector")["traj_ids"]
    if (named := keys.get("trajectory_key")) is not None:
        rows[named] = ids
    elif has_ids:
        rows[(*filter(None, [keys.get("prefix")]), "traj_ids")] = ids
    padded = utils.split_trajectories(rows, **keys)
    assert padded.ndim == 2
    whole.memmap(tmp_path / "whole")
    padded.memmap(tmp_path / "padded")
    source = open_torchrl(tmp_path / "padded")
    assert "mask" not in {name.split("/")[-1] for name in source.schema}
    wanted = read(open_torchrl(tmp_path / "whole"), 0)
    found = read(source, 0)
    assert [one["observation"].tolist() for one in found] == [one["observation"].tolist() for one in wanted]
    assert sum(one.steps for one in found) == 30
    assert source.padding == padded.numel() - 30


def test_a_mask_that_pads_nothing_is_a_field(tmp_path: Path) -> None:
    lanes = [lane.steps(12) for lane in environments(2)]
    steps: Steps = torch.stack(lanes)
    steps["mask"] = torch.arange(24).reshape(2, 12) % 3 == 0
    steps.memmap(tmp_path / "a")
    source = open_torchrl(tmp_path / "a")
    assert source.schema["mask"].dtype == "bool"
    assert sum(one.steps for one in read(source, 0)) == 24
