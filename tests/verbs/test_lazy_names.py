"""Names that are imported when first used are known to editors: pyright infers the type of each."""

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# basedpyright is pyright with Node.js in its wheel: pip install basedpyright.
PYRIGHT = shutil.which("basedpyright") or shutil.which("pyright")
ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(PYRIGHT is None, reason="pyright is not installed: pip install basedpyright")
def test_an_editor_knows_every_name(tmp_path: Path) -> None:
    modules = ("rlx", "rlx.buffer", "rlx.collector")
    names = [f"{module}.{name}" for module in modules for name in importlib.import_module(module).__all__]
    script = tmp_path / "names.py"
    script.write_text("import rlx\n" + "".join(f"reveal_type({name})\n" for name in names))
    command = [str(PYRIGHT), "--outputjson", "--pythonpath", sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    found = json.loads(done.stdout)["generalDiagnostics"]
    assert not [one["message"] for one in found if one["severity"] == "error"]
    types = [one["message"] for one in found if one["severity"] == "information"]
    assert len(types) == len(names)
    assert not [one for one in types if '"Unknown"' in one or '"Any"' in one]
