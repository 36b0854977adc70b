"""rlx can be installed beside what labs have installed: resolved only, from the index."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

pytestmark = pytest.mark.xdist_group("stacks")
_UNSOLVABLE = 1  # uv's exit code; others are of the network


@pytest.mark.parametrize(
    ("extras", "stack"),
    [
        ("", "torchrl==0.14.1"),
        ("lerobot", "lerobot==0.4.4"),
        ("gym,d3rlpy", "d3rlpy==2.8.1"),
        ("gym,tianshou", "tianshou==2.0.1"),
        ("atari,stable-baselines3", "stable-baselines3==2.9.2"),
        ("gym", "minari==0.5.4"),
        ("gym,ray", "ray[rllib]==2.60.0"),
        ("gym", "torch==2.7.* gymnasium==1.2.0"),
    ],
)
def test_rlx_resolves_beside(extras: str, stack: str) -> None:
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        pytest.skip("uv is not installed")
    wanted = "\n".join([f"rlx[{extras}] @ {ROOT.as_uri()}", *stack.split()])
    options = ["--quiet", "--python-version", "3.11", "--no-config", "-"]
    try:
        ran = subprocess.run(
            [uv, "pip", "compile", *options],
            input=wanted,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.skip("the index did not answer within 60 s")
    if ran.returncode not in (0, _UNSOLVABLE) or "Failed to fetch" in ran.stderr:
        pytest.skip(f"the index does not answer: {ran.stderr.strip()[-200:]}")
    assert ran.returncode == 0, ran.stderr
