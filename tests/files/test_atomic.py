"""Whatever writes a target: one process at a time does, and nobody sees half of it."""

import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rlx.errors import DatasetExistsError, DatasetLockedError, FileAccessError
from rlx.files import lock
from rlx.files.atomic import whole
from rlx.formats.registry import writable
from rlx.progress import Silent
from rlx.testing.dataset_exporter import SAMPLES, random_block
from rlx.testing.source import read
from rlx.verbs.export import export
from rlx.verbs.inputs import open_source
from tests.conftest import Cli
from tests.factories import write_dataset

_SUFFIXES = {"d4rl": ".hdf5", "robomimic": ".hdf5", "d3rlpy": ".h5", "npz": ".npz"}


class Paused:
    """Progress that stops its writer in the middle, until it may go on."""

    def __init__(self) -> None:
        self.writes, self.may_go_on = threading.Event(), threading.Event()

    def expect(self, unit: str, amount: int) -> None:
        pass

    def advance(self, unit: str, amount: int) -> None:  # noqa: ARG002
        self.writes.set()
        assert self.may_go_on.wait(30)


def dataset(path: Path, *, seed: int = 0, sample: str = "pictures") -> Path:
    schema = SAMPLES[sample]
    return write_dataset(path, [[random_block(schema, seed=seed)]], schema=schema).path


@pytest.mark.parametrize("format", writable("datasets"))
def test_two_exports_to_one_target_do_not_mix(format: str, tmp_path: Path) -> None:
    sample = "pictures" if format == "dopamine" else "vectors"
    one, other = (dataset(tmp_path / str(seed), seed=seed, sample=sample) for seed in (0, 1))
    target, alone = (tmp_path / f"{name}{_SUFFIXES.get(format, '-v0')}" for name in ("out", "alone"))
    progress = Paused()
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(export, one, target, format, progress=progress)
        assert progress.writes.wait(30)
        try:
            for overwrite in (False, True):
                with pytest.raises(DatasetLockedError, match=f"{target} is being written by this process, pid"):
                    export(other, target, format, overwrite=overwrite, progress=Silent())
        finally:
            progress.may_go_on.set()
        first.result()
    with pytest.raises(DatasetExistsError, match="already exists"):
        export(other, target, format, progress=Silent())
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["0", "1", target.name]
    export(one, alone, format, progress=Silent())
    read_as = {"hf_parquet": "parquet"}.get(format, format)
    found, expected = (open_source(path, read_as)[0] for path in (target, alone))
    for mine, theirs in zip(read(found, 0), read(expected, 0), strict=True):
        assert all((mine[name] == theirs[name]).all() for name in theirs.parts)


def commands() -> list[Sequence[str]]:
    """Every command that writes a target, without its dataset and with the target last."""
    samples = [["sample", "-o", f"out.{format}"] for format in writable("batches")]
    views = [["view", "-o", f"out.{format}"] for format in ("png", "gif", "mp4", "html")]
    exports = [["convert", "--to", format, f"out{_SUFFIXES.get(format, '-v0')}"] for format in writable("datasets")]
    return [*samples, *views, ["inspect", "--plot", "out.png"], *exports, ["push", "out"]]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_tells_whoever_comes_second(command: Sequence[str], cli: Cli, tmp_path: Path) -> None:
    verb, *options, name = command
    target = tmp_path / name
    arguments = [verb, dataset(tmp_path / "data"), *options, target]
    with lock.writing(target) if verb == "push" else whole(target) as partial:
        there = sorted(tmp_path.rglob("*"))
        result = cli(*arguments)
        assert f"error: {target} is being written by this process, pid {os.getpid()}\n" in result.err
        assert (result.code, sorted(tmp_path.rglob("*"))) == (75, there)
        if partial is not None:
            partial.write_text("whose turn it was")
    if partial is not None:
        assert target.read_text() == "whose turn it was"


