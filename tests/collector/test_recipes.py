"""The recipes run to their end; whether they learn is for whoever runs them."""

from pathlib import Path

import pytest

pytest.importorskip("torchrl.objectives", reason="TorchRL is not installed")

from scripts.recipes import ppo, recurrent_ppo


def test_ppo(capsys: pytest.CaptureFixture[str]) -> None:
    found = ppo.main(["--frames", "256", "--lanes", "2", "--length", "64", "--epochs", "1", "--episodes", "2"])
    assert 1 <= found <= 500
    assert "seed 0: mean return" in capsys.readouterr().out


@pytest.mark.parametrize("memory", [[], ["--no-memory"]], ids=["with memory", "without"])
def test_recurrent_ppo(memory: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--frames", "64", "--lanes", "4", "--length", "8", "--epochs", "1", "--episodes", "2"]
    found = recurrent_ppo.main([*options, *memory])
    assert 1 <= found <= 500
    assert ("without memory" if memory else "with memory") in capsys.readouterr().out


def test_they_are_plain_scripts() -> None:
    for module in (ppo, recurrent_ppo):
        assert len(Path(module.__file__ or "").read_text().splitlines()) < 250
