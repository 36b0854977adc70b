"""Links, pipes and devices that came with a dataset, an export, a checkpoint or a cache.

No command changes a file outside of its directory, and none waits for one that never ends.
"""

import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import rlx
from rlx.buffer import LazyMemmapStorage, LazyTensorStorage, RandomSampler, ReplayBufferEnsemble
from rlx.errors import FileAccessError, RlxError
from rlx.files import lock
from rlx.files.atomic import PARTIAL
from rlx.files.disk_cache import DiskCache, key_of
from rlx.manifest import FILE_NAME, Manifest
from rlx.store.layout import ASIDE, NEW, OWN, SHARDS, SOURCE_FILES, partial_directory, shard_name
from tests.conftest import SAMPLE_RUN
from tests.factories import SMALL, make_block, write_dataset

Command = Callable[[Path], object]
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CHANGES = {"os.mkdir", "os.remove", "os.rmdir", "os.rename", "os.link", "os.truncate", "shutil.rmtree"}
_MAX_PARTS = 3
_GIVEN = "given"  # the name of what a command is to write beside its own files
_changed: list[str] | None = None


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if _changed is None:
        return
    if event in _CHANGES or (event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES):
        _changed.extend(os.fspath(path) for path in arguments[:2] if isinstance(path, str | os.PathLike))


sys.addaudithook(_note)


def names_written(command: Command, directory: Path) -> set[str]:
    """The names in a directory that a command opens for writing, renames or removes."""
    global _changed
    _changed = []
    try:
        command(directory)
    finally:
        changed, _changed = _changed, None
    names = {os.path.relpath(os.path.abspath(path), directory) for path in changed}
    return {"/".join(name.split("/")[:_MAX_PARTS]) for name in names if name.split("/")[0] not in ("..", ".", _GIVEN)}


def write(path: Path, *shards: list[int]) -> Path:
    blocks = [[make_block(shard, first_episode=10 * number)] for number, shard in enumerate(shards)]
    return write_dataset(path, blocks, schema=SMALL, store="memmap", codec="none").path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("data") / "data", [3, 5], [4])


@pytest.fixture(scope="module")
def begun(data: Path) -> Path:
    """The beginning of the dataset, which a command resumes."""
    return write(data.with_name("begun"), [3, 5])


def steps() -> TensorDict:
    after = {"reward": torch.ones(8), "done": torch.ones(8).bool()}
    return TensorDict({"observation": torch.arange(8), "next": after}, [8])


def buffer(**options: Any) -> rlx.ReplayBuffer:
    made = rlx.ReplayBuffer(storage=LazyTensorStorage(20), sampler=RandomSampler(seed=0), batch_size=4, **options)
    made.extend(steps())
    return made


def checkpoint(path: Path) -> None:
    with rlx.Checkpoint(path, buffer=buffer()) as saved:
        saved.save(1)


def cache(path: Path) -> None:
    DiskCache(path, 1 << 20).put(key_of(0, "file"), b"page", None)


def scratch(path: Path) -> None:
    LazyMemmapStorage(20, scratch_dir=path, existsok=True).append(steps())


