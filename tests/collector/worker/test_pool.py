"""The rule by which a pool replaces workers that die, or gives them up."""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlx.collector.worker.pool import WorkerPool
from rlx.engine.actor import Actor
from rlx.engine.local_actors import LocalActors
from rlx.errors import CollectError, WorkerLostError

Task = str | int | Path


def make_worker(number: int) -> Callable[[Task], Any]:
    """A worker that doubles numbers, and knows words that end it."""

    def work(task: Task) -> Any:
        if task == "exit":
            sys.exit(3)
        if task == "kill":
            os._exit(4)
        if task == "fail":
            raise CollectError("the motor is hot")
        if isinstance(task, Path) and not task.exists():
            task.touch()
            os._exit(5)
        return number, task * 2 if isinstance(task, int) else "done"

    return work


class Doubling(WorkerPool[Task]):
    """Pool of such workers; it gives a replacement what was not answered."""

    def __init__(self, actors: LocalActors, count: int, deaths_in_prepare: int = 0) -> None:
        self.actors = actors
        self.started: list[int] = []
        self.written_off: list[int] = []
        self._to_die = deaths_in_prepare
        super().__init__(count)

    def _start(self, worker: int) -> Actor[Any, Any]:
        self.started.append(worker)
        return self.actors.start(make_worker, worker)

    def _prepare(self, worker: int) -> None:
        if self._to_die:
            self._to_die -= 1
            self._actors[worker].call("kill").result()

    def _write_off(self, worker: int) -> str:
        self.written_off.append(worker)
        return "and all is lost"

    def _tasks_after_death(self, worker: int, unanswered: Sequence[Task]) -> Sequence[Task]:  # noqa: ARG002
        return ["again" if task in ("exit", "kill") else task for task in unanswered]

    submit = WorkerPool._submit
    next_answer = WorkerPool._next_answer
    last_answers = WorkerPool._last_answers
    answers_to = WorkerPool._answers_to


@pytest.fixture
def actors() -> Iterator[LocalActors]:
    with LocalActors() as found:
        yield found


@pytest.mark.parametrize(("ends", "code"), [("exit", 3), ("kill", 4)])
def test_a_replacement_answers_what_the_dead_worker_had_not(
    ends: str, code: int, actors: LocalActors, caplog: pytest.LogCaptureFixture
) -> None:
    pool = Doubling(actors, 2)
    for task in (1, ends, 2, 3):
        pool.submit(1, task)
    with caplog.at_level(logging.WARNING):
        answers = [pool.next_answer() for _ in range(4)]
    assert [(task, value) for _, task, value in answers] == [
        (1, (1, 2)),
        ("again", (1, "done")),
        (2, (1, 4)),
        (3, (1, 6)),
    ]
    assert (pool.started, pool.written_off) == ([0, 1, 1], [1])
    assert caplog.messages == [
        f"worker 1 died (an actor's process ended with exit code {code}) and is replaced, and all is lost"
    ]


@pytest.mark.parametrize("has_progress", [False, True])
def test_three_deaths_without_progress_end_the_run(has_progress: bool, actors: LocalActors) -> None:
    pool = Doubling(actors, 2)
    for _ in range(2):
        pool.submit(0, "kill")
        assert pool.next_answer()[2] == (0, "done")
    if has_progress:
        pool.made_progress(0)
    pool.submit(0, "kill")
    if has_progress:
        assert pool.next_answer()[2] == (0, "done")
    else:
        with pytest.raises(WorkerLostError, match="worker 0 died 3 times without progress") as lost:
            pool.next_answer()
        assert lost.value.hint


def test_deaths_before_the_first_task_count_too(actors: LocalActors, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        pool = Doubling(actors, 1, deaths_in_prepare=2)
    assert pool.written_off == []
    assert all(message.endswith("and is replaced, before its first step") for message in caplog.messages)
    pool.submit(0, "kill")
    with pytest.raises(WorkerLostError, match="died 3 times"):
        pool.next_answer()
    with pytest.raises(WorkerLostError, match="died 3 times"):
        Doubling(actors, 1, deaths_in_prepare=3)


def test_a_worker_that_dies_at_a_question_to_all_answers_it(tmp_path: Path, actors: LocalActors) -> None:
    pool = Doubling(actors, 3)
    flag = tmp_path / "flag"
    assert pool.answers_to({2: 5, 0: flag, 1: 6}) == {2: (2, 10), 0: (0, "done"), 1: (1, 12)}
    assert pool.started == [0, 1, 2, 0]


def test_last_answers_are_those_of_workers_that_still_give_any(actors: LocalActors) -> None:
    pool = Doubling(actors, 3)
    pool.submit(0, "fail")
    pool.submit(1, "kill")
    pool.submit(2, 7)
    with pytest.raises(CollectError, match="the motor is hot"):
        _exhausted(pool)
    given = pool.last_answers([0, 2], 8)
    assert (0, (0, 16)) in given
    assert given[-1] == (2, (2, 16))


def _exhausted(pool: Doubling) -> None:
    while True:
        pool.next_answer()
