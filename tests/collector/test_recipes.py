"""The recipes run to their end; whether they learn is for whoever runs them."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import rlx

pytest.importorskip("torchrl.objectives", reason="TorchRL is not installed")

from scripts.recipes import (
    atari,
    cql,
    decision_transformer,
    dqn,
    dqn_log,
    ppo,
    r2d2,
    ranks,
    recurrent_ppo,
    sac,
    world_model,
)
from tests.factories import collected

Main = Callable[[list[str]], float]
_SMALL = "frames=128 length=32 random-frames=32 hidden=8 episodes=1"
# Those that learn online; dqn_log runs in tests/verbs/test_checkpoint.py.
_ONLINE: dict[str, tuple[Main, str]] = {
    "ppo": (ppo.main, "frames=128 lanes=2 length=32 epochs=1 episodes=1"),
    "recurrent ppo": (recurrent_ppo.main, "frames=64 lanes=4 length=8 epochs=1 episodes=1"),
    "without memory": (recurrent_ppo.main, "frames=64 lanes=4 length=8 epochs=1 episodes=1 no-memory"),
    "r2d2": (r2d2.main, "frames=128 lanes=2 length=32 first-frames=64 updates=2 hidden=8 episodes=1 log=log"),
    "dqn": (dqn.main, f"{_SMALL} updates=2 save=demos save-steps=200 log=log"),
    "prioritized dqn": (dqn.main, f"{_SMALL} updates=2 prioritized"),
    "sac": (sac.main, "frames=48 length=4 random-frames=40 hidden=8 episodes=1 log=log"),
}
_OFFLINE: dict[str, tuple[Main, str]] = {
    "cql": (cql.main, "updates=3 batch-size=32 hidden=8 episodes=1"),
    "behaviour cloning": (cql.main, "updates=3 batch-size=32 hidden=8 episodes=1 clone"),
    "decision transformer": (decision_transformer.main, "updates=2 context=4 slices=4 width=8 layers=1 episodes=1"),
    "offline, then online": (dqn.main, f"{_SMALL} updates=2 offline-updates=3 offline="),
}


def _options(given: str) -> list[str]:
    return [f"--{option}" for option in given.split()]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return collected("CartPole-v1", tmp_path_factory.mktemp("data") / "random", steps=300)


@pytest.mark.parametrize("name", _ONLINE)
def test_an_online_learner(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    main, given = _ONLINE[name]
    found = main(_options(given))
    assert -2_000 <= found < 0 if name == "sac" else 1 <= found <= 500


@pytest.mark.parametrize("name", _OFFLINE)
def test_an_offline_learner(name: str, dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main, given = _OFFLINE[name]
    options = _options(given)
    if given.endswith("="):
        options[-1] += str(dataset)
    else:
        options.insert(0, str(dataset))
    assert 1 <= main(options) <= 500
    assert "seed 0: mean return" in capsys.readouterr().out


def test_learners_of_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    play = f"{atari.__file__}:follow_the_ball"
    rlx.collect("ALE/Pong-v5", envs=1, steps=80, policy=play, output=tmp_path / "pong")
    for given in ("loss=cloning", "loss=cql prioritized"):
        atari.main([str(tmp_path / "pong"), *_options(f"updates=2 steps=4 output={tmp_path / 'evaluation'} {given}")])
        assert len(rlx.open(tmp_path / "evaluation")) == 4
        assert f"{given.split()[0][5:]}, seed 0: mean return 0.0" in capsys.readouterr().out


def test_a_world_model_predicts_better_than_repeating(dataset: Path) -> None:
    assert world_model.main([str(dataset), *_options("updates=25 window=32 width=32")]) < 1


def test_two_ranks_end_with_equal_weights(dataset: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = [str(dataset), *_options("epochs=1 batch-size=64")]
    done = subprocess.run([*command, "-m", ranks.__name__, *options], capture_output=True, text=True, timeout=120)
    # Two processes write to one pipe: lines may be joined, or empty. The exit code is left out: threads of gloo may end
    # a rank by SIGABRT after its work, whatever it does.
    weights = re.findall("weights ([0-9a-f]{16})", done.stdout)
    assert len(weights) == 2, done.stderr
    assert weights[0] == weights[1]


@pytest.mark.parametrize("is_terminated", [True, False])
def test_n_step_goals_end_where_episodes_and_slices_do(is_terminated: bool) -> None:
    done = torch.zeros(1, 12, dtype=torch.bool)
    done[0, [5, 11]] = True  # the end of an episode, and of the slice
    terminated = done & is_terminated
    terminated[0, 11] = False
    reward, following = torch.rand(2, 1, 12)
    expected = []
    for start in range(12):
        last = next(t for t in range(start, 12) if done[0, t] or t == start + r2d2.N_STEP - 1)
        steps = torch.arange(last + 1 - start)
        value = following[0, last] * r2d2.GAMMA ** len(steps) * ~terminated[0, last]
        expected.append((reward[0, start : last + 1] * r2d2.GAMMA**steps).sum() + value)
    found = r2d2.n_step_goals(reward, following, terminated, done)
    torch.testing.assert_close(found, torch.stack(expected)[None])


def test_they_are_plain_scripts() -> None:
    for module in (atari, cql, decision_transformer, dqn, ppo, r2d2, ranks, recurrent_ppo, sac, world_model):
        assert len(Path(module.__file__ or "").read_text().splitlines()) < 250


def test_a_log_is_written_anew_where_a_kill_left_a_part(dataset: Path, tmp_path: Path) -> None:
    buffer = rlx.ReplayBuffer()
    steps = rlx.open(dataset)[:40]
    buffer.extend(steps.set("is_init", torch.zeros(40, 1, dtype=torch.bool)))
    (tmp_path / "log.parts/00000/shards/.00000.partial").mkdir(parents=True)
    for _ in range(2):
        dqn_log.log(buffer, tmp_path / "log", 1)
    logged = rlx.open(tmp_path / "log.parts/00000")
    assert (len(logged), logged.manifest.id) == (40, "log")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("steps=40 shard-steps=80", "--steps 40, --shard-steps 80: expected a multiple of --shard-steps"),
        ("steps=120 shard-steps=80", "expected a multiple of --shard-steps"),
        ("steps=80 shard-steps=10", "--shard-steps, and that a multiple of 4"),
        ("steps=80 shard-steps=80", "log.parts has shards of another run"),
    ],
)
def test_a_log_that_would_lose_steps_or_mix_runs_is_refused(
    given: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ale_py")
    (tmp_path / "log.parts/00000").mkdir(parents=True)
    with pytest.raises(SystemExit, match="2"):
        dqn_log.main([*_options(given), "--output", str(tmp_path / "log")])
    assert expected in " ".join(capsys.readouterr().err.split())
