"""A training run that is killed continues to the bit; what a checkpoint writes, refuses and reports."""

import errno
import logging
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

import rlx
from rlx.buffer import (
    CompressedStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
)
from rlx.errors import (
    CorruptDatasetError,
    DatasetExistsError,
    DatasetLockedError,
    DiskFullError,
    FormatVersionError,
    OptionError,
    SchemaMismatchError,
)
from tests.damage import rewrite
from tests.factories import make_block, write_dataset
from tests.killed_fork import changes, killed_before

pytest.importorskip("gymnasium", reason="gymnasium is not installed")

from scripts.recipes import dqn, dqn_log, r2d2

Work = Callable[[], object]


def _trains(name: str, directory: Path) -> Work:
    """Return a function that runs a recipe in its short form, and writes the hash of its weights."""
    checkpoint = ["--checkpoint", str(directory / "run")]
    if name == "pong":
        main: Any = dqn_log.main
        given = "steps=48 shard-steps=40 random-steps=16 decay-steps=20 target-every=12 every=8"
    elif name == "recurrent":
        main = r2d2.main
        given = "frames=256 lanes=2 length=16 first-frames=64 updates=1 hidden=8 capacity=200 every=64 episodes=1"
    else:
        main = dqn.main
        given = "frames=384 length=32 updates=2 random-frames=64 hidden=16 capacity=300 every=64 episodes=1 prioritized"
    options = [f"--{option}" for option in given.split()]

    def work() -> None:
        directory.mkdir(exist_ok=True)
        with redirect_stdout(StringIO()) as out:
            main([*options, *checkpoint])
        (directory / "hash").write_text(out.getvalue().rsplit("weights ", 1)[1])

    return work


@pytest.mark.parametrize("name", ["cartpole", "recurrent", "pong"])
def test_a_killed_run_continues_to_the_bit(name: str, tmp_path: Path) -> None:
    if name == "pong":
        pytest.importorskip("ale_py")
    count = whole = changes(_trains(name, tmp_path / "whole"))
    work = _trains(name, tmp_path / "killed")
    for part in (0.4, 0.5):  # the second of what the resumed run changes
        assert killed_before(work, int(count * part)) == -signal.SIGKILL
        count = int(count * (1 - part))
    assert (tmp_path / "killed" / "run" / "checkpoint.json").is_file()
    assert changes(work) < whole
    assert (tmp_path / "killed" / "hash").read_text() == (tmp_path / "whole" / "hash").read_text()


@pytest.mark.soak
@pytest.mark.parametrize("name", ["cartpole", "recurrent", "pong"])
def test_runs_that_are_killed_at_any_moment_continue_to_the_bit(name: str, tmp_path: Path) -> None:
    began = time.monotonic()
    assert _waited(_started(_trains(name, tmp_path / "whole"))) == 0
    whole = time.monotonic() - began
    expected = (tmp_path / "whole" / "hash").read_text()
    rng = random.Random(0)
    resumed = 0
    for number in range(20):
        directory = tmp_path / str(number)
        while not _is_killed(_trains(name, directory), rng.uniform(0.0, whole)):
            shutil.rmtree(directory)
            whole *= 0.9  # it is faster now
        resumed += (directory / "run" / "checkpoint.json").is_file()
        _is_killed(_trains(name, directory), rng.uniform(0.0, whole))
        assert _waited(_started(_trains(name, directory))) == 0
        assert (directory / "hash").read_text() == expected, number
    assert resumed > 5


def _is_killed(work: Work, seconds: float) -> bool:
    pid = _started(work)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    return _waited(pid) == -signal.SIGKILL


