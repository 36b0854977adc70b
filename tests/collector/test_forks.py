"""Collectors and environments in forked processes."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from rlx.buffer import LazyTensorStorage, ReplayBuffer
from rlx.collector import Collector, MultiCollector, ParallelEnv
from rlx.engine.local_actors import LocalActors
from rlx.errors import ForkError
from tests.buffer.test_forks import in_fork

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
MakeCollector = Callable[..., Any]


def single(**options: Any) -> Collector:
    return Collector("CartPole-v1", frames_per_batch=20, **options)


def multi(**options: Any) -> MultiCollector:
    return MultiCollector(["CartPole-v1"] * 2, frames_per_batch=20, **options)


@pytest.mark.parametrize("make", [single, multi])
def test_a_collector_is_refused_in_a_fork_and_goes_on_in_the_parent(make: MakeCollector) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=4)
    with make(replay_buffer=buffer) as collector:
        collector.next()
        collector.start()
        for use in (
            collector.next,
            collector.reset,
            collector.start,
            collector.state_dict,
            collector.update_policy_weights_,
            lambda: collector.set_seed(1),
            lambda: collector.pause().__enter__(),
        ):
            with pytest.raises(ForkError, match="a collector cannot be used in a fork of the process") as refused:
                in_fork(use)
        assert refused.value.hint
        assert in_fork(lambda: (collector.shutdown(), collector.is_running())) == (None, False)
        with collector.pause():
            written = buffer.write_count
        while buffer.write_count < written + 40:
            assert collector.is_running()
            time.sleep(0.01)


@pytest.mark.parametrize("make", [single, multi])
def test_a_collector_can_be_made_in_a_fork(make: MakeCollector) -> None:
    def collected() -> int:
        with make(total_frames=40) as collector:
            return sum(batch.numel() for batch in collector)

    with make() as mine:
        mine.next()
        assert in_fork(collected) == 40


def test_the_workers_of_a_process_that_is_killed_end_although_a_fork_of_it_lives_on() -> None:
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        actors = LocalActors()
        pid = actors.start(lambda _: lambda task: os.getpid() + task, None).call(0).result()
        if (fork := os.fork()) == 0:
            signal.pause()
        os.write(writer, f"{pid} {fork}".encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(parent, 0)
    worker, fork = map(int, os.read(reader, 100).split())
    try:
        while _is_running(worker):
            time.sleep(0.05)
    finally:
        os.kill(fork, signal.SIGKILL)  # it holds the output of the tests open


def _is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_environment_whose_processes_are_the_parents_is_refused() -> None:
    env = ParallelEnv(2, "CartPole-v1")
    env.rollout(3)
    with pytest.raises(ForkError, match="an environment with processes or threads of its own"):
        in_fork(lambda: env.rollout(3))
    in_fork(env.close)
    assert env.rollout(3).shape == (2, 3)
    env.close()
