"""Tasks on a Ray cluster: two workers of this machine."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import ray

from rlx.engine import ray_engine
from rlx.engine.actor import settle
from rlx.engine.ray_engine import RayActors, RayEngine
from rlx.errors import EngineError, MissingExtraError
from rlx.progress import Progress, Silent
from tests.contracts.actor_functions import Adder
from tests.contracts.actors import ActorsContract
from tests.contracts.engine import WorkersContract
from tests.contracts.progress import Tally
from tests.contracts.tasks import square
from tests.verbs.datasets import ROOT, wait_until

SCRIPT = """
import signal, sys, time
from pathlib import Path
from rlx.engine.ray_engine import RayActors
from rlx.engine.ray_engine import RayEngine
from rlx.progress import Silent

def write(path, progress):
    while True:
        with Path(path).open("a") as file:
            file.write("x")
        time.sleep(0.01)

if __name__ == "__main__":
    before = signal.getsignal(signal.SIGTERM)
    try:
        with RayEngine(2, Silent()) as engine:
            assert signal.getsignal(signal.SIGTERM) is before
            engine.submit(write, sys.argv[1]).result()
    except KeyboardInterrupt:
        print("interrupted")
"""


HEADLESS = """
import os, subprocess, time
import rlx.engine.ray_cluster as ray_cluster
from rlx.engine.ray_engine import RayActors
from rlx.engine.ray_engine import RayEngine
from rlx.errors import EngineError
from rlx.progress import Silent

ray_cluster._HEAD_S = ray_cluster._LOOK_S = 0.5

def sleep(seconds, progress=None):
    time.sleep(seconds)

def sleeper(argument):
    return sleep

def said(call):
    try:
        call()
    except Exception as error:
        print(type(error).__name__, "was lost" in str(error), getattr(error, "hint", ""), flush=True)

if __name__ == "__main__":
    with RayActors() as actors, RayEngine(1, Silent()) as engine:
        actor = actors.start(sleeper, None)
        actor.call(0).result(60)
        calls = [engine.submit(sleep, 60), actor.call(60)]
        subprocess.run(["pkill", "-9", "-P", str(os.getpid()), "gcs_server"], check=True)
        for call in calls:
            said(lambda: call.result(30))
        said(lambda: actors.start(sleeper, None))
