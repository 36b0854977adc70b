"""What recorders write of any loop, and what is left of a loop that was killed, or failed."""

import gc
import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rlx
from rlx.errors import CollectError, DatasetError, DatasetExistsError, DatasetLockedError, ForkError, OptionError
from tests.killed_fork import changes, killed_before

pytest.importorskip("gymnasium", reason="gymnasium is not installed")

import gymnasium
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import Autoreset, RecordEpisodeStatistics

from rlx.integrations.record import RecordExperience, RecordVectorExperience

FLOATS: Any = spaces.Box(-np.inf, np.inf, (2,), np.float32)


class Walk(gymnasium.Env[Any, Any]):
    """Observations are (number of the episode, number of the step); the fourth step ends an episode.

    Args:
        length: steps per episode.
        gives: makes what ``step`` returns, of its own five and the number of the episode; by default, they are.
    """

    action_space: Any = spaces.Discrete(3)

    def __init__(
        self, length: int = 4, gives: Callable[..., Any] = lambda found, _: found, space: Any = FLOATS
    ) -> None:
        self.observation_space = space
        self._length, self._gives, self._episode = length, gives, -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self._episode, self._time = self._episode + 1, 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self._time += 1
        found = self._observation(), float(action) / 4, self._time == self._length, False, {"time": self._time}
        return self._gives(found, self._episode)

    def _observation(self) -> Any:
        return np.array([self._episode, self._time], self.observation_space.dtype)


def run(env: Any, steps: int, record: Callable[[int], Mapping[str, Any]] = lambda _: {}) -> None:
    """Step an environment, resetting it when episodes end."""
    env.reset(seed=0)
    for step in range(steps):
        if outputs := record(step):
            env.record(**outputs)
        *_, terminated, truncated, _ = env.step(step % 3)
        if terminated or truncated:
            env.reset()


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
    limits = (4, 5, 7)
    makes = [partial(gymnasium.make, "CartPole-v1", max_episode_steps=limit) for limit in limits]
    env = SyncVectorEnv(makes, autoreset_mode=AutoresetMode[mode])
    made = 0
    ended = np.zeros(3, bool)
    with RecordVectorExperience(env, tmp_path / "mine") as with_recorder:
        with_recorder.reset(seed=1)
        for step in range(20):
            *_, terminated, truncated, _ = with_recorder.step(np.array([0, 1, 0]))
            made += int((~ended).sum()) if mode == "NEXT_STEP" else 3
            ended = terminated | truncated
            if mode == "DISABLED" and ended.any():
                with_recorder.reset(options={"reset_mask": ended})
            if mode == "NEXT_STEP" and step == 4:  # an episode of the second has ended, and the third one's is running
                with_recorder.reset(options={"reset_mask": np.array([True, False, False])})
                ended[0] = False
    dataset = rlx.open(tmp_path / "mine")
    assert len(dataset) == made
    trajectories = dataset.trajectories
    assert trajectories.cut.sum() <= 3, "those that run at the end"
    assert set(trajectories.length[~trajectories.cut]) == set(limits)
    assert dataset[trajectories.start]["observation"].abs().max() <= 0.05, "as after a reset"
    assert rlx.doctor(tmp_path / "mine").ok


def _killed_loop(path: Path, finished: int) -> None:
    """Record episodes of 4 steps; tell of each that has ended."""
    env = RecordExperience(Walk(), path, shard_steps=10)
    env.reset()
    for _ in range(30):
        if env.step(0)[2]:
            os.write(finished, b".")
            env.reset()
    env.close()


