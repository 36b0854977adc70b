"""What RecordExperience writes of any loop, and what is left of a loop that was killed."""

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import CollectError, DatasetExistsError, DatasetLockedError, OptionError
from tests.killed_fork import changes, killed_before

pytest.importorskip("gymnasium", reason="gymnasium is not installed")

import gymnasium
from gymnasium.wrappers import Autoreset, RecordEpisodeStatistics

from rlx.integrations.record import RecordExperience, RecordVectorExperience


def _loop(path: Path, steps: int, **options: Any) -> list[Any]:
    """Record a loop; return observation, action, reward, terminated, truncated and next observation of every step."""
    seen = []
    with RecordExperience(gymnasium.make("CartPole-v1", max_episode_steps=12), path, **options) as env:
        now, _ = env.reset(seed=0)
        for step in range(steps):
            after, reward, terminated, truncated, _ = env.step(step // 3 % 2)
            seen.append((now, step // 3 % 2, reward, terminated, truncated, after))
            now = env.reset()[0] if terminated or truncated else after
    return seen


def test_every_step_of_a_loop(tmp_path: Path) -> None:
    seen = _loop(tmp_path / "mine", 50, shard_steps=20)
    assert len(rlx.open(tmp_path / "mine").manifest.shards) > 1
    steps = rlx.open(tmp_path / "mine")[:]
    found = [steps[key].numpy() for key in ("observation", "action")]
    found += [steps["next", key].numpy() for key in ("reward", "terminated", "truncated", "observation")]
    for number, expected in enumerate(zip(*seen, strict=True)):
        column = np.stack(expected).astype(found[number].dtype)
        if number == 4:
            column[-1] |= not seen[-1][3]  # close cuts the last episode
        assert np.array_equal(found[number].reshape(column.shape), column)
    _loop(tmp_path / "mine", 30)
    assert len(rlx.open(tmp_path / "mine")) == 80
    assert rlx.verify(tmp_path / "mine").ok


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_vector_environments(mode: str, tmp_path: Path) -> None:
    from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: PLC0415

    limits = (4, 5, 7)
    makes = [partial(gymnasium.make, "CartPole-v1", max_episode_steps=limit) for limit in limits]
    env = SyncVectorEnv(makes, autoreset_mode=AutoresetMode[mode])
    with_recorder = RecordVectorExperience(env, tmp_path / "mine", reward_dtype="float32")
    with_recorder.reset(seed=1)
    made = 0
    ended = np.zeros(3, bool)
    for step in range(20):
        *_, terminated, truncated, _ = with_recorder.step(np.array([0, 1, 0]))
        made += int((~ended).sum()) if mode == "NEXT_STEP" else 3
        ended = terminated | truncated
        if mode == "DISABLED" and ended.any():
            with_recorder.reset(options={"reset_mask": ended})
        if mode == "NEXT_STEP" and step == 4:  # an episode of the second has ended, and the third one's is running
            with_recorder.reset(options={"reset_mask": np.array([True, False, False])})
            ended[0] = False
    with_recorder.close()
    dataset = rlx.open(tmp_path / "mine")
    assert len(dataset) == made
    trajectories = dataset.trajectories
    assert trajectories.cut.sum() <= 3, "those that run at the end"
    assert set(trajectories.length[~trajectories.cut]) == set(limits)
    assert dataset[trajectories.start]["observation"].abs().max() <= 0.05, "as after a reset"
    assert rlx.doctor(tmp_path / "mine").ok


def test_a_killed_loop_leaves_whole_shards(tmp_path: Path) -> None:
    count = changes(lambda: _loop(tmp_path / "whole", 60, shard_steps=10))
    assert killed_before(lambda: _loop(tmp_path / "mine", 60, shard_steps=10), count * 3 // 4) < 0
    before = len(rlx.open(tmp_path / "mine"))
    assert 0 < before < 60
    _loop(tmp_path / "mine", 10)
    assert len(rlx.open(tmp_path / "mine")) == before + 10
    assert rlx.verify(tmp_path / "mine").ok


_LEFT_OPEN = """
import gymnasium
from rlx.integrations.record import RecordExperience

envs = [RecordExperience(gymnasium.make("CartPole-v1", max_episode_steps=7), name) for name in ("one", "two")]
for env in envs:
    for episode in range(3):
        env.reset(seed=episode)
        for step in range(7 if episode < 2 else 4):
            env.step(step % 2)
raise KeyError("a bug")
"""


def test_a_script_that_never_closes_ends_and_keeps_its_steps(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _LEFT_OPEN]
    ended = subprocess.run(command, cwd=tmp_path, timeout=30, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.count("Traceback") == 1
    for name in ("one", "two"):
        dataset = rlx.open(tmp_path / name)
        assert dataset.trajectories.length.tolist() == [7, 7, 4]
        assert dataset.trajectories.cut.tolist() == [False, False, True]
        assert rlx.verify(tmp_path / name).ok


def _autoreset() -> Any:
    return Autoreset(gymnasium.make("CartPole-v1", max_episode_steps=7))


def test_episodes_that_begin_in_step_are_recorded(tmp_path: Path) -> None:
    firsts = []
    with RecordExperience(_autoreset(), tmp_path / "mine") as env:
        firsts.append(env.reset(seed=0)[0])
        ended = False
        for step in range(25):  # three episodes, each with a reset after it, and a step
            observation, _, terminated, truncated, _ = env.step(step % 2)
            firsts += [observation] if ended else []
            ended = terminated or truncated
    dataset = rlx.open(tmp_path / "mine")
    assert dataset.trajectories.length.tolist() == [7, 7, 7, 1]
    assert np.array_equal(dataset[dataset.trajectories.start]["observation"].numpy(), np.stack(firsts))
    assert rlx.doctor(tmp_path / "mine").ok


def test_a_step_of_no_episode_is_refused(tmp_path: Path) -> None:
    with RecordExperience(RecordEpisodeStatistics(_autoreset()), tmp_path / "mine") as env:
        env.reset(seed=0)
        for step in range(7):
            env.step(step % 2)
        with pytest.raises(CollectError, match="step without reset"):
            env.step(0)
    with pytest.raises(CollectError, match="after close"):
        env.step(0)
    assert len(rlx.open(tmp_path / "mine")) == 7


def test_what_is_refused(tmp_path: Path) -> None:
    _loop(tmp_path / "mine", 5)
    with pytest.raises(DatasetExistsError, match="holds another dataset"):
        RecordExperience(gymnasium.make("Pendulum-v1"), tmp_path / "mine")
    with pytest.raises(OptionError):
        RecordExperience(gymnasium.make("CartPole-v1"), tmp_path / "other", reward_dtype="int8")
    with RecordExperience(gymnasium.make("CartPole-v1"), tmp_path / "mine"), pytest.raises(DatasetLockedError):
        RecordExperience(gymnasium.make("CartPole-v1"), tmp_path / "mine")