def test_two_commands_at_once(tmp_path: Path) -> None:
    """As a user does it: whoever wins leaves files of its own and of nobody else's."""
    target = tmp_path / "out"
    sources = [dataset(tmp_path / str(seed), seed=seed, sample="vectors") for seed in (0, 1)]
    program = "from rlx_cli.app import main; main()"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, "convert", str(source), str(target), "--to", "torchrl"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for source in sources
    ]
    told = [process.communicate()[1] for process in running]
    codes = [process.returncode for process in running]
    said = told[codes.index(max(codes))]
    assert sorted(codes) in ([0, 1], [0, 75]), told
    assert ("being written by another" if max(codes) == 75 else "already exists") in said
    alone = tmp_path / "alone"
    export(sources[codes.index(0)], alone, "torchrl", progress=Silent())
    assert contents(target) == contents(alone)


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


_KILLED = """
import os, signal, sys
from pathlib import Path
from rlx.files import atomic as module
replace = module._replace
def die(partial, path, replaced, before):
    if sys.argv[2] == "replacing":
        path.rename(replaced)
    os.kill(os.getpid(), signal.SIGKILL)
module._replace = die
with module.whole(Path(sys.argv[1])) as partial:
    partial.mkdir()
    (partial / "half").touch()
"""


@pytest.mark.parametrize("moment", ["writing", "replacing"])
def test_what_a_killed_process_leaves_is_swept_and_costs_nothing(moment: str, tmp_path: Path) -> None:
    target = tmp_path / "deep/out"
    target.mkdir(parents=True)
    (target / "precious").touch()
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(target), moment], check=False)
    assert killed.returncode == -signal.SIGKILL
    with pytest.raises(ZeroDivisionError), whole(target):
        raise ZeroDivisionError
    assert [path.name for path in (tmp_path / "deep").rglob("*")] == ["out", "precious"]
    with whole(target) as partial:
        partial.mkdir()
    assert [path.name for path in (tmp_path / "deep").rglob("*")] == ["out"]


def test_an_interrupt_between_the_two_renames_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(partial: Path, path: Path, replaced: Path, before: object) -> None:  # noqa: ARG001
        path.rename(replaced)
        raise KeyboardInterrupt

    target = tmp_path / "out"
    target.mkdir()
    (target / "precious").touch()
    monkeypatch.setattr("rlx.files.atomic._replace", interrupted)
    with pytest.raises(KeyboardInterrupt), whole(target) as partial:
        partial.mkdir()
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "precious"]


def test_a_user_who_writes_there_meanwhile_keeps_it(tmp_path: Path) -> None:
    def write() -> None:
        with whole(tmp_path / "out") as partial:
            partial.write_text("mine")
            (tmp_path / "out").mkdir()
            (tmp_path / "out/theirs").touch()

    with pytest.raises(DatasetExistsError, match="was written by another program meanwhile"):
        write()
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "theirs"]


@pytest.mark.parametrize("kind", ["device", "pipe", "link to a device"])
def test_what_is_no_file_is_not_replaced(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "target.npz"
    if kind == "pipe":
        os.mkfifo(target)
    elif kind == "device":
        try:
            os.mknod(target, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("only root makes devices")
    else:
        target.symlink_to("/dev/null")
    before = target.lstat()
    with pytest.raises(FileAccessError, match="is a device, a pipe or a socket"), whole(target):
        raise AssertionError
    assert target.lstat() == before
    assert [path.name for path in tmp_path.iterdir()] == ["target.npz"]


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path, exists: bool) -> None:
    link, target = tmp_path / "link", tmp_path / "there" / "target"
    target.parent.mkdir()
    if exists:
        target.write_text("old")
    link.symlink_to(target)
    with whole(link) as partial:
        partial.write_text("new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert [path.name for path in tmp_path.rglob("*")] == ["link", "there", "target"]


def test_many_writers_of_one_target(tmp_path: Path) -> None:
    """The lock file is deleted by whoever is done; nobody locks one that has no name any more."""
    inside = threading.Lock()

    def write(number: int) -> bool:
        try:
            with whole(tmp_path / "out") as partial:
                assert inside.acquire(blocking=False), "two writers at once"
                partial.write_text(str(number))
                inside.release()
        except DatasetLockedError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert any(threads.map(write, range(200)))
    assert [path.name for path in tmp_path.rglob("*")] == ["out"]
