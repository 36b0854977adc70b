"""What all actors promise, wherever their processes are."""

import os
import time
import traceback
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlx.engine.actor import Actor, ActorDiedError, Actors
from rlx.errors import CollectError
from tests.contracts.actor_functions import Adder, Closing, failing_to_start, misbehaving


class ActorsContract(ABC):
    """A test class of actors inherits this and says how to make them."""

    @abstractmethod
    def make_actors(self) -> Actors:
        """What starts actors; the test leaves its context."""

    def test_answers_come_in_order_and_the_state_is_kept(self) -> None:
        with self.make_actors() as actors:
            two = [actors.start(Adder, start) for start in (0, 1000)]
            futures = [[actor.call(task) for task in range(50)] for actor in two]
            sums = np.cumsum(range(50)).tolist()
            assert [[future.result(60) for future in of_one] for of_one in futures] == [
                sums,
                [1000 + total for total in sums],
            ]

    def test_actors_have_processes_of_their_own(self) -> None:
        with self.make_actors() as actors:
            pids = {actors.start(Adder, 0).call("pid").result(60) for _ in range(2)}
        assert len(pids | {os.getpid()}) == 3

    def test_closures_can_be_sent(self) -> None:
        base = 40
        with self.make_actors() as actors:
            actor: Actor[Any, Any] = actors.start(lambda more: lambda task: task(base + more), 1)
            assert actor.call(lambda sum_: (sum_ + 1, np.arange(3))).result(60)[0] == 42

    def test_large_answers(self) -> None:
        with self.make_actors() as actors:
            actor: Actor[Any, Any] = actors.start(lambda size: lambda task: np.full(size, task), 3_000_000)
            futures = [actor.call(np.int64(number)) for number in range(3)]
            assert [future.result(60).sum() for future in futures] == [0, 3_000_000, 6_000_000]

    def test_an_exception_comes_back_with_its_traceback_and_the_actor_lives_on(self) -> None:
        with self.make_actors() as actors:
            actor = actors.start(Adder, 0)
            actor.call(1)
            failed, after = actor.call("fail"), actor.call(1)
            with pytest.raises(CollectError, match="too hot") as error:
                failed.result(60)
            assert error.value.hint == "wait"
            assert "in __call__" in "".join(traceback.format_exception(error.value)), "where it was raised"
            assert after.result(60) == 2

    def test_what_cannot_be_sent_is_an_exception_too(self) -> None:
        with self.make_actors() as actors:
            actor = actors.start(misbehaving, None)
            with pytest.raises(Exception, match="1 and 2"):
                actor.call("exception").result(60)
            with pytest.raises(TypeError, match="generator"):
                actor.call("answer").result(60)
            with pytest.raises(TypeError, match="generator"):
                actor.call(number for number in range(3)).result(60)  # type: ignore[arg-type]

    def test_a_function_that_cannot_be_made(self) -> None:
        with self.make_actors() as actors:
            actor = actors.start(failing_to_start, "no motor")
            for future in [actor.call(0), actor.call(1)]:
                with pytest.raises(Exception, match="no motor"):
                    future.result(60)

    @pytest.mark.parametrize("order", ["exit", "kill"])
    def test_a_process_that_dies(self, order: str) -> None:
        with self.make_actors() as actors:
            actor, other = actors.start(Adder, 0), actors.start(Adder, 0)
            fine = actor.call(7)
            fatal, behind = actor.call(order), actor.call(7)
            assert fine.result(60) == 7
            for future in (fatal, behind, actor.call(7)):
                with pytest.raises(ActorDiedError):
                    future.result(60)
            assert other.call(1).result(60) == 1, "others live on"
            actor.close()

    def test_what_was_called_is_done_when_the_context_is_left(self) -> None:
        with self.make_actors() as actors:
            futures = [actors.start(Adder, 0).call(5) for _ in range(2)]
        assert [future.result(0) for future in futures] == [5, 5]

    def test_an_exception_ends_all_at_once(self) -> None:
        def interrupted() -> None:
            with self.make_actors() as actors:
                actor = actors.start(Adder, 0)
                actor.call(1).result(60)
                futures.append(actor.call("sleep"))
                raise KeyboardInterrupt

        futures: list[Any] = []
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        with pytest.raises(ActorDiedError):
            futures[0].result(0)
        assert time.monotonic() - start < 50

    def test_no_answer_after_the_end(self) -> None:
        with self.make_actors() as actors:
            actor = actors.start(Adder, 0)
            assert actor.call(1).result(60) == 1
            actor.close()
            actor.close(at_once=True)
            with pytest.raises(ActorDiedError):
                actor.call(1).result(60)

    def test_the_function_is_closed(self, tmp_path: Path) -> None:
        with self.make_actors() as actors:
            actors.start(Closing, tmp_path / "note").call(0.0)
        assert (tmp_path / "note").read_text() == "closed"