def _started(work: Work) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def _waited(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _steps(first: int, count: int, size: int = 3) -> TensorDict:
    """Return steps of episodes of 7."""
    number = torch.arange(first, first + count)
    observation = torch.stack([number + i / 10 for i in range(size)], 1)
    done = ((number + 1) % 7 == 0)[:, None]
    after = {"observation": observation + 1, "reward": number[:, None].float(), "done": done, "terminated": done}
    return TensorDict({"observation": observation, "action": number % 2, "next": after}, [count])


_BUFFERS: dict[str, Callable[[], ReplayBuffer]] = {
    "tensors": lambda: ReplayBuffer(storage=LazyTensorStorage(50), sampler=RandomSampler(seed=1), batch_size=8),
    "list": lambda: ReplayBuffer(storage=ListStorage(50), sampler=SamplerWithoutReplacement(seed=1), batch_size=8),
    "slices": lambda: ReplayBuffer(
        storage=LazyTensorStorage(50), sampler=SliceSampler(slice_len=4, seed=1), batch_size=8
    ),
    "priorities": lambda: ReplayBuffer(
        storage=LazyTensorStorage(50), sampler=PrioritizedSampler(50, 0.6, 0.4, seed=1), batch_size=8
    ),
    "images": lambda: ReplayBuffer(storage=CompressedStorage(50), sampler=RandomSampler(seed=1), batch_size=8),
}


@pytest.mark.parametrize("kind", _BUFFERS)
def test_a_buffer_continues_with_the_same_batches(kind: str, tmp_path: Path) -> None:
    size = 300 if kind == "images" else 3
    buffer, other = _BUFFERS[kind](), _BUFFERS[kind]()
    with rlx.Checkpoint(tmp_path / "run", buffer=buffer) as checkpoint:
        for first in range(0, 200, 20):  # the ring goes round four times
            rows = buffer.extend(_steps(first, 20, size))
            buffer.update_priority(rows, 0.5)
            if first == 100:
                buffer[3] = _steps(1000, 1, size)[0]
            if first == 120:
                buffer.empty()
                buffer.extend(_steps(300, 5, size))
            if first == 160:
                buffer.set_storage(_BUFFERS[kind]().storage)
                buffer.extend(_steps(400, 30, size))
            checkpoint.save(first)
            checkpoint.wait()
            restored = _restored(tmp_path / "run", other)
            assert restored == first
            assert len(other) == len(buffer)
            _same(buffer[:], other[:])
            for _ in range(3):
                _same(buffer.sample(), other.sample())


def _restored(path: Path, buffer: ReplayBuffer) -> int:
    """Restore from a copy, as the checkpoint itself is locked by its writer."""
    copied = path.with_name("copy")
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(path, copied)
    with rlx.Checkpoint(copied, buffer=buffer) as checkpoint:
        return checkpoint.restore()


def _same(one: Any, other: Any) -> None:
    assert sorted(map(str, one.keys(True, True))) == sorted(map(str, other.keys(True, True)))
    for key in one.keys(True, True):
        assert torch.equal(one[key], other[key]), key


def test_a_save_writes_what_changed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    buffer = ReplayBuffer(storage=LazyTensorStorage(10_000), batch_size=8)
    buffer.extend(_steps(0, 9_000, 50))

    def written() -> int:
        return sum(file.stat().st_size for file in path.rglob("*.zst"))

    with rlx.Checkpoint(path, buffer=buffer) as checkpoint:
        checkpoint.save(1)
        checkpoint.wait()
        first = written()
        buffer.extend(_steps(9_000, 100, 50))
        checkpoint.save(2)
        checkpoint.wait()
        assert 0 < written() - first < first / 20
    with rlx.Checkpoint(path, buffer=buffer) as checkpoint:  # a resumed run does not begin anew either
        checkpoint.restore()
        before = written()
        buffer.extend(_steps(9_100, 100, 50))
        checkpoint.save(3)
        checkpoint.wait()
        assert 0 < written() - before < first / 20
        for number in range(40):  # steps that have been overwritten take no space
            if number == 10:
                buffer.empty()
            buffer.extend(_steps(number * 1_000, 1_000, 50))
            checkpoint.save(number)
            saved = checkpoint._buffers["buffer"]
            counted = np.unique(saved._owner[saved._owner >= 0], return_counts=True)
            assert {number: saved._live[number] for number in saved._segments} == dict(
                zip(*(column.tolist() for column in counted), strict=True)
            )
        checkpoint.wait()
        assert written() < 2.5 * first


def test_a_loader_of_a_buffer_that_grows_continues(tmp_path: Path) -> None:
    def parts() -> dict[str, Any]:
        buffer = _BUFFERS["tensors"]()
        buffer.extend(_steps(0, 8))
        return {"loader": rlx.loader(buffer, 4), "buffer": buffer}

    mine, others = parts(), parts()
    assert len(list(mine["loader"])) == 2
    mine["buffer"].extend(_steps(8, 20))
    batches = iter(mine["loader"])
    next(batches)
    with rlx.Checkpoint(tmp_path / "run", **mine) as checkpoint:
        checkpoint.save(1)
    with rlx.Checkpoint(tmp_path / "run", **others) as checkpoint:
        checkpoint.restore()
    left = list(others["loader"])
    assert len(left) == 6
    for one, other in zip(batches, left, strict=True):
        _same(one, other)


def test_parts_and_values(tmp_path: Path) -> None:
    def parts() -> dict[str, Any]:
        torch.manual_seed(3)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.Adam(model.parameters())
        return {
            "model": model,
            "optimizer": optimizer,
            "schedule": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
            "torch_random": torch.Generator().manual_seed(4),
            "numpy_random": np.random.default_rng(4),
            "python_random": random.Random(4),
        }

    def drawn(found: dict[str, Any]) -> list[Any]:
        found["optimizer"].zero_grad()
        (found["model"](torch.ones(1, 2)).sum() ** 2 + torch.rand(())).backward()
        found["optimizer"].step()
        found["schedule"].step()
        weights = found["model"].weight.tolist()
        mine = torch.rand(2, generator=found["torch_random"]).tolist(), found["numpy_random"].random()
        return [weights, mine, found["python_random"].random(), random.random(), np.random.rand(), torch.rand(2)]  # noqa: NPY002

    mine = parts()
    drawn(mine)
    with rlx.Checkpoint(tmp_path / "run", **mine) as checkpoint:
        assert checkpoint.restore() == 0
        checkpoint.save(7, best=np.float32(1.5), returns=np.arange(3), done=[True, None, "x"])
        after = drawn(mine)
    others = parts()
    with rlx.Checkpoint(tmp_path / "run", **others) as checkpoint:
        assert checkpoint.restore() == 7
        assert checkpoint.values["best"] == np.float32(1.5)
        assert checkpoint.values["returns"].tolist() == [0, 1, 2]
        assert checkpoint.values["done"] == [True, None, "x"]
        assert str(drawn(others)) == str(after)
        with pytest.raises(DatasetLockedError):
            rlx.Checkpoint(tmp_path / "run", **others)
    with rlx.Checkpoint(tmp_path / "run", model=others["model"]) as checkpoint, pytest.raises(SchemaMismatchError):
        checkpoint.restore()


def test_a_save_that_fails_leaves_the_last_one_and_the_next_writes_all(tmp_path: Path) -> None:
    """Whether a part cannot be read, or the disk is full while files are written."""
    path, model = tmp_path / "run", torch.nn.Linear(1, 1)
    model.hidden_state = None  # type: ignore[assignment]  # a common attribute of recurrent modules
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=8)
    buffer.extend(_steps(0, 20))
    with rlx.Checkpoint(path, buffer=buffer, model=model) as checkpoint:
        checkpoint.save(1)
        checkpoint.wait()
        buffer.extend(_steps(20, 20))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("rlx.buffer.checkpoint_parts.write_blocks", _full)
            checkpoint.save(2)
            with pytest.raises(DiskFullError):
                checkpoint.wait()
        buffer.extend(_steps(40, 5))
        with pytest.raises(SchemaMismatchError):
            checkpoint.save(3, kind=signal.SIGINT)
        (path / f"{'0' * 32}.pt.partial").touch()  # of a process that was killed
        checkpoint.save(4, name=np.str_("x"))
    with pytest.raises(ValueError, match="closed"):
        checkpoint.save(5)
    assert not list(path.glob("*.partial"))
    restored = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=8)
    with rlx.Checkpoint(path, buffer=restored, model=model) as checkpoint:
        assert checkpoint.restore() == 4
        assert checkpoint.values == {"name": "x"}
    _same(restored[:], buffer[:])


