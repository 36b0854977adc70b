"""Environments that end, block or talk: the program says so in one sentence, and keeps the finished episodes."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import rlx
from rlx.errors import RlxError
from rlx.store.verification import verify
from tests.verbs.datasets import ROOT, wait_until
from tests.verbs.processes import printed

ENVIRONMENTS = """
import ctypes, os, signal, sys, time
import gymnasium
import numpy as np

libc = ctypes.CDLL(None)


def sleep():
    open("asleep", "w").close()
    time.sleep(1000)


class Ten(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        self.now = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        Ten.steps += 1
        self.now += 1
        return np.full(1, self.now, np.float32), 1.0, False, self.now == 10, {}


def acting(act, at):
    class Acting(Ten):
        def step(self, action):
            if Ten.steps == at:
                act()
            return super().step(action)

    return Acting


exits = acting(lambda: os._exit(0), 5)
exits_in_c = acting(lambda: libc.exit(0), 5)
segfaults = acting(lambda: os.kill(os.getpid(), signal.SIGSEGV), 5)
is_killed = acting(lambda: os.kill(os.getpid(), signal.SIGKILL), 5)
exits_later = acting(lambda: os._exit(0), 25)
raises_later = acting(lambda: {}["speed"], 25)
moves = acting(lambda: os.chdir("/"), 5)
forks = acting(os.fork, 5)


class Noted(gymnasium.Env):
    # Episodes of 3 to 9 steps, each noted in a file before its end is returned; the process ends at a random step.

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    pause = 0.04

    def __init__(self):
        self.dice = np.random.default_rng(os.getpid())
        self.left = int(self.dice.integers(70, 110))

    def reset(self, *, seed=None, options=None):
        self.seen, self.length = [float(self.dice.random())], int(self.dice.integers(3, 10))
        return np.array([self.seen[0], 0]), {}

    def step(self, action):
        time.sleep(self.pause)
        self.left -= 1
        if not self.left:
            self.end()
        self.seen.append(float(self.dice.random()))
        is_last = len(self.seen) > self.length
        if is_last:
            with open("ended", "a") as file:
                file.write(f"{self.seen}\\n")
        return np.array([self.seen[-1], 0]), 1.0, is_last, False, {}


class NotedExits(Noted):
    def end(self):
        os._exit(0)


class NotedSlowsDown(NotedExits):
    # Short episodes end soon after each other; from the third chunk of 64 steps on, none for a second.

    def __init__(self):
        super().__init__()
        self.left = 134

    def step(self, action):
        self.pause = 0.002
        if self.left < 7:
            self.pause, self.length = 0.2, 1000
        return super().step(action)


class NotedIsKilled(Noted):
    def end(self):
        os.kill(os.getpid(), signal.SIGKILL)


class NotedSegfaults(Noted):
    def end(self):
        os.kill(os.getpid(), signal.SIGSEGV)


def exits_as_it_is_made():
    os._exit(0)


def hangs_as_it_is_made():
    sleep()


class ClosingFails(Ten):
    def close(self):
        raise RuntimeError("the simulator is gone")


class ClosingHangs(Ten):
    def close(self):
        sleep()


class ResettingHangs(Ten):
    def reset(self, **_):
        sleep()


class MakingMoves(Ten):
    def __init__(self):
        os.chdir("/")


class Talks(Ten):
    def __init__(self):
        print("made")
        libc.puts(b"from C")
        libc.fflush(None)

    def close(self):
        os.system("echo from a process")


class OldReset(Ten):
    def reset(self, **_):
        return super().reset()[0]


class OldStep(Ten):
    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated or truncated, info


def act(observation):
    print("policy")
    return np.zeros(len(observation), int)
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "envs.py").write_text(ENVIRONMENTS)
    return tmp_path


def started(here: Path, name: str, *options: str) -> "subprocess.Popen[str]":
    path = os.pathsep.join([str(ROOT), str(ROOT / "commands")])
    program = [sys.executable, "-c", "from rlx_cli.entry import main; main()", "collect", f"envs.py:{name}"]
    sizes = ("-o", "set", "--envs", "1", "--steps", "60", "--json", "--quiet")
    return subprocess.Popen(
        [*program, *sizes, *options],
        cwd=here,
        env={**os.environ, "PYTHONPATH": path, "PYTHONFAULTHANDLER": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def collected(here: Path, name: str, *options: str) -> tuple[int, dict[str, object], list[str]]:
    """The exit code, the document on stdout, and the lines on stderr, without the note on whose code runs."""
    process = started(here, name, *options)
    out, err = printed(process, 240)
    assert "Traceback" not in err
    return process.returncode, json.loads(out), [line for line in err.splitlines() if not line.startswith("note: ")]


def errors_of(lines: list[str]) -> str:
    (error,) = [line for line in lines if line.startswith("error: ")]
    return error


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("exits", "an actor's process ended with exit code 0$"),
        ("exits_in_c", "an actor's process ended with exit code 0$"),
        ("segfaults", r"an actor's process was ended by SIGSEGV, at .*/envs\.py:\d+ in <lambda>$"),
        ("is_killed", "an actor's process was ended by SIGKILL$"),
    ],
)
def test_the_end_of_the_only_worker_is_a_sentence(here: Path, name: str, how: str) -> None:
    code, _, lines = collected(here, name)
    assert code == 1
    assert re.search(f"^error: worker 0 died 3 times without progress, the last time so: {how}", errors_of(lines))
    assert not (here / "set").exists()