"""


def die_once(path: Path, progress: Progress) -> int:
    """Is killed at its first attempt, after a report of its progress."""
    progress.advance("steps", 5)
    time.sleep(0.6)
    progress.advance("steps", 1)
    if not path.exists():
        path.touch()
        time.sleep(0.6)
        os.kill(os.getpid(), signal.SIGKILL)
    progress.advance("steps", 1)
    return os.getpid()


def here(_: None, progress: Progress) -> str:  # noqa: ARG001
    return os.getcwd()


@pytest.mark.usefixtures("two_workers_of_ray")
class TestRay(WorkersContract):
    def make_engine(self, progress: Progress) -> RayEngine:
        return RayEngine(2, progress)

    def test_a_task_whose_worker_is_killed_is_done_anew_and_counts_once(self, tmp_path: Path) -> None:
        tally = Tally()
        with RayEngine(2, tally) as engine:
            assert engine.submit(die_once, tmp_path / "tried").result(60) != os.getpid()
        assert tally.done["steps"] == 7

    def test_progress_comes_before_the_end(self, tmp_path: Path) -> None:
        tally = Tally()

        def advance_until(released: Path, progress: Progress) -> int:
            steps = 0
            while steps == 0 or (steps < 600 and not released.exists()):
                progress.advance("steps", 1)
                steps += 1
                time.sleep(0.1)
            return steps

        with RayEngine(None, tally) as engine:
            future = engine.submit(advance_until, tmp_path / "released")
            wait_until(lambda: tally.done["steps"] > 0)
            assert not future.done()
            (tmp_path / "released").touch()
            steps = future.result(60)
        assert tally.done["steps"] == steps

    def test_tasks_work_where_this_process_works(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        with RayEngine(2, Silent()) as engine:
            assert engine.submit(here, None).result(60) == str(tmp_path)

    def test_a_directory_that_workers_do_not_have(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "getcwd", lambda: "/nowhere")
        with RayEngine(2, Silent()) as engine, pytest.raises(EngineError, match="directory /nowhere"):
            engine.submit(here, None).result(60)


@pytest.mark.usefixtures("two_workers_of_ray")
class TestRayActors(ActorsContract):
    def make_actors(self) -> RayActors:
        return RayActors()

    def test_a_directory_that_workers_do_not_have(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "getcwd", lambda: "/nowhere")
        with RayActors() as actors, pytest.raises(EngineError, match="directory /nowhere"):
            actors.start(Adder, 0).call(1).result(60)

    def test_what_actors_take_of_the_cluster(self) -> None:
        """One that takes the place of another takes what that had."""
        shares = [{"num_cpus": 0.25}, {"num_cpus": 0.5}]
        with RayActors(options=shares) as actors:
            first, second = (actors.start(cpus, None) for _ in shares)
            assert [actor.call(None).result(60) for actor in (first, second)] == [0.25, 0.5]
            first.close(at_once=True)
            assert actors.start(cpus, None).call(None).result(60) == 0.25

    def test_more_than_the_cluster_has_room_for(self, caplog: pytest.LogCaptureFixture) -> None:
        with RayActors(options=[{"num_cpus": 1.5}]) as actors:
            two = [actors.start(cpus, None) for _ in range(2)]
            assert "actors need 3 CPUs, the Ray cluster has 2" in caplog.text
            two[0].call(None).result(60)
            two[0].close()
            assert two[1].call(None).result(60) == 1.5


def cpus(_: None) -> Callable[[None], float]:
    return lambda _: float(ray.get_runtime_context().get_assigned_resources()["CPU"])  # type: ignore[no-untyped-call]


def test_ray_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError) as error:
        RayEngine(2, Silent())
    assert error.value.hint == "pip install 'rlx[ray]'"


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_no_cluster_there(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(EngineError, match=f"no Ray cluster answers at {address}"):
        RayEngine(2, Silent(), address)


@pytest.mark.parametrize("address", ["", "host:99999999", ":7", "ray://"])
def test_no_address(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", address or "//")
    with pytest.raises(EngineError, match="is not an address"):
        RayEngine(2, Silent(), address)


@pytest.mark.parametrize(
    ("end", "said"),
    [(lambda pid: os.killpg(pid, signal.SIGINT), "interrupted\n"), (lambda pid: os.kill(pid, signal.SIGKILL), "")],
    ids=["ctrl-c", "kill"],
)
def test_workers_stop_with_the_process_that_started_them(tmp_path: Path, end: Callable[[int], None], said: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    written = tmp_path / "written"
    script = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), str(written)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with script:
        wait_until(lambda: written.exists())
        end(script.pid)
        assert script.communicate(timeout=30) == (said, "")
    wait_until(lambda: written.stat().st_mtime < time.time() - 1)  # nobody writes any more


def test_a_head_that_is_lost(tmp_path: Path) -> None:
    """Ray itself would end the process after a minute, without an exception."""
    (tmp_path / "script.py").write_text(HEADLESS)
    script = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")], cwd=ROOT, capture_output=True, text=True, timeout=50, check=True
    )
    hint = "finished shards are kept: restart the cluster, then run the command again (collect: with --resume)"
    assert script.stdout.splitlines() == [
        f"EngineError True {hint}",
        "ActorDiedError True ",
        f"EngineError True {hint}",
    ]


def test_a_task_of_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it runs there, in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    task, future = cloudpickle.dumps((square, 3)), Future[Any]()
    answer, totals = ray_engine._work(task, 0, None, str(tmp_path), [str(tmp_path)])
    settle(future, answer)
    assert (future.result(), totals) == (9, {"steps": 3})
    assert sys.path[-1] == str(tmp_path)
    answer, totals = ray_engine._work(task, 0, None, str(tmp_path / "none"), [])
    settle(failed := Future[Any](), answer)
    assert isinstance(failed.exception(), EngineError)
    assert (str(tmp_path / "none") in str(failed.exception()), totals) == (True, {})
    with pytest.raises(NotImplementedError, match="the submitter of the tasks knows the queue"):
        ray_engine._Reported(0, None).expect("steps", 1)
