"""Arrays that two processes see."""

import tempfile
from pathlib import Path

import numpy as np
import pytest

from rlx.engine import shared_memory
from rlx.engine.local_actors import LocalActors
from rlx.engine.shared_memory import Pulse, PulseWatch, SharedArrays, begin_step, open_pulse, pulse_file
from rlx.errors import DiskFullError
from tests.verbs.datasets import wait_until

LAYOUT = {"flag": ((), "bool"), "empty": ((0, 3), "int32"), "grid": ((3, 5), "float64"), "bytes": ((7,), "uint8")}


def test_another_process_sees_what_is_written() -> None:
    ours = SharedArrays(LAYOUT)

    def make(path: Path) -> object:
        theirs = SharedArrays(LAYOUT, path)

        def function(_: None) -> list[int]:
            theirs["grid"][:] += 1
            theirs["flag"][...] = True
            return [int(number) for number in theirs["bytes"]]

        return function

    with LocalActors() as actors:
        actor = actors.start(make, ours.path)  # type: ignore[arg-type, var-annotated]
        assert actor.call(None).result(60) == [0] * 7
        ours.unlink()
        assert not ours.path.exists()
        ours["bytes"][:] = range(7)
        assert actor.call(None).result(60) == list(range(7))
    assert ours["flag"]
    np.testing.assert_array_equal(ours["grid"], np.full((3, 5), 2.0))
    assert ours["empty"].shape == (0, 3)


def test_one_process_at_a_time() -> None:
    ours = SharedArrays({"count": ((), "int64")})

    def make(path: Path) -> object:
        theirs = SharedArrays({"count": ((), "int64")}, path)

        def function(times: int) -> None:
            for _ in range(times):
                with theirs.locked():
                    theirs["count"][...] = int(theirs["count"]) + 1

        return function

    with LocalActors() as actors:
        two = [actors.start(make, ours.path) for _ in range(2)]  # type: ignore[arg-type, var-annotated]
        for future in [actor.call(2000) for actor in two]:
            future.result(60)
    ours.unlink()
    assert ours["count"] == 4000


def test_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_IN_MEMORY", tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(DiskFullError, match="shared memory"):
        SharedArrays({"huge": ((1 << 55,), "uint8")})
    assert list(tmp_path.iterdir()) == []


def test_a_pulse_that_stops_in_a_step_or_with_its_process() -> None:
    with pulse_file() as file:
        mine, watch = Pulse(file.fileno()), PulseWatch(Pulse(file.fileno()), 0.2)
        mine.beat()
        wait_until(lambda: watch.has_hung(is_stopped=False))
        mine.beat()
        assert not watch.has_hung(is_stopped=False), "the step has ended"
        wait_until(lambda: watch.has_hung(is_stopped=True))


def test_a_step_within_a_step_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_mine", None)
    assert begin_step() is None, "nobody watches"
    with pulse_file() as file:
        open_pulse(file.fileno())
        pulse = begin_step()
        assert pulse is not None
        assert begin_step() is None
        assert pulse.count == 1
        pulse.beat()
        assert begin_step() is not None
