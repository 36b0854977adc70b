"""Examples in docstrings find what they open: the datasets ``cartpole`` and ``Pong/5``, and a run in ``dqn``."""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from _pytest.doctest import DoctestItem

import rlx

# Modules for other projects that are not installed cannot be imported for their examples.
_PEERS = ("d3rlpy", "stable_baselines3", "tianshou")
collect_ignore = [f"rlx/integrations/{name}.py" for name in _PEERS if find_spec(name) is None]

_SAMPLE_RUN = Path(__file__).parent / "scripts/sample_run"
_COMMANDS = {
    "cartpole": ["collect", "CartPole-v1", "--steps", "1000"],
    "Pong/5": ["download", "Pong/5", "--source", str(_SAMPLE_RUN), "--jobs", "1"],
}


@pytest.fixture(scope="session")
def _examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples")


@pytest.fixture(autouse=True)
def datasets_of_examples(request: pytest.FixtureRequest) -> None:
    """Run an example in a directory of its own, with copies of the datasets that it names."""
    if not isinstance(request.node, DoctestItem):
        return
    text = "".join(example.source for example in request.node.dtest.examples)  # type: ignore[union-attr]
    if "rlx." not in text and "cartpole" not in text:
        return
    made: Path = request.getfixturevalue("_examples")
    here: Path = request.getfixturevalue("tmp_path")
    patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    patch.chdir(here)
    patch.setenv("RLX_HOME", str(here / "home"))
    patch.setattr("rlx.engine.engines.cores", lambda: 1)
    (here / "dqn").symlink_to(_SAMPLE_RUN)
    request.getfixturevalue("doctest_namespace")["rlx"] = rlx
    for name, command in _COMMANDS.items():
        if f'"{name}"' in text:
            if not (made / name).exists():
                words = [*command, "-o", str(made / name), "--quiet"]
                subprocess.run([sys.executable, "-c", "from rlx_cli.entry import main; main()", *words], check=True)
            shutil.copytree(made / name, here / name)
