"""Scripts as on the documentation's pages, without ``if __name__ == "__main__"``, run to their end, and once."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import SAMPLE_RUN

ROOT = Path(__file__).parents[2]

# Word for word but for the imports and the source.
ENSEMBLE = """
from rlx.datasets import AtariDQNExperienceReplay
from rlx.buffer import ReplayBufferEnsemble
print("begun")
# we change this parameter for quick experimentation, in practice it should be left untouched
AtariDQNExperienceReplay._max_runs = 2
dataset_asterix = AtariDQNExperienceReplay("Asterix/5", batch_size=128, slice_len=64, num_procs=4, source="source")
dataset_pong = AtariDQNExperienceReplay("Pong/5", batch_size=128, slice_len=64, num_procs=4, source="source")
dataset = ReplayBufferEnsemble(dataset_pong, dataset_asterix, batch_size=128, sample_from_all=True)
sample = dataset.sample()
print(list(sample.shape), list(sample[0]["observation"].shape), len(dataset_pong))
"""
PREPROCESS = """
from rlx.datasets import AtariDQNExperienceReplay
print("begun")
data = AtariDQNExperienceReplay("Pong/5", batch_size=128, source="source")
def half(steps):
    return steps.select("action", ("next", "reward")).set("half", steps["observation"][:, ::2, ::2])
storage = data.preprocess(half, num_workers=1, mp_start_method="spawn", dest="half")
print(list(storage[:3]["half"].shape), len(storage))
"""


def printed(script: str, directory: Path) -> list[str]:
    """What a script prints, line by line."""
    (directory / "script.py").write_text(script)
    environment = {**os.environ, "RLX_HOME": str(directory / "home"), "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "script.py"], cwd=directory, env=environment, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    return ran.stdout.splitlines()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for game in ("Pong", "Asterix"):
        shutil.copytree(SAMPLE_RUN / "Pong", tmp_path / "source" / game)
    return tmp_path


def test_the_ensemble(source: Path) -> None:
    begun, found = printed(ENSEMBLE, source)
    assert begun == "begun"
    assert found.startswith("[2, 64] [64, 84, 84]")


def test_preprocessing(source: Path) -> None:
    assert printed(PREPROCESS, source) == ["begun", "[3, 42, 42] 2491"]