def test_the_end_of_the_process_as_the_environment_is_made(here: Path) -> None:
    code, _, lines = collected(here, "exits_as_it_is_made")
    assert (code, lines[0]) == (
        1,
        "error: environment envs.py:exits_as_it_is_made could not be made: an actor's process ended with exit code 0",
    )


def test_finished_episodes_of_a_worker_that_ends_are_kept(here: Path) -> None:
    code, report, lines = collected(here, "exits_later")
    assert (code, report["steps"]) == (0, 60)
    assert any("finished episode" in line and "of it kept" in line for line in lines)
    dataset = rlx.open(here / "set")
    assert dataset.trajectories.length.tolist() == [10] * 6
    assert len(set(dataset.trajectories.episode.tolist())) == 6
    assert verify(here / "set").ok
    assert [entry.name for entry in (here / "set/shards").iterdir() if entry.suffix == ".partial"] == []


@pytest.mark.parametrize("name", ["NotedExits", "NotedSlowsDown", "NotedIsKilled", "NotedSegfaults"])
def test_every_finished_episode_of_a_worker_that_ends_is_kept(here: Path, name: str) -> None:
    code, report, lines = collected(here, name, "--steps", "200")
    assert code == 0, lines
    assert report["steps"] == 200
    dataset = rlx.open(here / "set")
    lengths = dataset.trajectories.length.tolist()
    found = {
        (*rows["observation"][:, 0].tolist(), float(rows["next", "observation"][-1, 0]))
        for rows in map(dataset.trajectory, range(len(lengths)))
    }
    ended = [tuple(json.loads(line)) for line in (here / "ended").read_text().splitlines()]
    # The dataset may end with a part of the last one.
    assert [at for at, one in enumerate(ended[:-1]) if one not in found] == []


@pytest.mark.parametrize("workers", ["1", "2"])
def test_finished_episodes_before_an_error_are_kept(here: Path, workers: str) -> None:
    code, _, lines = collected(here, "raises_later", "--workers", workers)
    assert code == 1
    assert re.match(
        r"error: Acting failed in step: KeyError: 'speed', at .*/envs\.py:\d+ in <lambda>$", errors_of(lines)
    )
    lengths = rlx.open(here / "set", partial=True).trajectories.length.tolist()
    assert set(lengths) == {10}
    assert len(lengths) >= 2


@pytest.mark.parametrize(
    ("name", "steps"), [("hangs_as_it_is_made", None), ("ResettingHangs", None), ("ClosingHangs", 60)]
)
def test_the_time_limit_covers_make_reset_and_close(here: Path, name: str, steps: int | None) -> None:
    code, report, lines = collected(here, name, "--step-timeout", "1")
    assert (code, report.get("steps")) == (1 if steps is None else 0, steps)
    limit = re.compile(r"did not finish a step within 1 s, at .*/envs\.py:\d+ in sleep")
    assert any(map(limit.search, lines))


def test_a_close_that_fails_is_a_warning(here: Path) -> None:
    code, report, lines = collected(here, "ClosingFails")
    assert (code, report["steps"]) == (0, 60)
    (warning,) = lines
    said = "warning: closing an actor failed: ClosingFails failed in close: RuntimeError: the simulator is gone, at "
    assert warning.startswith(said)


@pytest.mark.parametrize("name", ["hangs_as_it_is_made", "ResettingHangs", "ClosingHangs"])
def test_ctrl_c_while_an_environment_hangs(here: Path, name: str) -> None:
    process = started(here, name)
    wait_until(lambda: (here / "asleep").exists(), 120)
    process.send_signal(signal.SIGINT)
    _, err = printed(process)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert errors_of(err.splitlines()).startswith("error: interrupted")
    if name == "ClosingHangs":
        assert len(rlx.open(here / "set")) == 60


def test_stdout_is_for_results(here: Path) -> None:
    code, report, lines = collected(here, "Talks", "--policy", "envs.py:act")
    assert (code, report["steps"]) == (0, 60)
    assert {"made", "from C", "policy", "from a process"} <= set(lines)


@pytest.mark.parametrize("name", ["moves", "MakingMoves", "forks"])
def test_environments_that_change_their_process(here: Path, name: str) -> None:
    code, report, _ = collected(here, name, "--policy", "envs.py:act")
    assert (code, report["steps"]) == (0, 60)
    assert verify(here / "set").ok


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("OldReset", "reset returned a ndarray, expected (observation, info): without info it is the API of old gym"),
        ("OldStep", "step returned 4 values, expected (observation, reward, terminated, truncated, info): four are"),
    ],
)
def test_environments_of_old_gym_are_called_so(here: Path, name: str, message: str) -> None:
    code, _, lines = collected(here, name)
    assert code == 1
    assert message in errors_of(lines)


def test_the_cause_of_a_users_error(here: Path) -> None:
    with pytest.raises(RlxError, match="Acting failed in step: KeyError: 'speed'") as failed:
        rlx.collect(f"{here}/envs.py:raises_later", output=here / "set", steps=60, envs=1)
    assert isinstance(failed.value.__cause__, KeyError)