def _full(*_: Any) -> Any:
    raise OSError(errno.ENOSPC, "no space left")


def test_what_is_refused(tmp_path: Path) -> None:
    class Odd:
        def state_dict(self) -> Any:
            return {"made": [object()]}

        def load_state_dict(self, state: Any) -> None:
            raise AssertionError(state)

    with pytest.raises(TypeError, match="thing: expected something with state_dict"):
        rlx.Checkpoint(tmp_path / "run", thing=object())
    with rlx.Checkpoint(tmp_path / "run", odd=Odd()) as checkpoint:
        with pytest.raises(SchemaMismatchError, match=r"odd\['made'\]\[0\] is a object"):
            checkpoint.save(1)
        assert checkpoint.restore() == 0
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").touch()
    with pytest.raises(DatasetExistsError):
        rlx.Checkpoint(tmp_path / "other")


@pytest.mark.parametrize("step", [None, "x", [1], float("nan"), 1.7, torch.tensor(1.5), -1])
def test_a_step_that_is_no_number_is_refused_and_the_last_checkpoint_stays(step: Any, tmp_path: Path) -> None:
    with rlx.Checkpoint(tmp_path / "run") as checkpoint:
        checkpoint.save(100)
        with pytest.raises(OptionError, match=r"step .*: expected"):
            checkpoint.save(step)
    with rlx.Checkpoint(tmp_path / "run") as checkpoint:
        assert checkpoint.restore() == 100


