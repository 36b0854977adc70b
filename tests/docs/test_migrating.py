"""The page for those who come from TorchRL: its code runs, from top to bottom."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.minari_files import record_cart_pole

PAGE = Path(__file__).parents[2] / "docs/migrating.md"


def test_the_code_runs(pong: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "Pong").mkdir(parents=True)
    pong.rename(home / "Pong/5")
    record_cart_pole(tmp_path / "minari", "cartpole/random-v0")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 9
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