def commands(data: Path) -> dict[str, Command]:
    """Every command that writes; each is given a directory that has what it left there before."""
    begun = data.with_name("begun")
    return {
        "repair": rlx.repair,
        "repair --delete": lambda path: rlx.repair(path, delete=True),
        "collect --resume": lambda path: rlx.collect("CartPole-v1", output=path, steps=20, envs=1, resume=True),
        "collect --overwrite": lambda path: rlx.collect("CartPole-v1", output=path, steps=20, envs=1, overwrite=True),
        "download --overwrite": lambda path: rlx.download(
            "Pong/5", source=str(SAMPLE_RUN), shards=[0], output=path, jobs=1, overwrite=True
        ),
        "convert": lambda path: rlx.convert(data, path, jobs=1),
        "convert --overwrite": lambda path: rlx.convert(data, path, jobs=1, overwrite=True),
        "preprocess": lambda path: rlx.preprocess(data, path, transform="clip_reward", num_workers=1),
        "preprocess --overwrite": lambda path: rlx.preprocess(
            data, path, transform="clip_reward", num_workers=1, overwrite=True
        ),
        "merge": lambda path: rlx.merge([begun, data], path, jobs=1),
        "merge --overwrite": lambda path: rlx.merge([begun, data], path, jobs=1, overwrite=True),
        "split --overwrite": lambda path: rlx.split(data, [0.5], output=[path], jobs=1, overwrite=True),
        "pull": lambda path: rlx.pull(str(data), path, jobs=1),
        "pull --overwrite": lambda path: rlx.pull(str(data), path, jobs=1, overwrite=True),
        "push": lambda path: rlx.push(data, str(path), jobs=1),
        "push --overwrite": lambda path: rlx.push(begun, str(path), jobs=1, overwrite=True),
        "push --version": lambda path: rlx.push(path, str(path.parent / "pushed"), version="v1"),
        "save_dataset": lambda path: buffer().save_dataset(path, overwrite=True),
        "Checkpoint": checkpoint,
        "dumps": lambda path: buffer().dumps(path),
        "dumps of an ensemble": lambda path: ReplayBufferEnsemble(buffer(), buffer(), batch_size=4).dumps(path),
        "scratch_dir": scratch,
        "disk cache": cache,
        "export of a file": lambda path: rlx.convert(data, path / _GIVEN, to="npz", overwrite=True),
        "export of a directory": lambda path: rlx.convert(data, path / _GIVEN, to="torchrl", overwrite=True),
        "sample -o": lambda path: rlx.sample(data, batch_size=2, output=path / _GIVEN, format="npz"),
        "view -o": lambda path: rlx.view(data, output=path / f"{_GIVEN}.html"),
    }


ONE_OF_EACH = sorted(commands(Path("data")))
OF_OTHERS = {"Checkpoint", "dumps", "dumps of an ensemble", "scratch_dir", "disk cache"}
BESIDE = {"export of a file", "export of a directory", "sample -o", "view -o"}
RESUMED = {"collect --resume", "convert", "preprocess", "merge", "pull"}
MADE = {"collect --overwrite", "download --overwrite", "save_dataset"} | RESUMED | OF_OTHERS


def before(name: str, command: Command, begun: Path, path: Path) -> Path:
    """A directory with what the command wrote there once, or with the beginning of it."""
    if name not in MADE | BESIDE:
        return shutil.copytree(begun, path)
    path.mkdir()
    command(path)
    if name in RESUMED:
        listed = Manifest.load(path)
        listed.without_shards({listed.shards[-1].name}).save(path)
    return path


def known(path: Path) -> set[str]:
    """Names that a dataset's directory may have."""
    shard = shard_name(0)
    shards = {shard, "link", partial_directory(path, shard, os.getpid()).name}
    inside = {SHARDS, *(f"{SHARDS}/{name}" for name in shards)}
    place = {FILE_NAME, lock.FILE_NAME, f"{FILE_NAME}{PARTIAL}"} | inside
    aside = {f"{ASIDE}/{SHARDS}", f"{ASIDE}/{SHARDS}/{shard}"}
    return {*OWN, *place, *(f"{NEW}/{name}" for name in place), *aside, f"{SOURCE_FILES}/pull"}


def plant(path: Path, outside: Path, kind: str) -> None:
    """Let a name lead outside: to what was there, or to something else."""
    shutil.rmtree(outside, ignore_errors=True)
    for file in ("file", "00000/file", "shards/00000/file", "directory/shards/00000/file", "directory/file"):
        (outside / file).parent.mkdir(parents=True, exist_ok=True)
        (outside / file).write_text("precious")
    if os.path.lexists(path):
        path.rename(outside / kind) if kind == "moved" else shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(outside / kind)


def content(directory: Path) -> dict[str, bytes | None]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() if path.is_file() else None
        for path in directory.rglob("*")
    }


