"""Workers whose environment hangs, or ends their process."""

import logging
import os
import re
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rlx.collector import Collector, MultiCollector
from rlx.engine.local_actors import LocalActors
from rlx.errors import CollectError, WorkerLostError
from tests.collector.environments import Counter, Ending, Tagged, Unending, kill_without_a_word, leave, sleep

STEP_TIMEOUT = 3.0


def frames(sources: list[Any], **options: Any) -> tuple[int, int]:
    """How many steps a collector gives, and how many episodes it loses."""
    options = {"frames_per_batch": 30, "total_frames": 400, "step_timeout": STEP_TIMEOUT, **options}
    with MultiCollector(sources, None, **options) as collector:
        return sum(batch.numel() for batch in collector if batch is not None), collector.lost_episodes


@pytest.mark.parametrize("sync", [True, False])
def test_one_that_hangs_is_replaced(sync: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sources = [Counter, partial(Ending, sleep, 17, tmp_path / "flag"), Counter]
    assert frames(sources, sync=sync) == (400, 1)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert re.fullmatch(
        r"worker 1 died \(an actor did not finish a step within 3 s(, at .*environments\.py:\d+ in sleep)?\) "
        r"and is replaced, and its unfinished episodes are lost \(1\)",
        record.getMessage(),
    )


@pytest.mark.parametrize(
    ("ends", "how"),
    [
        (sleep, "did not finish a step within 1 s"),
        (kill_without_a_word, "ended with exit code 5"),
        (leave, "ended with exit code 1"),
    ],
)
def test_one_that_never_gets_further_is_given_up(ends: Callable[[], None], how: str) -> None:
    message = f"worker 1 died 3 times without progress, the last time so: an actor.* {how}"
    with pytest.raises(WorkerLostError, match=message) as lost:
        frames([Counter, partial(Ending, ends, 7)], sync=False, step_timeout=1)
    assert lost.value.hint


def test_where_episodes_are_asked_for_steps_alone_are_no_progress() -> None:
    sources = [Counter, Unending]
    with pytest.raises(WorkerLostError, match="worker 1 died 3 times without progress"):
        frames(sources, trajs_per_batch=2, frames_per_batch=None, sync=False, total_frames=10_000)


def test_a_stopped_process_is_replaced() -> None:
    with MultiCollector(
        [partial(Tagged, tag) for tag in range(2)], frames_per_batch=20, total_frames=80, step_timeout=STEP_TIMEOUT
    ) as collector:
        batches: list[Any] = []
        for batch in collector:
            batches.append(batch)
            if len(batches) == 1:
                os.kill(int(batches[0]["observation"][1, 0, 1]), signal.SIGSTOP)
        assert (sum(batch.numel() for batch in batches), collector.lost_episodes) == (80, 1)


def test_sys_exit_in_this_process_is_an_error_and_no_end() -> None:
    with pytest.raises(WorkerLostError, match=r"called sys.exit\('enough'\)"):
        list(Collector(partial(Ending, leave, 7), frames_per_batch=20, total_frames=40))
    with pytest.raises(CollectError, match="SystemExit: enough"):
        Collector(leave, frames_per_batch=20)


def test_limits_that_mean_nothing() -> None:
    with pytest.raises(CollectError, match=r"^step_timeout 0: expected more than 0$"):
        MultiCollector([Counter], frames_per_batch=20, step_timeout=0)
    with pytest.raises(CollectError, match="step_timeout: expected no actors") as refused:
        MultiCollector([Counter], frames_per_batch=20, step_timeout=1, actors=LocalActors())
    assert refused.value.hint == "actors=LocalActors(step_timeout=SECONDS)"
