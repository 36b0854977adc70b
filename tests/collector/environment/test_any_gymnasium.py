"""What works with every version of gymnasium that rlx allows, 1.0 with its single autoreset mode included."""

from pathlib import Path

import gymnasium
import numpy as np

import rlx
from rlx.collector import Collector, ParallelEnv
from rlx.collector.environment.autoreset import AutoresetMode, declared
from rlx.integrations.record import RecordVectorExperience
from rlx.store.foreign_types import discrete


class Short(gymnasium.Env[np.ndarray, np.int64]):
    """Episodes of ``length`` steps, each observation one more than the one before."""

    observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    length = 3

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[np.ndarray, dict]:  # type: ignore[type-arg]
        super().reset(seed=seed, options=options)
        self.at = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict]:  # type: ignore[type-arg]  # noqa: ARG002
        self.at += 1
        return np.full(1, self.at, np.float32), 1.0, self.at == self.length, False, {}


def _check_episodes(steps: rlx.Dataset) -> None:
    for steps_of_one in steps:
        count = len(steps_of_one)
        assert steps_of_one["observation"].flatten().tolist() == [*range(count)]
        assert steps_of_one["next", "observation"].flatten().tolist() == [*range(1, count + 1)]
        assert steps_of_one["next", "terminated"].flatten().tolist() == [step == 3 for step in range(1, count + 1)]


def test_rlx_collect(tmp_path: Path) -> None:
    rlx.collect(Short, steps=20, envs=2, output=tmp_path / "data")
    _check_episodes(rlx.open(tmp_path / "data"))


def test_a_collector_steps_environments_in_processes() -> None:
    with Collector(ParallelEnv(2, Short), frames_per_batch=24, total_frames=48) as batches:
        for batch in batches:
            ended = batch["next", "terminated"].flatten()
            assert (batch["next", "observation"].flatten() == 3).equal(ended)
            assert (batch["next", "observation"] == batch["observation"] + 1).all()


def test_a_recorder_of_gymnasiums_own_vector_environment(tmp_path: Path) -> None:
    envs = gymnasium.vector.SyncVectorEnv([Short, Short])
    assert declared(envs) == AutoresetMode.NEXT_STEP
    with RecordVectorExperience(envs, tmp_path / "data") as recorded:
        recorded.reset(seed=0)
        for _ in range(10):
            recorded.step(np.zeros(2, np.int64))
    steps = rlx.open(tmp_path / "data")
    assert len(steps) == 16  # of 20, four of which reset
    _check_episodes(steps)


def test_a_discrete_space_has_a_dtype() -> None:
    space = discrete(3, 1, np.uint8)
    assert space.dtype == np.uint8
    assert {int(space.sample()) for _ in range(100)} == {1, 2, 3}
