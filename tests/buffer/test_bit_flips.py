"""A flipped bit in any file of a saved buffer, part or checkpoint is refused before anything is loaded."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import rlx
from rlx.buffer import (
    LazyTensorStorage,
    PrioritizedSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    TensorDictMaxValueWriter,
)
from rlx.errors import CorruptDatasetError
from rlx.files.sealed import UNCHECKED


def steps(start: int, count: int) -> TensorDict:
    time = torch.arange(start, start + count)
    return TensorDict({"observation": time.reshape(-1, 1) * 1000, "next": {"reward": time.float()}}, [count])


def empty() -> ReplayBuffer:
    return ReplayBuffer(storage=LazyTensorStorage(50), sampler=PrioritizedSampler(50, 0.7, 0.9, seed=0), batch_size=4)


def filled() -> ReplayBuffer:
    buffer = empty()
    rows = buffer.extend(steps(0, 40))
    buffer.update_priority(rows, torch.rand(40, generator=torch.Generator().manual_seed(0)))
    return buffer


def part_of(buffer: ReplayBuffer, name: str) -> Any:
    return getattr(buffer, name)


def maximum() -> TensorDictMaxValueWriter:
    writer, storage = TensorDictMaxValueWriter(rank_key=("next", "reward")), LazyTensorStorage(50)
    writer.extend(storage, steps(0, 60))
    return writer


def save_run(path: Path) -> None:
    buffer = filled()
    with rlx.Checkpoint(path, buffer=buffer) as checkpoint:
        checkpoint.save(1)
        checkpoint.wait()
        buffer.extend(steps(40, 5))
        checkpoint.save(2)


def restore_run(buffer: ReplayBuffer, path: Path) -> None:
    with rlx.Checkpoint(path, buffer=buffer) as checkpoint:
        assert checkpoint.restore() == 2


# What saves into a directory, what makes an object to load into, and what loads.
Saved = tuple[Callable[[Path], object], Callable[[], Any], Callable[[Any, Path], object]]
SAVED: dict[str, Saved] = {
    "buffer": (lambda path: filled().dumps(path), empty, ReplayBuffer.loads),
    "storage": (
        lambda path: part_of(filled(), "storage").dumps(path),
        lambda: part_of(empty(), "storage"),
        lambda new, path: new.loads(path),
    ),
    "sampler": (
        lambda path: part_of(filled(), "sampler").dumps(path),
        lambda: part_of(empty(), "sampler"),
        lambda new, path: new.loads(path),
    ),
    "writer": (lambda path: maximum().dumps(path), maximum, lambda new, path: new.loads(path)),
    "ensemble": (
        lambda path: ReplayBufferEnsemble(filled(), filled(), batch_size=4).dumps(path),
        lambda: ReplayBufferEnsemble(empty(), empty(), batch_size=4),
        lambda new, path: new.loads(path),
    ),
    "checkpoint": (save_run, empty, restore_run),
}


def flat(state: Any) -> Any:
    """The same with lists for tensors, which can be compared."""
    if isinstance(state, torch.Tensor):
        return state.tolist()
    if isinstance(state, dict):
        return {key: flat(value) for key, value in state.items()}
    return [flat(value) for value in state] if isinstance(state, list | tuple) else state


@pytest.mark.parametrize("tries", [25, pytest.param(1000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("saved", SAVED)
def test_every_flipped_bit_is_refused(saved: str, tries: int, tmp_path: Path) -> None:
    save, make, load = SAVED[saved]
    save(tmp_path / "saved")
    load(make(), tmp_path / "saved")
    files = sorted(file for file in (tmp_path / "saved").rglob("*") if file.is_file() and file.name != ".lock")
    dice, new = Random(saved), make()
    before = flat(new.state_dict())
    for _ in range(tries):
        file = dice.choice(files)
        raw = file.read_bytes()
        flipped = bytearray(raw)
        flipped[dice.randrange(len(raw))] ^= 1 << dice.randrange(8)
        file.write_bytes(flipped)
        with pytest.raises(CorruptDatasetError, match="damaged"):
            load(new, tmp_path / "saved")
        file.write_bytes(raw)
    assert flat(new.state_dict()) == before


def age(path: Path) -> None:
    """Take the checksums out of a saved buffer or checkpoint, which earlier versions did not write."""
    for file in path.rglob("*.json"):
        found = json.loads(file.read_bytes())
        kept = {key: value for key, value in found.items() if key not in ("crc32c", "checksums")}
        file.write_text(json.dumps(kept | {"version": UNCHECKED}))


@pytest.mark.parametrize("saved", SAVED)
def test_without_checksums_it_is_read_and_said_to_be_unchecked(
    saved: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save, make, load = SAVED[saved]
    save(tmp_path / "saved")
    expected = make()
    load(expected, tmp_path / "saved")
    age(tmp_path / "saved")
    new = make()
    with caplog.at_level(logging.WARNING):
        load(new, tmp_path / "saved")
    assert f"{tmp_path / 'saved'} was not checked: it has no checksums" in caplog.text
    assert flat(new.state_dict()) == flat(expected.state_dict())


def test_a_resumed_run_adds_the_checksums(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_run(tmp_path)
    age(tmp_path)
    buffer = empty()
    with rlx.Checkpoint(tmp_path, buffer=buffer) as checkpoint:
        checkpoint.restore()
        checkpoint.save(2)
    caplog.clear()
    again = empty()
    restore_run(again, tmp_path)
    assert "not checked" not in caplog.text
    assert flat(again.state_dict()) == flat(buffer.state_dict())
