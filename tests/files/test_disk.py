"""Names on file systems that ignore the case of letters."""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import rlx
from rlx.errors import (
    CorruptShardError,
    DatasetExistsError,
    DiskFullError,
    ExportError,
    FileAccessError,
    MissingExtraError,
    SourceNotFoundError,
)
from rlx.files.disk import by_number, check_case, file_error, is_there, listed, opened_file, read_object
from rlx.progress import Silent
from rlx.schema import Field, Role, Schema
from rlx.store.verification import verify
from rlx.testing.dataset_exporter import random_block
from rlx.verbs.export import EXPORT_FORMATS, export
from rlx.verbs.push import push
from tests.factories import make_block, write_dataset
from tests.verbs.datasets import tree


@pytest.mark.parametrize("ignores_case", [False, True])
@pytest.mark.parametrize(
    ("names", "clash"),
    [
        (["a", "b"], None),
        (["a", "A"], "a and A are one name"),
        (["info/x", "INFO"], "info and INFO are one name"),
        (["info/x", "info/X"], "info/x and info/X are one name"),
        (["\u00e9t\u00e9", "e\u0301te\u0301"], "are one name"),  # NFC and NFD
    ],
)
def test_names_that_differ_in_case_only(
    names: list[str], clash: str | None, ignores_case: bool, tmp_path: Path
) -> None:
    (tmp_path / "zarr.json").touch()
    if ignores_case:  # as one file, which such a file system shows under both names
        (tmp_path / "ZARR.JSON").touch()
    if clash is None or not ignores_case:
        check_case(names, tmp_path / "zarr.json")
        return
    with pytest.raises(FileAccessError, match=clash):
        check_case(names, tmp_path / "zarr.json")


def test_whether_a_file_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    there = {name: is_there(tmp_path / name) for name in (".", "file", "absent", "file/below", "loop")}
    assert there == {".": True, "file": True, "absent": False, "file/below": False, "loop": False}

    def fail(_: Path, **__: object) -> None:
        raise OSError(errno.ESTALE, "stale")

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", fail)
        with pytest.raises(OSError, match="stale"):
            is_there(tmp_path / "file")


@pytest.fixture
def caseless(tmp_path: Path) -> Iterator[Path]:
    """A disk that ignores case: exFAT, through FUSE."""
    if not all(map(shutil.which, ("mkfs.exfat", "mount.exfat-fuse", "losetup"))):
        pytest.skip("mkfs.exfat and mount.exfat-fuse are not installed")
    image, disk = tmp_path / "image", tmp_path / "disk"
    disk.mkdir()
    image.touch()
    with image.open("r+b") as file:
        file.truncate(2**26)
    subprocess.run(["mkfs.exfat", image], check=True, capture_output=True)
    looped = subprocess.run(["losetup", "-f", "--show", image], capture_output=True, text=True, check=False)
    if looped.returncode:
        pytest.skip("this user may not mount")
    device = looped.stdout.strip()
    try:
        mounted = subprocess.run(["mount.exfat-fuse", device, disk], capture_output=True, check=False)
        if mounted.returncode:
            pytest.skip("this user may not mount")
        yield disk
        subprocess.run(["umount", "--lazy", disk], check=True)
    finally:
        subprocess.run(["losetup", "-d", device], check=True)


def _write_alike(path: Path) -> Path:
    """A dataset of fields whose names differ in case only."""
    fields = {
        "observation": Field("float32", (3,), Role.OBSERVATION),
        **{name: Field("float32", (), Role.STEP) for name in ("action", "a", "A")},
        "reward": Field("float32", (), Role.NEXT),
        "terminated": Field("bool", (), Role.NEXT),
        "truncated": Field("bool", (), Role.NEXT),
    }
    schema = Schema(fields)
    return write_dataset(path, [[random_block(schema)]], schema=schema).path


def test_fields_that_differ_in_case_only(caseless: Path, tmp_path: Path) -> None:
    data = _write_alike(tmp_path / "data")
    with pytest.raises(FileAccessError, match="a and A are one name on this file system"):
        push(data, str(caseless / "pushed"), progress=Silent())
    with pytest.raises(FileAccessError, match="a and A are one name on this file system"):
        _write_alike(caseless / "data")


@pytest.mark.parametrize("format", EXPORT_FORMATS)
def test_exports_of_fields_that_differ_in_case_only(caseless: Path, tmp_path: Path, format: str) -> None:
    data = _write_alike(tmp_path / "data")
    target = caseless / "target"
    if format == "lance":
        pytest.skip("its library cannot commit to exFAT through FUSE, which lacks hard links")
    try:
        export(data, tmp_path / "elsewhere", format, progress=Silent())
    except (ExportError, MissingExtraError):
        pytest.skip("the format cannot hold such data, or its package is not installed")
    if format in ("torchrl", "dopamine"):  # a file per field
        with pytest.raises(FileAccessError, match="a and A are one name on this file system"):
            export(data, target, format, progress=Silent())
        assert not list(caseless.iterdir())
        return
    export(data, target, format, progress=Silent())
    assert names(target) == names(tmp_path / "elsewhere")


def names(path: Path) -> set[tuple[str, int]]:
    """Names and lengths of all files of an export."""
    return {(file.relative_to(path).as_posix(), file.stat().st_size) for file in path.rglob("*") if file.is_file()}


def test_overwriting(caseless: Path, tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", [[make_block([3, 2])], [make_block([4])]]).path
    for _ in range(2):
        assert rlx.convert(data, caseless / "copy", jobs=1, overwrite=True).shards == 2
        assert verify(caseless / "copy").leftovers == []
    assert tree(caseless / "copy").keys() == tree(data).keys()


def test_destinations_of_a_split(caseless: Path, tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", [[make_block([3, 2, 4, 2])]]).path
    with pytest.raises(DatasetExistsError, match="is given twice"):
        rlx.split(data, [0.5, 0.5], output=[caseless / "a", caseless / "A"])
    assert not list(caseless.iterdir())


def test_errors_of_the_disk_by_their_numbers(tmp_path: Path) -> None:
    full = file_error(OSError(errno.ENOSPC, "No space left on device"), tmp_path)
    assert isinstance(full, DiskFullError)
    assert (str(full), full.hint) == (
        f"{tmp_path}: no space left on device",
        "free some space, or inodes (df -i), and run the command again",
    )
    assert isinstance(file_error(FileNotFoundError(errno.ENOENT, "No such file", "a")), SourceNotFoundError)


def test_what_is_no_file_or_too_large(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileAccessError, match="pipe is not a regular file"):
        opened_file(tmp_path / "pipe")
    (tmp_path / "a.json").write_text("{}" + " " * 9)
    with pytest.raises(CorruptShardError, match=r"a\.json: expected at most 10 bytes, found 11"):
        read_object(tmp_path / "a.json", 10)


def test_files_are_listed_by_the_numbers_in_their_names(tmp_path: Path) -> None:
    names = ["part-1.x", "part-01.x", "part-2.x", "part-10.x", "part-1a1.x", "part-1\u06631.x", "._part-1.x"]
    for name in names:
        (tmp_path / name).touch()
    found = [path.name for path in listed(tmp_path, "*.x")]
    assert found[:2] in (["part-01.x", "part-1.x"], ["part-1.x", "part-01.x"])
    assert found.index("part-2.x") < found.index("part-10.x")
    assert sorted(found) == sorted(names[:-1])
    assert found == [path.name for path in by_number(sorted(tmp_path.glob("part*"), reverse=True))]
