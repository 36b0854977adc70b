"""What all engines promise, wherever they run their tasks."""

import os
import time
from abc import ABC, abstractmethod
from concurrent.futures import BrokenExecutor, Future
from pathlib import Path

import pytest

from rlx.engine.engines import Engine
from rlx.errors import DiskFullError
from rlx.progress import Progress, Silent
from tests.contracts.progress import Tally
from tests.contracts.tasks import die, fail, has_a_bug, meet, sleep, sleep_for_ever, square
from tests.verbs.datasets import wait_until


class EngineContract(ABC):
    """A test class of an engine inherits this and says how to make it."""

    @abstractmethod
    def make_engine(self, progress: Progress) -> Engine:
        """The engine; the test leaves its context."""

    def test_results_and_progress(self) -> None:
        tally = Tally()
        with self.make_engine(tally) as engine:
            futures = [engine.submit(square, task) for task in range(40)]
        assert [future.result(0) for future in futures] == [task * task for task in range(40)]
        assert tally.done["steps"] == sum(range(40))

    def test_results_do_not_depend_on_who_is_done_first(self) -> None:
        with self.make_engine(Silent()) as engine:
            futures = [engine.submit(sleep, seconds) for seconds in (0.2, 0.0, 0.1)]
            assert [future.result(60) for future in futures] == [0.2, 0.0, 0.1]

    def test_errors_come_back_whole(self) -> None:
        with self.make_engine(Silent()) as engine:
            known, bug = engine.submit(fail, "disk full").exception(), engine.submit(has_a_bug, 1).exception()
        assert isinstance(known, DiskFullError)
        assert (str(known), known.hint) == ("disk full", "free some space")
        assert isinstance(bug, IndexError)

    def test_an_error_does_not_stop_the_others(self) -> None:
        with self.make_engine(Silent()) as engine:
            failed, fine = engine.submit(fail, "disk full"), engine.submit(square, 3)
        assert isinstance(failed.exception(0), DiskFullError)
        assert fine.result(0) == 9


class WorkersContract(EngineContract):
    """The same of an engine whose tasks run in two other processes."""

    def test_tasks_run_elsewhere_and_two_at_once(self, tmp_path: Path) -> None:
        one, other = tmp_path / "one", tmp_path / "other"
        with self.make_engine(Silent()) as engine:
            met = [engine.submit(meet, pair) for pair in ((one, other), (other, one))]
            assert os.getpid() not in [future.result(60) for future in met]
            start = time.monotonic()
            futures = [engine.submit(sleep, 0.1) for _ in range(4)]
            for future in futures:
                future.result(60)
            took = time.monotonic() - start
        assert took >= 0.2, "never more than two"

    def test_a_worker_that_keeps_dying(self) -> None:
        with self.make_engine(Silent()) as engine:
            assert isinstance(engine.submit(die, 7).exception(60), BrokenExecutor)

    def test_an_exception_ends_the_workers_at_once(self) -> None:
        tally = Tally()
        futures: list[Future[None]] = []

        def interrupted() -> None:
            with self.make_engine(tally) as engine:
                futures.extend(engine.submit(sleep_for_ever, None) for _ in range(3))
                wait_until(lambda: tally.done["naps"] > 0)
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert all(future.done() for future in futures)
