"""Actors in processes of this machine."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import cloudpickle
import psutil
import pytest

from rlx.engine.actor import ActorDiedError, answered, made, settle, unpickled
from rlx.engine.local_actors import LocalActors
from rlx.errors import CollectError
from tests.contracts.actor_functions import Adder, Closing, failing_to_start, misbehaving
from tests.contracts.actors import ActorsContract
from tests.verbs.datasets import wait_until

# A script as users write them: no guard around its main part, functions of its own, and no end of its actors.
SCRIPT = """
import os, sys, time
from rlx.engine.local_actors import LocalActors

def make(first):
    def function(task):
        if task == "sleep":
            time.sleep(60)
        return first, os.getpid()
    return function

actor = LocalActors().start(make, "ready")
print(*actor.call("pid").result(), flush=True)
if sys.argv[1] == "leave":
    sys.exit(0)
actor.call("sleep").result()
"""


class TestLocalActors(ActorsContract):
    def make_actors(self) -> LocalActors:
        return LocalActors()


@pytest.mark.parametrize(("order", "how"), [("exit", "ended with exit code 3"), ("kill", "was ended by SIGKILL")])
def test_how_a_process_ended(order: str, how: str) -> None:
    with LocalActors() as actors, pytest.raises(ActorDiedError, match=f"{how}$"):
        actors.start(Adder, 0).call(order).result(60)


def test_a_function_that_is_ended_at_once_is_closed(tmp_path: Path) -> None:
    with LocalActors() as actors:
        actor = actors.start(Closing, tmp_path / "note")
        actor.call(0.0).result(60)
        actor.call(60.0)
        time.sleep(0.1)
        actor.close(at_once=True)
    assert (tmp_path / "note").read_text() == "closed"


def test_what_an_actor_started_ends_with_it() -> None:
    def make(_: None) -> object:
        return lambda __: subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid

    with LocalActors() as actors:
        actor = actors.start(make, None)  # type: ignore[arg-type, var-annotated]
        started = psutil.Process(actor.call(None).result(60))
        os.kill(actor.pid, signal.SIGKILL)
        wait_until(lambda: not _lives(started))


def test_ctrl_c_does_not_reach_an_actor() -> None:
    with LocalActors() as actors:
        actor = actors.start(Adder, 1)
        actor.call(1).result(60)
        os.kill(actor.pid, signal.SIGINT)
        assert actor.call(1).result(60) == 3


@pytest.mark.parametrize("end", ["leave", "kill"])
def test_actors_end_with_a_script_that_does_not_close_them(tmp_path: Path, end: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    script = subprocess.Popen([sys.executable, str(tmp_path / "script.py"), end], stdout=subprocess.PIPE, text=True)
    with script:
        assert script.stdout is not None
        word, pid = script.stdout.readline().split()
        actor = psutil.Process(int(pid)) if end == "kill" else None
        if end == "kill":
            script.kill()
        script.wait(60)
    assert word == "ready"
    wait_until(lambda: not psutil.pid_exists(int(pid)) if actor is None else not _lives(actor))


STUBBORN = """
import subprocess, sys, time
from rlx.engine.local_actors import LocalActors

def make(first):
    def function(task):
        if task == "start":
            return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid
        while True:
            try:
                time.sleep(60)
            except BaseException:
                pass
    return function

actor = LocalActors().start(make, None)
print(actor.pid, actor.call("start").result(), flush=True)
actor.call("work").result()
"""


def test_an_actor_and_its_processes_die_within_a_second_of_a_killed_parent(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(STUBBORN)
    with subprocess.Popen([sys.executable, str(tmp_path / "script.py")], stdout=subprocess.PIPE, text=True) as script:
        assert script.stdout is not None
        processes = [psutil.Process(int(pid)) for pid in script.stdout.readline().split()]
        time.sleep(0.2)  # until it works
        script.kill()
        script.wait(60)
        wait_until(lambda: not any(map(_lives, processes)))


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _answer(make: Callable[[Any], Callable[[Any], Any]], argument: Any, task: Any) -> Future[Any]:
    """What an actor of this function answers, in the bytes that both sides send."""
    future: Future[Any] = Future()
    function = made(lambda: unpickled(cloudpickle.dumps((make, argument))))
    settle(future, answered(function, cloudpickle.dumps(task)))
    return future


def test_answers_and_errors_travel_as_bytes() -> None:
    assert _answer(Adder, 40, 2).result() == 42
    failed = _answer(Adder, 0, "fail").exception()
    assert isinstance(failed, CollectError)
    assert (str(failed), failed.hint) == ("too hot", "wait")
    assert "in the other process" in failed.__notes__[0]
    assert str(_answer(failing_to_start, "no arena", 1).exception()) == "no arena"
    changed = _answer(misbehaving, None, "exception").exception()
    assert isinstance(changed, RuntimeError)
    assert str(changed) == "CannotBeMadeAgain: 1 and 2"
    assert isinstance(_answer(misbehaving, None, "generator").exception(), TypeError)
    future: Future[Any] = Future()
    settle(future, b"no pickle")
    assert isinstance(future.exception(), UnpicklingError)
