"""Any verb that writes, killed or told to end at any moment: the same command run again gives what was asked.

``pytest -m soak tests/interruption`` runs ``$RLX_SOAK_ROUNDS`` rounds of every verb, 6 where it is not set. Each round
is a function of ``$RLX_SOAK_SEED`` and its number; what a failing one did is in its message.
"""

import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.interruption.forks import ERR, OUT, Fork, Forks
from tests.interruption.verbs import VERBS, Verb, check_kept, prepared, write_data, written

ROUNDS = int(os.environ.get("RLX_SOAK_ROUNDS", "6"))
SEED = int(os.environ.get("RLX_SOAK_SEED", "0"))
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Killed as it began to answer, a server of resources or an interpreter says so for itself; nothing else may.
NOISE = ("Traceback", "resource_tracker", "leaked", "Exception ignored", "Fatal Python error", "semaphore")


@dataclass(frozen=True, slots=True)
class World:
    """What all rounds share.

    Args:
        forks: start the verbs.
        directory: the data and the rounds are below it.
    """

    forks: Forks
    directory: Path

    def undisturbed(self, verb: Verb) -> tuple[dict[str, str], float]:
        """What a verb writes, and how many seconds it takes."""
        place = prepared(verb, self.directory / "undisturbed", self.directory / "data")
        began = time.monotonic()
        code, _, err = self.forks.run(verb.arguments, place)
        seconds = time.monotonic() - began
        assert code == 0, err
        result = written(verb, place)
        shutil.rmtree(place)
        return result, seconds


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("world")
    write_data(directory / "data")
    with Forks({"RLX_HOME": str(directory / "home")}) as forks:
        yield World(forks, directory)


def finish(world: World, verb: Verb, place: Path, wanted: dict[str, str]) -> None:
    """Run it again, which gives what was asked, and leaves nothing beside."""
    code, _, err = world.forks.run([*verb.arguments, *verb.again], place)
    assert code == 0, err
    assert written(verb, place) == wanted
    assert left(place) <= {*verb.outputs, OUT, ERR}


def left(place: Path) -> set[str]:
    return {path.name for path in place.iterdir()}


def is_finished(verb: Verb, place: Path, wanted: dict[str, str]) -> bool:
    """Whether a verb whose output is there at once had already finished; what is there is whole."""
    if verb.grows or not any((place / name).exists() for name in verb.outputs):
        return False
    assert written(verb, place) == wanted
    return True


def started(world: World, verb: Verb, place: Path, seconds: float) -> Fork:
    """A process in the middle of its work."""
    fork = world.forks.start(verb.arguments, place)
    while not (place / ERR).exists():  # it has not begun
        time.sleep(0.001)
    time.sleep(seconds)
    return fork


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", VERBS)
def test_killed(name: str, world: World) -> None:
    verb, dice = VERBS[name], random.Random(f"{SEED} {name}")
    wanted, seconds = world.undisturbed(verb)
    for number in range(ROUNDS):
        place = prepared(verb, world.directory / "round", world.directory / "data")
        for _ in range(dice.choice([1, 1, 2])):
            fork = started(world, verb, place, dice.uniform(0, seconds))
            fork.signal(signal.SIGKILL, whole_group=dice.random() < 0.5)
            fork.ended()
            check_kept(verb, place)
        look(world, verb, place, dice)
        if not is_finished(verb, place, wanted):
            try:
                finish(world, verb, place, wanted)
            except AssertionError as error:
                error.add_note(f"{name}: round {number} of seed {SEED}")
                raise
        shutil.rmtree(place)


def look(world: World, verb: Verb, place: Path, dice: random.Random) -> None:
    """Now and then, sample from what is left of a dataset, and repair it."""
    for name in verb.outputs if verb.grows and not verb.damaged else ():
        for command in ("sample", "repair"):
            if dice.random() < 0.25:
                code, _, err = world.forks.run([command, name], place)
                assert code in (0, 1, 5), err
                assert not any(noise in err for noise in NOISE), err
                check_kept(verb, place)


@pytest.mark.xdist_group("interruption")
@pytest.mark.parametrize("name", ["merge", "split", "sample -o .zarr", "convert --to d4rl"])
def test_told_to_end_in_the_middle(name: str, world: World) -> None:
    """One round of the test below."""
    wanted, seconds = world.undisturbed(VERBS[name])
    interrupt(world, VERBS[name], signal.SIGTERM, seconds / 2, wanted, name)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", VERBS)
def test_told_to_end(name: str, world: World) -> None:
    verb, dice = VERBS[name], random.Random(f"{SEED} {name} signals")
    wanted, seconds = world.undisturbed(verb)
    for number in range(ROUNDS):
        interrupt(world, verb, dice.choice(ENDING), dice.uniform(0, seconds), wanted, f"{name}: round {number}")


def interrupt(
    world: World, verb: Verb, ending: signal.Signals, seconds: float, wanted: dict[str, str], what: str
) -> int:
    """Send a signal after that many seconds, and run the verb again; returns the code that it ended with."""
    place = prepared(verb, world.directory / "round", world.directory / "data")
    fork = started(world, verb, place, seconds)
    fork.signal(ending)
    code = fork.ended()
    _, err = fork.said()
    try:
        assert code in (0, 128 + ending), err
        assert not any(noise in err for noise in NOISE), err
        assert code == 0 or "error: interrupted" in err, err
        assert left(place) <= {*verb.outputs, OUT, ERR}
        check_kept(verb, place)
        if code == 0:
            assert written(verb, place) == wanted
        elif not is_finished(verb, place, wanted):
            finish(world, verb, place, wanted)
    except AssertionError as error:
        error.add_note(f"{what}: {ending.name} after {seconds:.3f} s of {' '.join(verb.arguments)}\n{err}")
        raise
    shutil.rmtree(place)
    return code