@pytest.mark.parametrize("step", [np.int64(7), torch.tensor(7)])
def test_a_step_may_be_a_whole_number_of_numpy_or_torch(step: Any, tmp_path: Path) -> None:
    with rlx.Checkpoint(tmp_path / "run") as checkpoint:
        checkpoint.save(step)
        assert checkpoint.restore() == 7


@pytest.mark.parametrize("value", [{"rlx.array": 5}, {"rlx.int": "z"}, {1j: 2}, {1, 2}, b"x", np.array(["x"])])
def test_values_that_cannot_be_restored_are_refused_by_name(value: Any, tmp_path: Path) -> None:
    with rlx.Checkpoint(tmp_path / "run") as checkpoint:
        checkpoint.save(100)
        checkpoint.wait()
        files = sorted((tmp_path / "run").iterdir())
        with pytest.raises(SchemaMismatchError, match=r"^values\['best'\]"):
            checkpoint.save(200, best=value)
        assert sorted((tmp_path / "run").iterdir()) == files
        assert checkpoint.restore() == 100


@pytest.mark.parametrize("damaged", ["checkpoint.json", "*.pt", "*/segment.json", "*/0.zst"])
def test_damaged_files_are_named(damaged: str, tmp_path: Path) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(50), batch_size=8)
    buffer.extend(_steps(0, 20))
    with rlx.Checkpoint(tmp_path / "run", buffer=buffer) as checkpoint:
        checkpoint.save(1)
        checkpoint.wait()
        (file,) = (tmp_path / "run").glob(damaged)
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 0xFF
        file.write_bytes(data)
        with pytest.raises(CorruptDatasetError, match=file.name):
            checkpoint.restore()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"buffers": {}}, CorruptDatasetError, "lists no steps of buffer"),
        ({"format": "rlx.buffer"}, CorruptDatasetError, "is damaged: .*found 'rlx.buffer'"),
        ({"version": 3}, FormatVersionError, "is of format version 3, expected 2"),
        ({"state": {"file": "../secret", "crc32c": 1}}, CorruptDatasetError, "secret is damaged: its checksum differs"),
    ],
)
def test_a_list_of_files_that_lies(
    changes: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(50), batch_size=8)
    with rlx.Checkpoint(tmp_path, buffer=buffer) as checkpoint:
        checkpoint.save(1)
        checkpoint.wait()
        rewrite(tmp_path / "checkpoint.json", **changes)
        with pytest.raises(error, match=message):
            checkpoint.restore()


def test_steps_of_a_larger_storage_are_refused(tmp_path: Path) -> None:
    large, small = (ReplayBuffer(storage=LazyTensorStorage(size), batch_size=8) for size in (60, 50))
    large.extend(_steps(0, 60))
    for name, buffer in (("large", large), ("small", small)):
        with rlx.Checkpoint(tmp_path / name, buffer=buffer) as checkpoint:
            checkpoint.save(1)
    with (
        rlx.Checkpoint(tmp_path / "large", buffer=small) as checkpoint,
        pytest.raises(SchemaMismatchError, match="checkpoint of a storage with max_size 60, found 50"),
    ):
        checkpoint.restore()
    (segment,) = (entry for entry in (tmp_path / "large").iterdir() if entry.is_dir())
    shutil.copytree(segment, tmp_path / "small" / segment.name)
    rewrite(tmp_path / "small/checkpoint.json", buffers={"buffer": {"segments": [segment.name]}})
    with (
        rlx.Checkpoint(tmp_path / "small", buffer=small) as checkpoint,
        pytest.raises(CorruptDatasetError, match="a segment has rows that the storage lacks"),
    ):
        checkpoint.restore()


