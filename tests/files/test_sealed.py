import json
from pathlib import Path

import pytest

from rlx.errors import CorruptDatasetError, FileAccessError, FormatVersionError
from rlx.files.sealed import CHECKED, check_files, checksums, read_sealed, sealed

OBJECT = {"format": "mine", "version": CHECKED, "name": "\udcff"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.json"
    path.write_bytes(sealed(json.dumps(OBJECT, indent=1, ensure_ascii=False)))
    return path


def test_every_flipped_bit_is_noticed(file: Path) -> None:
    found, is_checked = read_sealed(file, "mine")
    assert is_checked
    assert {key: found[key] for key in OBJECT} == OBJECT
    raw = file.read_bytes()
    for bit in range(8 * len(raw)):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        with pytest.raises(CorruptDatasetError, match=r"mine\.json is damaged"):
            read_sealed(file, "mine")


def test_a_description_of_before_is_read_and_said_to_be_unchecked(file: Path) -> None:
    file.write_text('{"format": "mine", "version": 1}')
    assert read_sealed(file, "mine") == ({"format": "mine", "version": 1}, False)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ('{\n "format": "mine",\n "version": 3\n}', FormatVersionError, "format version 3, expected 2"),
        ('{\n "format": "other",\n "version": 2\n}', CorruptDatasetError, "expected format 'mine', found 'other'"),
        ("[\n]", CorruptDatasetError, "is damaged"),
    ],
)
def test_what_another_program_wrote(text: str, error: type[Exception], message: str, file: Path) -> None:
    file.write_bytes(sealed(text))
    with pytest.raises(error, match=message):
        read_sealed(file, "mine")


def test_files_that_are_not_what_they_were(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "file").write_bytes(b"123456789")
    listed = checksums(tmp_path)
    assert listed == {"below/file": {"bytes": 9, "crc32c": "e3069283"}}
    check_files(tmp_path, listed)
    (tmp_path / "below" / "file").write_bytes(b"123456780")
    with pytest.raises(CorruptDatasetError, match=r"below/file is damaged: found .*, expected .*e3069283"):
        check_files(tmp_path, listed)
    (tmp_path / "below" / "file").unlink()
    with pytest.raises(CorruptDatasetError, match=r"below/file is missing"):
        check_files(tmp_path, listed)
    with pytest.raises(CorruptDatasetError, match=r"the checksums of .* are damaged: None"):
        check_files(tmp_path, None)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/zero")
    with pytest.raises(FileAccessError, match="link is not a regular file"):
        read_sealed(tmp_path / "link", "mine")