@pytest.mark.parametrize("tenth", [1, 4, 6, 7, 9])
def test_a_killed_loop_loses_no_episode_that_has_ended(tenth: int, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    count = changes(lambda: _killed_loop(tmp_path / "whole", writer))
    os.read(reader, 100)
    assert killed_before(lambda: _killed_loop(tmp_path / "mine", writer), count * tenth // 10) < 0
    os.write(writer, b".")
    finished = len(os.read(reader, 100)) - 1
    kept = rlx.open(tmp_path / "mine").trajectories if finished else None
    assert kept is None or np.count_nonzero(~kept.cut) >= finished
    _killed_loop(tmp_path / "mine", writer)
    assert len(rlx.open(tmp_path / "mine")) >= 30 + 4 * finished
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


class Faulty(Walk):
    """A walk of which something fails from its third episode on."""

    def close(self) -> None:
        raise OSError("the simulator has gone")


def test_an_environment_that_fails_to_close_costs_no_step(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="has gone"), RecordExperience(Faulty(), tmp_path / "mine") as env:
        run(env, 10)
    assert rlx.open(tmp_path / "mine").trajectories.length.tolist() == [4, 4, 2]


def test_a_step_that_raises_ends_its_episode(tmp_path: Path) -> None:
    def gives(found: Any, episode: int) -> Any:
        if episode == 2:
            raise KeyError("a bug")
        return found

    with RecordExperience(Walk(gives=gives), tmp_path / "mine") as env:
        with pytest.raises(KeyError):
            run(env, 12)
        with pytest.raises(CollectError, match="after a step that failed"):
            env.step(0)
        env.reset()
        env.step(1)
    assert rlx.open(tmp_path / "mine").trajectories.length.tolist() == [4, 4, 1]


def _other(number: int, value: Any) -> Callable[[Any, int], Any]:
    """Return what gives another value as one of the results, from the third episode on."""
    return lambda found, episode: found if episode < 2 else (*found[:number], value, *found[number + 1 :])


# What an environment gives, and what the error says.
MISFITS: dict[str, tuple[Callable[..., Any], str]] = {
    "shape": (_other(0, np.zeros(3, np.float32)), r"observation of float32\[3\], expected float32\[2\]"),
    "overflow": (_other(0, np.array([0, 1e300])), "observation 1e[+]300 of float64, which float32 would change to inf"),
    "large number": (_other(0, np.array([0, 2**53 + 1])), "observation 9007199254740993 of int64"),
    "nothing": (_other(0, None), "observation of object"),
    "text": (_other(0, "left"), "observation of <U4"),
    "objects": (_other(0, np.array([0, None])), "observation of object"),
    "reward": (_other(1, 1e300), "reward 1e[+]300 of float64, which float32 would change to inf"),
    "large reward": (_other(1, 2**24 + 1), "reward 16777217 of int64, which float32 would change"),
    "rewards": (_other(1, np.zeros(2)), "reward of float64"),
    "text as reward": (_other(1, "1.5"), "reward '1.5'"),
    "no reward": (_other(1, None), "reward None"),
    "complex reward": (_other(1, 1 + 2j), "reward"),
    "text as flag": (_other(2, "False"), "terminated 'False', expected True or False"),
    "NaN as flag": (_other(2, np.nan), "terminated nan, expected True or False"),
    "two flags": (_other(3, np.array([False, True])), "truncated"),
}


@pytest.mark.parametrize("kind", MISFITS)
@pytest.mark.parametrize("shard_steps", [5, 100])
def test_what_does_not_fit_is_an_error_at_once_and_costs_no_other_episode(
    kind: str, shard_steps: int, tmp_path: Path
) -> None:
    gives, expected = MISFITS[kind]
    with RecordExperience(Walk(gives=gives), tmp_path / "mine", shard_steps=shard_steps) as env:
        with pytest.raises(CollectError, match=expected) as caught:
            run(env, 12)
        assert re.search(r"test_record\.py:\d+ in (step|reset)", str(caught.value)), "where it is defined"
    assert rlx.open(tmp_path / "mine").trajectories.length.tolist() == [4, 4]
    assert rlx.verify(tmp_path / "mine").ok


def test_reset_is_checked_too(tmp_path: Path) -> None:
    space: Any = spaces.Dict(goal=FLOATS, door=spaces.Discrete(2))

    class Lacking(Walk):
        def _observation(self) -> Any:
            return {"goal": np.zeros(2, np.float32)}

    with RecordExperience(Lacking(space=space), tmp_path / "mine") as env:
        with pytest.raises(CollectError, match="observation with 'goal', expected 'goal', 'door', in reset"):
            env.reset()
        with pytest.raises(CollectError, match="step without reset"):
            env.step(0)


@pytest.mark.parametrize("action", [3, -1, 0.5, np.array([0, 1]), "left", None], ids=str)
def test_an_action_outside_its_space_does_not_reach_the_environment(action: Any, tmp_path: Path) -> None:
    def gives(*_: Any) -> Any:
        raise AssertionError("stepped")

    with RecordExperience(Walk(gives=gives), tmp_path / "mine") as env:
        env.reset()
        with pytest.raises(CollectError, match="the loop gave action"):
            env.step(action)


def test_what_is_odd_is_said_once_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    space: Any = spaces.Box(0, 1, (2,), np.float32)

    def gives(found: Any, _: int) -> Any:
        return (found[0].astype(np.float64) + 0.1, float("nan"), *found[2:])

    with RecordExperience(Walk(gives=gives, space=space), tmp_path / "mine") as env:
        run(env, 40)
    for said in ("observation: float64 rounded to float32", "observation: outside its space", "reward: NaN"):
        assert caplog.text.count(said) == 2, "when it happens first, and their number at the end"
    assert "in 40 steps, reward: NaN" in caplog.text
    assert len(rlx.open(tmp_path / "mine")) == 40


class Aliasing(Walk):
    """A walk that uses its arrays again, and changes what it is given."""

    action_space: Any = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, length: int = 4) -> None:
        super().__init__(length)
        self._same, self._info, self._reward = np.zeros(2, np.float32), {"time": np.zeros(1)}, np.zeros(())

    def reset(self, **options: Any) -> Any:
        observation, _ = super().reset(**options)
        self._same[:] = observation
        return self._same, self._info

    def step(self, action: Any) -> Any:
        self._reward[...] = action[0]
        action[:] = np.clip(action, -0.5, 0.5)
        observation, _, terminated, truncated, _ = super().step(0)
        self._same[:], self._info["time"][0] = observation, observation[1]
        return self._same, self._reward, terminated, truncated, self._info


@pytest.mark.parametrize("kind", ["one", "vector"])
def test_steps_are_recorded_as_they_were(kind: str, tmp_path: Path) -> None:
    env: Any = Aliasing()
    log_prob = np.zeros((1, 1), np.float32)
    if kind == "vector":
        env = SyncVectorEnv([Aliasing], autoreset_mode=AutoresetMode.NEXT_STEP)
        env = RecordVectorExperience(env, tmp_path / "mine", info_keys=["time"])
    else:
        env = RecordExperience(Autoreset(env), tmp_path / "mine", info_keys=["time"])
    with env:
        observation, _ = env.reset()
        for step in range(14):  # the fifth and the tenth reset
            observation[...] = -1  # as a loop that normalises in place
            log_prob[:] = step
            env.record(action_log_prob=log_prob if kind == "vector" else log_prob[0])
            action = np.full((1, 1) if kind == "vector" else (1,), step / 8, np.float32)
            observation, *_ = env.step(action)
    steps = rlx.open(tmp_path / "mine")[:]
    taken = [step for step in range(14) if step not in (4, 9)]
    assert steps["action"].flatten().tolist() == [step / 8 for step in taken]
    assert steps["action_log_prob"].flatten().tolist() == taken
    assert steps["next", "reward"].flatten().tolist() == [step / 8 for step in taken]
    assert steps["observation"].tolist() == [[n // 4, n % 4] for n in range(12)]
    assert steps["next", "observation"].tolist() == [[n // 4, n % 4 + 1] for n in range(12)]
    assert steps["next", "info", "time"].flatten().tolist() == [n % 4 + 1 for n in range(12)]


def _outputs(step: int) -> dict[str, Any]:
    tensor = torch.full((), -step / 2, requires_grad=True)
    return {"action_log_prob": tensor, "logits": {"left": [0.5, step]}, "option": f"go {step}"}


def test_outputs_of_the_policy_are_recorded_with_their_steps(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    for _ in range(2):
        with RecordExperience(Walk(), path, info_keys=["time"]) as env:
            run(env, 6, _outputs)
    dataset = rlx.open(path)
    steps = dataset[:]
    assert steps["action_log_prob"].tolist() == [-step / 2 for step in range(6)] * 2
    assert dataset.schema["action_log_prob"].dtype == "float32"
    assert steps["logits", "left"][:, 1].tolist() == [*range(6)] * 2
    assert list(steps["option"]) == [f"go {step}" for step in range(6)] * 2
    with RecordExperience(Walk(), path) as env:  # its infos are those of the dataset
        env.reset()
        with pytest.raises(CollectError, match=r"a step with \[\] of the policy: expected \['action_log_prob', "):
            env.step(0)
    with pytest.raises(DatasetExistsError, match=r"keeps \['time'\] of info"):
        RecordExperience(Walk(), path, info_keys=["place"])


def test_every_step_has_the_outputs_of_the_first(tmp_path: Path) -> None:
    with RecordExperience(Walk(), tmp_path / "mine") as env:
        env.reset()
        env.record(value=1.0)
        env.step(0)
        for others in ({}, {"value": 1.0, "other": 2.0}, {"value": [1.0]}, {"value": 2**53 + 1}, {"value": "one"}):
            env.record(**others)
            with pytest.raises(CollectError, match=r"as before|would change"):
                env.step(0)
        env.record(value=2)
        env.step(0)
    assert rlx.open(tmp_path / "mine")[:]["value"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("name", ["action", "observation", "reward", "next", "is_init"])
def test_an_output_with_the_name_of_another_field_is_refused(name: str, tmp_path: Path) -> None:
    with RecordExperience(Walk(), tmp_path / "mine") as env:
        env.reset()
        env.record(**{name: 1.0})
        with pytest.raises(CollectError, match=f"policy writes '{name}', which means something else"):
            env.step(0)


def test_outputs_of_vector_environments_are_those_of_each(tmp_path: Path) -> None:
    env = SyncVectorEnv([partial(Walk, 3), partial(Walk, 5)], autoreset_mode=AutoresetMode.NEXT_STEP)
    with RecordVectorExperience(env, tmp_path / "mine", info_keys="all") as recorded:
        recorded.reset()
        for step in range(9):
            recorded.record(value=torch.tensor([[step, 0.5], [step, -0.5]]))
            recorded.step(np.zeros(2, np.int64))
        recorded.record(value=np.zeros(3))
        with pytest.raises(CollectError, match=r"value of float64\[3\], expected float32\[2, 2\] as before"):
            recorded.step(np.zeros(2, np.int64))
    steps = rlx.open(tmp_path / "mine").trajectory(0)
    assert steps["value"].tolist() == [[0, 0.5], [1, 0.5], [2, 0.5]]
    assert steps["next", "info", "time"].flatten().tolist() == [1, 2, 3]


def test_rewards_are_float32_unless_something_else_is_declared(tmp_path: Path) -> None:
    def gives(found: Any, _: int) -> Any:
        return (found[0], 0.1, *found[2:])

    for name, dtype in (("plain", None), ("exact", "float64"), ("exact", None), ("plain", None)):
        with RecordExperience(Walk(gives=gives), tmp_path / name, reward_dtype=dtype) as env:
            run(env, 4)
    rewards = {name: rlx.open(tmp_path / name)[:]["next", "reward"] for name in ("plain", "exact")}
    assert rewards["plain"].dtype == torch.float32
    assert rewards["exact"].flatten().tolist() == [0.1] * 8
    with pytest.raises(DatasetExistsError, match="reward"):
        RecordExperience(Walk(), tmp_path / "exact", reward_dtype="float32")


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


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=60),
    max_steps=st.integers(40, 120),
    cut=st.integers(0, 60),
)
@settings(max_examples=15, deadline=None)
def test_a_dataset_never_holds_more_than_max_steps(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], max_steps: int, cut: int
) -> None:
    """The slow way: a list of shards of episodes, of which the first is dropped while a new episode is too many."""
    path = tmp_path_factory.mktemp("recent") / "mine"
    shards: deque[list[int]] = deque()
    journal: list[int] = []
    dropped = 0

    def held() -> int:
        return sum(lengths[episode] for shard in (*shards, journal) for episode in shard)

    for episodes in (range(cut)[: len(lengths)], range(cut, len(lengths))):
        if not episodes:
            continue
        env = Walk()
        env._episode = episodes[0] - 1
        with RecordExperience(env, path, max_steps=max_steps) as recorder:
            for episode in episodes:
                env._length = lengths[episode]
                run_episode(recorder)
                while held() + lengths[episode] > max_steps:
                    if not shards:
                        shards.append(journal)
                        journal = []
                    dropped += len(shards.popleft())
                journal.append(episode)
                if sum(lengths[one] for one in journal) >= max_steps // 10:
                    shards.append(journal)
                    journal = []
                assert len(rlx.open(path, partial=True)) <= held() <= max_steps
        if journal:
            shards.append(journal)
            journal = []
        data = rlx.open(path)
        kept = [episode for shard in shards for episode in shard]
        assert data.trajectories.length.tolist() == [lengths[episode] for episode in kept]
        assert data[:]["observation"][:, 0].unique().tolist() == kept
        assert data.manifest.notes.get("dropped_oldest", {"trajectories": 0})["trajectories"] == dropped
        rlx.verify(path)


def run_episode(env: Any) -> None:
    env.reset()
    while not env.step(0)[2]:
        pass


def test_episodes_in_the_directory_count_and_a_longer_one_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RecordExperience(Walk(), tmp_path / "mine", shard_steps=8) as env:
        run(env, 40)
    with RecordExperience(Walk(), tmp_path / "mine", max_steps=20) as env:
        assert "20 steps more than max_steps; the oldest will be dropped" in caplog.text
        run(env, 4)
        assert len(rlx.open(tmp_path / "mine", partial=True)) == 16
    assert len(rlx.open(tmp_path / "mine")) == 20
    with RecordExperience(Walk(30), tmp_path / "mine", max_steps=20) as env:
        run(env, 20)
        with pytest.raises(CollectError, match="more than 20 steps"):
            env.step(0)
        with pytest.raises(CollectError, match="step without reset"):
            env.step(0)


def test_a_reader_keeps_what_it_has_opened_when_shards_are_dropped(tmp_path: Path) -> None:
    with RecordExperience(Walk(), tmp_path / "mine", max_steps=40) as env:
        run(env, 40)
        early, late = (rlx.open(tmp_path / "mine", partial=True) for _ in range(2))
        before = early[:]["observation"]
        run(env, 80)
        assert early[:]["observation"].equal(before)
        with pytest.raises(DatasetError, match="dropped") as caught:
            late[:]
        assert "open it again" in str(caught.value.hint)


def _dropping_loop(path: Path, finished: int) -> None:
    env = RecordExperience(Walk(), path, max_steps=24)
    env.reset()
    for _ in range(80):
        if env.step(0)[2]:
            os.write(finished, b".")
            env.reset()
    env.close()


@pytest.mark.parametrize("tenth", range(1, 10))
def test_a_killed_loop_keeps_the_newest_episodes(tenth: int, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    count = changes(lambda: _dropping_loop(tmp_path / "whole", writer))
    os.read(reader, 100)
    assert killed_before(lambda: _dropping_loop(tmp_path / "mine", writer), count * tenth // 10) < 0
    os.write(writer, b".")
    finished = len(os.read(reader, 100)) - 1
    with RecordExperience(Walk(), tmp_path / "mine", max_steps=24):
        pass
    assert rlx.verify(tmp_path / "mine").ok
    episodes = rlx.open(tmp_path / "mine")[:]["observation"][:, 0].unique().tolist()
    newest = int(max(episodes, default=-1)) + 1
    assert newest in (finished, finished + 1)  # the last one may be on the disk before ``step`` has returned
    assert episodes == list(range(newest - len(episodes), newest))
    assert min(finished, 5) <= len(episodes) <= 6


def test_what_is_refused(tmp_path: Path) -> None:
    _loop(tmp_path / "mine", 5)
    with pytest.raises(DatasetExistsError, match="holds another dataset"):
        RecordExperience(gymnasium.make("Pendulum-v1"), tmp_path / "mine")
    with pytest.raises(OptionError):
        RecordExperience(gymnasium.make("CartPole-v1"), tmp_path / "other", reward_dtype="int8")
    with RecordExperience(gymnasium.make("CartPole-v1"), tmp_path / "mine"):
        with pytest.raises(DatasetLockedError, match="by this process") as caught:
            RecordExperience(gymnasium.make("CartPole-v1"), tmp_path / "mine")
        assert "kill" not in str(caught.value.hint)


def test_recording_goes_on_where_it_began_when_the_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with RecordExperience(Walk(), "mine") as env:
        env.reset()
        monkeypatch.chdir(tmp_path / "elsewhere")
        env.step(0)
    assert len(rlx.open(tmp_path / "mine")) == 1
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[list[RecordExperience]]:
    env = RecordExperience(Walk(), tmp_path / "mine")
    run(env, 6)
    yield [env]
    env.close()


def test_a_fork_neither_records_nor_ends_the_recording(recording: list[RecordExperience], tmp_path: Path) -> None:
    env = recording[0]

    def child() -> None:
        for use in (env.reset, partial(env.step, 0), partial(env.record, value=1)):
            with pytest.raises(ForkError, match="from which this one was forked"):
                use()
        env.close()
        recording.clear()
        gc.collect()

    before = sorted(tmp_path.rglob("*"))
    changes(child)
    assert sorted(tmp_path.rglob("*")) == before
    env.step(0)
    env.close()
    assert rlx.open(tmp_path / "mine").trajectories.length.tolist() == [4, 3]


class Undeclared(SyncVectorEnv):
    """Environments that do not declare when they reset, or declare something else."""

    def __init__(self, mode: AutoresetMode, declared: AutoresetMode | None = None) -> None:
        super().__init__([partial(Walk, 3), partial(Walk, 5)], autoreset_mode=mode)
        self.metadata = {} if declared is None else {"autoreset_mode": declared}


def _lengths(path: Path, env: Any, **options: Any) -> list[int]:
    with RecordVectorExperience(env, path, **options) as recorded:
        recorded.reset()
        for _ in range(8):
            recorded.step(np.zeros(2, np.int64))
    trajectories = rlx.open(path).trajectories
    assert rlx.doctor(path).ok
    return sorted(trajectories.length[~trajectories.cut].tolist())


def test_the_autoreset_mode_is_declared_or_shown(tmp_path: Path) -> None:
    same, following = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP
    assert _lengths(tmp_path / "shown", Undeclared(same)) == [3, 3, 5]
    assert _lengths(tmp_path / "given", Undeclared(following), autoreset="next-step") == [3, 3, 5]
    with pytest.raises(CollectError, match="does not declare its autoreset mode") as caught:
        _lengths(tmp_path / "unknown", Undeclared(following))
    assert caught.value.hint is not None
    assert "metadata" in caught.value.hint
    with pytest.raises(CollectError, match="its infos have another final_obs"):
        _lengths(tmp_path / "next", Undeclared(same, following))
    with pytest.raises(CollectError, match="without the final_obs"):
        _lengths(tmp_path / "same", Undeclared(following, same))
    with pytest.raises(CollectError, match="is in autoreset mode same-step, which `autoreset` next-step contradicts"):
        _lengths(tmp_path / "two", Undeclared(same, same), autoreset="next-step")
    with pytest.raises(CollectError, match="expected next-step, same-step, disabled"):
        _lengths(tmp_path / "word", Undeclared(same), autoreset="later")
