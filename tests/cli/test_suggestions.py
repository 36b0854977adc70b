"""A mistyped name gets a suggestion, and the shell offers names when the user presses Tab."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import rlx
from rlx.verbs.options import declared
from rlx_cli.signature import beginning
from tests.conftest import Cli
from tests.verbs.datasets import ROOT


@pytest.mark.parametrize(
    ("arguments", "code", "suggestion"),
    [
        (("inspect", "Pnog/5"), 5, "did you mean Pong/5?"),
        (("sample", "pong/5"), 5, "did you mean Pong/5?"),
        (("list", "--game", "Brekout"), 0, "did you mean Breakout?"),
        (("download", "Brekout/1"), 5, "did you mean Breakout?"),
        (("collect", "CartPole-v1", "--policy", "randm", "--episodes", "1"), 2, "did you mean random?"),
        (("collect", "CartPool-v1"), 1, "did you mean CartPole-v1"),
        (("convert", "Pong/5", "x", "--to", "parket"), 2, "did you mean parquet?"),
        (("convert", "Pong/5", "x", "--from", "minary"), 2, "did you mean minari?"),
        (("convert", "Pong/5", "x", "--codec", "zsdt"), 2, "did you mean zstd"),
        (("view", "Pong/5", "-o", "x.pgn"), 2, "did you mean png?"),
        (("sample", "Pong/5", "-o", "x.parqet"), 2, "did you mean parquet?"),
        (("convert", "Pong/5", "x", "--sede", "1"), 2, "no such option"),
        (("preprocess", "Pong/5", "x", "--transform", "resise"), 2, "did you mean resize?"),
        (("preprocess", "Pong/5", "x", "--transform", "filter:retrun > 1"), 2, "did you mean return?"),
        (("preprocess", "Pong/5", "x", "--per", "trajektory"), 2, "did you mean trajectory?"),
        (("collect", "--engine", "rai"), 2, "did you mean ray?"),
        (("sample", "Pong/5", "-o", "x", "--format", "npzz"), 2, "did you mean npz?"),
        (("convert", "Pong/5", "x", "--from", "torchrl:time_dmi=0"), 2, "did you mean time_dim?"),
        (("pull", "hff://datasets/me/pong"), 2, "did you mean hf?"),
        (("convert", "hff://datasets/me/pong", "x"), 2, "did you mean hf?"),
        (("pull", "Pnog/5", "-o", "x"), 5, "did you mean Pong/5?"),
        (("inspect", "minari:D4RL/door/human-v2"), 5, "rlx download minari:D4RL/door/human-v2"),
        (("download", "minari:/minari/door"), 5, "rlx list --remote --source minari"),
    ],
)
def test_suggestions(cli: Cli, home: Path, pong: Path, arguments: tuple[str, ...], code: int, suggestion: str) -> None:
    (home / "Pong").mkdir(parents=True)
    pong.rename(home / "Pong/5")
    result = cli(*arguments)
    assert suggestion in result.err
    assert result.code == code


def completed(verb: Callable[..., object], argument: str, text: str) -> list[str]:
    _, declaration = declared(verb)[argument]
    assert declaration.completes is not None
    return beginning(declaration.completes(), text)


def test_completion_offers_names(home: Path, pong: Path) -> None:
    (home / "Pong").mkdir(parents=True)
    pong.rename(home / "Pong/5")
    assert completed(rlx.inspect, "dataset", "po") == ["Pong/5"]
    assert completed(rlx.list_runs, "game", "sp") == ["SpaceInvaders"]
    assert completed(rlx.download, "run", "Pong/") == [f"Pong/{run}" for run in range(1, 6)]
    assert completed(rlx.preprocess, "transform", "clip") == ["clip_reward"]
    assert completed(rlx.inspect, "dataset", "nothing") == []


def test_the_shell_is_told(home: Path, pong: Path) -> None:
    (home / "Pong").mkdir(parents=True)
    pong.rename(home / "Pong/5")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "commands")]),
        "_RLX_COMPLETE": "complete_bash",
        "COMP_WORDS": "rlx inspect Po",
        "COMP_CWORD": "2",
    }
    program = [sys.executable, "-c", "import sys; sys.argv[0] = 'rlx'; from rlx_cli.entry import main; main()"]
    found = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert found.stdout.split() == ["Pong/5"]
