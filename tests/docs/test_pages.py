"""Every block of every page is run by a test, or says why it is not."""

from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.docs.pages import PAGES, ROOT, blocks, run

# Pages that run as they are; the others have a test of their own, or no block that could be run.
_PLAIN = tuple(
    f"docs/{name}.md" for name in ("collecting", "cookbook", "python", "recipes/evaluation", "tour", "viewing")
)
_BY_OTHERS = {
    "CONTRIBUTING.md": "test_contributing.py",
    "README.md": "test_readme.py",
    "docs/extending.md": "test_extending.py",
    "docs/format.md": "test_format.py",
    "docs/formats.md": "test_formats.py",
    "docs/migrating.md": "test_migrating.py",
    "docs/ports.md": "test_ports.py",
    "docs/ray.md": "../buffer/test_ray_buffer.py",
    "docs/remote.md": "test_remote.py",
    "docs/hub.md": "test_hub.py",
    "docs/transforms.md": "test_transforms.py",
}


@pytest.mark.parametrize("name", _PLAIN)
def test_a_page_runs(name: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(ROOT / name, cli)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_is_run_or_says_why_not(page: Path) -> None:
    name = str(page.relative_to(ROOT))
    if name in _BY_OTHERS:
        assert (Path(__file__).parent / _BY_OTHERS[name]).is_file()
        return
    if name not in _PLAIN:
        assert [block.code for block in blocks(page) if block.is_code and block.reason is None] == []