@pytest.mark.parametrize("tries", [6, pytest.param(None, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_nothing_outside_is_changed(name: str, tries: int | None, data: Path, begun: Path, tmp_path: Path) -> None:
    command, outside, path = commands(data)[name], tmp_path / "outside", tmp_path / "path"
    whole = before(name, command, begun, tmp_path / "whole")
    shutil.copytree(whole, path)
    names = names_written(command, path) | (set() if name in OF_OTHERS | BESIDE else known(path))
    assert names
    planted = [
        (written, kind)
        for written in sorted(names)
        for kind in (("moved",) if os.path.lexists(whole / written) else ("file", "directory", "nowhere"))
    ]
    for written, kind in planted if tries is None else Random(name).sample(planted, min(tries, len(planted))):
        shutil.rmtree(path)
        shutil.copytree(whole, path)
        plant(path / written, outside, kind)
        expected = content(outside)
        with suppress(RlxError):
            command(path)
        assert content(outside) == expected, (written, kind)


def test_a_link_to_another_disk_is_named_with_a_way_out(data: Path, tmp_path: Path) -> None:
    path, disk = shutil.copytree(data, tmp_path / "data"), tmp_path / "disk"
    (path / SHARDS).rename(disk)
    (path / SHARDS).symlink_to(disk)
    assert len(rlx.open(path)) == 12
    with pytest.raises(FileAccessError, match=f"shards is a symbolic link to {disk}") as caught:
        rlx.merge([data], path, overwrite=True)
    assert caught.value.hint is not None
    assert "move the whole directory and link that" in caught.value.hint
    assert len(rlx.open(path)) == 12
    (path / SHARDS).unlink()
    disk.rename(path / SHARDS)
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    rlx.merge([data], path, overwrite=True)
    assert path.is_symlink()
    assert len(rlx.open(path)) == 12


def test_a_link_is_not_published(data: Path, tmp_path: Path) -> None:
    path = shutil.copytree(data, tmp_path / "data")
    (tmp_path / "secret").write_text("@misc{secret}")
    (path / "CITATION.bib").symlink_to("../secret")
    with pytest.raises(FileAccessError, match=r"CITATION\.bib is a symbolic link"):
        rlx.cite(path)


def link(target: str) -> Callable[[Path], object]:
    return lambda path: path.symlink_to(target)


def link_to_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server, within(path.parent):
        server.bind(path.name)  # which may have 108 bytes


@contextmanager
def within(directory: Path) -> Iterator[None]:
    there = Path.cwd()
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(there)


KINDS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "link to a pipe": link_to_pipe,
    "directory": Path.mkdir,
    "device": link("/dev/zero"),
    "loop": lambda path: path.symlink_to(path.name),
    "socket": listen,
}
READERS: dict[str, Command] = {
    "open": lambda path: rlx.open(path)[:5],
    "verify": rlx.verify,
    "inspect": lambda path: rlx.inspect(path, trajectories=True),
    "sample": lambda path: rlx.sample(path, batch_size=2),
    "doctor": rlx.doctor,
    "diff": lambda path: rlx.diff(path, path),
    "cite": rlx.cite,
    "view": lambda path: rlx.view(path, output=path.parent / "view.html"),
    "push": lambda path: rlx.push(path, str(path.parent / "pushed"), jobs=1, overwrite=True),
    "pull": lambda path: rlx.pull(str(path), path.parent / "pulled", jobs=1, overwrite=True),
    "convert": lambda path: rlx.convert(path, path.parent / "made", jobs=1, overwrite=True),
    "merge": lambda path: rlx.merge([path], path.parent / "merged", jobs=1, overwrite=True),
    "merge into it": lambda path: rlx.merge([path.parent / "other"], path, jobs=1, overwrite=True),
    "repair": rlx.repair,
}


@pytest.fixture
def alarm() -> Iterator[None]:
    """End a test that waits for ever."""

    def fail(_: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it waits at {frame}")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("tries", [40, pytest.param(None, marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_refused_at_once(kind: str, tries: int | None, data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "other")
    files = {file for file in content(data) if (data / file).is_file()}
    pairs = [(name, command) for name in sorted(files | known(data) - {SHARDS}) for command in READERS]
    for name, command in pairs if tries is None else Random(kind).sample(pairs, tries):
        path = shutil.copytree(data, tmp_path / "data")
        if os.path.lexists(path / name):
            shutil.rmtree(path / name) if (path / name).is_dir() else (path / name).unlink()
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        KINDS[kind](path / name)
        with suppress(RlxError):
            READERS[command](path)
        shutil.rmtree(path)
