import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rlx.errors import FileAccessError
from rlx.files.beneath import beneath, check_entries, no_follow, remove, replace


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda path: path.symlink_to("precious"), "a symbolic link to precious: rlx does not write through links"),
        (lambda path: path.symlink_to("nowhere"), "a symbolic link to nowhere"),
        (lambda path: path.mkdir(), "a directory: expected a file"),
        (lambda path: os.mkfifo(path), "a pipe, a socket or a device: expected a file"),
    ],
)
@pytest.mark.parametrize("mode", ["w", "a", "a+", "r+"])
def test_only_files_are_opened_for_writing(
    mode: str, make: Callable[[Path], object], kind: str, tmp_path: Path
) -> None:
    (tmp_path / "precious").write_text("precious")
    make(tmp_path / "name")
    with pytest.raises(FileAccessError, match=f"name is {kind}"):
        open(tmp_path / "name", mode, opener=no_follow)  # noqa: SIM115
    assert (tmp_path / "precious").read_text() == "precious"
    assert not (tmp_path / "nowhere").exists()


def test_a_new_file_may_be_read_by_those_whom_the_umask_lets(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        with open(tmp_path / "name", "w", opener=no_follow) as file:
            file.write("text")
    finally:
        os.umask(mask)
    assert (tmp_path / "name").stat().st_mode & 0o777 == 0o644


def test_paths_beneath_a_directory(tmp_path: Path) -> None:
    (tmp_path / "real" / "a").mkdir(parents=True)
    (tmp_path / "root").symlink_to("real")  # its user's
    (tmp_path / "root" / "link").symlink_to("a")
    root = tmp_path / "root"
    for name in ("a/b", "link", "absent/b/c"):
        assert beneath(root, name) == root / name
    with pytest.raises(FileAccessError, match="root/link is a symbolic link to a"):
        beneath(root, "link/b")


def test_entries_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "directory").mkdir()
    for place in (tmp_path, tmp_path / "file", tmp_path / "absent"):
        check_entries(place)
    os.mkfifo(tmp_path / "pipe")
    check_entries(tmp_path, lambda name: name != "pipe")
    with pytest.raises(FileAccessError, match="pipe is a pipe, a socket or a device"):
        check_entries(tmp_path)


def test_what_is_removed_and_replaced_is_the_link(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "link").symlink_to("precious")
    (tmp_path / "file").touch()
    replace(tmp_path / "file", tmp_path / "link")
    assert (tmp_path / "link").is_file()
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("precious")
    remove(tmp_path / "link")
    remove(tmp_path / "link")
    (tmp_path / "file").touch()
    with pytest.raises(FileAccessError, match="precious is a directory: expected a file"):
        replace(tmp_path / "file", tmp_path / "precious")
    assert {entry.name for entry in tmp_path.iterdir()} == {"precious", "file"}
