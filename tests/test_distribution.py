"""A dependency that is missing or too old is one error, which has the version."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlx import distribution
from rlx.errors import MissingExtraError, check_installed, imported

Check = Callable[[str, str, str], object]


@pytest.fixture
def old_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pillow 9.5, as far as its metadata say."""
    (tmp_path / "pillow-9.5.0.dist-info").mkdir()
    (tmp_path / "pillow-9.5.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: pillow\nVersion: 9.5.0\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    distribution.too_old.cache_clear()
    yield
    distribution.too_old.cache_clear()


@pytest.mark.usefixtures("old_pillow")
@pytest.mark.parametrize("check", [imported, check_installed])
def test_too_old(check: Check) -> None:
    with pytest.raises(MissingExtraError) as failed:
        check("PIL", "images need Pillow", "view")
    assert str(failed.value) == "images need Pillow 10.1 or newer, found 9.5.0"
    assert failed.value.hint == "pip install 'rlx[view]'"


@pytest.mark.parametrize("check", [imported, check_installed])
def test_missing(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"^images need Pillow, which is not installed$"):
        check("PIL", "images need Pillow", "view")


@pytest.mark.parametrize(
    ("module", "extra"),
    [("PIL", "view"), ("torch", "torch"), ("cv2", "atari"), ("json", "view"), ("numpy", "no extra")],
)
def test_new_enough_or_unbounded(module: str, extra: str) -> None:
    assert distribution.too_old(module, extra) is None


@pytest.mark.parametrize(
    ("found", "bound", "is_older"),
    [
        ("2.6.0a0+git1234", "2.6", False),
        ("1.0", "1.0.0", False),
        ("10.0", "9.9", False),
        ("2.5.1+cu124", "2.6", True),
        ("4.10.0.82", "4.10.0.84", True),
    ],
)
def test_versions_are_compared_by_their_numbers(found: str, bound: str, is_older: bool) -> None:
    assert (distribution._numbers(found) < distribution._numbers(bound)) == is_older