def test_names_of_files_stay_inside(tmp_path: Path) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(50), batch_size=8)
    buffer.extend(_steps(0, 20))
    with rlx.Checkpoint(tmp_path / "run", buffer=buffer) as checkpoint:
        checkpoint.save(1)
        checkpoint.wait()
        rewrite(tmp_path / "run/checkpoint.json", buffers={"buffer": {"segments": ["../elsewhere"]}})
        with pytest.raises(CorruptDatasetError, match=r"segment '\.\./elsewhere'"):
            checkpoint.restore()


def test_environments_that_hide_their_state_begin_new_episodes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import gymnasium  # noqa: PLC0415

    class Hidden(gymnasium.Wrapper):
        def __init__(self) -> None:
            super().__init__(gymnasium.make("CartPole-v1"))
            self.steps = iter(range(10_000))

        def step(self, action: Any) -> Any:
            next(self.steps)
            return super().step(action)

    def collector() -> rlx.Collector:
        return rlx.Collector(Hidden, frames_per_batch=5, total_frames=40)

    reason = "Hidden.steps is a builtins.range_iterator, whose state cannot be read"
    with caplog.at_level(logging.WARNING), collector() as mine, rlx.Checkpoint(tmp_path, mine=mine) as checkpoint:
        for number, _ in enumerate(mine):
            if number == 3:
                checkpoint.save(20)
                checkpoint.wait()
                break
        assert checkpoint.new_episodes == {"mine": reason}
        assert reason in caplog.text
    with collector() as mine, rlx.Checkpoint(tmp_path, mine=mine) as checkpoint:
        assert checkpoint.restore() == 20
        assert checkpoint.new_episodes == {"mine": reason}
        assert sum(len(batch) for batch in mine if batch is not None) == 20


def test_a_part_that_calls_something_hidden_has_no_episodes(tmp_path: Path) -> None:
    class Recurrent:
        def state_dict(self) -> Any:
            return {"hidden": "a layer"}

        def load_state_dict(self, state: Any) -> None:
            pass

    with rlx.Checkpoint(tmp_path / "run", policy=Recurrent()) as checkpoint:
        checkpoint.save(1)
        assert checkpoint.new_episodes == {}


def test_a_buffer_whose_storage_was_replaced_is_restored(tmp_path: Path) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(50), batch_size=8)
    with rlx.Checkpoint(tmp_path, buffer=buffer) as checkpoint:
        buffer.extend(_steps(0, 20))
        checkpoint.save(1)
        checkpoint.wait()
        buffer.set_storage(LazyTensorStorage(50))
        assert checkpoint.restore() == 1
        assert buffer[:]["next", "reward"].flatten().tolist() == list(range(20))
        buffer.extend(_steps(20, 5))
        checkpoint.save(2)


def test_a_state_with_other_keys(tmp_path: Path) -> None:
    class Odd:
        def state_dict(self) -> Any:
            return {3.5: 1}

        def load_state_dict(self, state: Any) -> None:
            raise AssertionError(state)

    with (
        rlx.Checkpoint(tmp_path, odd=Odd()) as checkpoint,
        pytest.raises(SchemaMismatchError, match=r"odd has a key 3\.5: expected a text or a number"),
    ):
        checkpoint.save(1)


def test_a_buffer_over_a_dataset_has_no_steps_to_write(tmp_path: Path) -> None:
    def made(seed: int) -> ReplayBuffer:
        return ReplayBuffer(storage=data, sampler=RandomSampler(seed=seed), batch_size=4)

    data = write_dataset(tmp_path / "data", [[make_block((3, 5))]])
    before, after = made(1), made(2)
    before.sample()
    with rlx.Checkpoint(tmp_path / "run", buffer=before) as checkpoint:
        checkpoint.save(1)
    assert not list((tmp_path / "run").rglob("*.zst"))
    with rlx.Checkpoint(tmp_path / "run", buffer=after) as checkpoint:
        assert checkpoint.restore() == 1
    _same(before.sample(), after.sample())
