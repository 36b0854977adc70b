"""``kill -9`` of a push to S3 or the hub, and of a pull: listed shards are whole, and a next run finishes."""

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from rlx.files.opening import open_location
from rlx.progress import Silent
from rlx.store.dataset import Dataset
from rlx.verbs.pull import pull
from rlx.verbs.push import push
from tests.verbs.datasets import check_listed
from tests.verbs.processes import child
from tests.verbs.pushes import content, files, is_claimed, write

ROUNDS = int(os.environ.get("RLX_SOAK_ROUNDS", "30"))
SHARDS = 6
# huggingface_hub uploads by an argument that its HTTP library has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


def killed(verb: str, source: Path | str, destination: Path | str, dice: random.Random, longest_s: float) -> None:
    """A verb that is killed in the middle of its work, or has just finished."""
    with child(verb, str(source), destination, dice.choice([1, 4])) as started:
        time.sleep(dice.uniform(0, longest_s) / 2)  # the process ends long after the verb does
        started.kill(whole_group=dice.random() < 0.5)


def undisturbed_s(verb: str, source: Path | str, destination: Path | str) -> float:
    with child(verb, str(source), destination, 1) as started:
        begun = time.monotonic()
        started.process.wait(timeout=60)
    return time.monotonic() - begun


def kill_pushes(bucket: str, directory: Path, rounds: int, seed: int) -> Counter[str]:
    """Kill a push once or twice, look at what lies in the bucket, and push again; returns what was found."""
    dice, found = random.Random(seed), Counter[str]()
    data = write(directory / "data", SHARDS, planned=SHARDS)
    longest_s = undisturbed_s("push", data, f"{bucket}/undisturbed")
    for number in range(rounds):
        url = f"{bucket}/{number}"
        for _ in range(dice.choice([1, 1, 2])):
            killed("push", data, url, dice, longest_s)
        there = content(open_location(url))
        listed = list(Dataset(url).shard_names) if "rlx.json" in there else []
        found["killed" if len(listed) < SHARDS else "finished"] += 1  # the manifest is sent last
        found["claims left"] += is_claimed(url)
        wanted = files(data)
        for name in listed:
            below = f"shards/{name}/"
            assert {path: bytes for path, bytes in there.items() if path.startswith(below)} == {
                path: bytes for path, bytes in wanted.items() if path.startswith(below)
            }, (seed, number)
        report = push(data, url, overwrite=False, progress=Silent())
        assert (report.shards, report.failures) == (SHARDS, {}), (seed, number)
        assert content(open_location(url)) == wanted, (seed, number)
        assert not is_claimed(url), (seed, number)
    return found


def kill_pulls(bucket: str, directory: Path, rounds: int, seed: int) -> Counter[str]:
    """Kill a pull once or twice, look at what has come, and pull again; returns what was found."""
    dice, found = random.Random(seed), Counter[str]()
    data, url = write(directory / "data", SHARDS, planned=SHARDS), f"{bucket}/data"
    push(data, url, progress=Silent())
    longest_s = undisturbed_s("pull", url, directory / "undisturbed")
    for number in range(rounds):
        destination = directory / str(number)
        for _ in range(dice.choice([1, 1, 2])):
            killed("pull", url, destination, dice, longest_s)
        listed = check_listed(destination)
        found["killed" if len(listed) < SHARDS else "finished"] += 1
        found["shards kept"] += len(listed) if len(listed) < SHARDS else 0
        report = pull(url, destination, progress=Silent())
        assert (report.shards, report.failures) == (SHARDS, {}), (seed, number)
        assert files(destination) == files(data), (seed, number)
    return found


@pytest.fixture(params=["s3", "hub"])
def location(request: pytest.FixtureRequest) -> str:
    """URL below which datasets are pushed."""
    if request.param == "s3":
        return str(request.getfixturevalue("bucket"))
    request.getfixturevalue("hub")
    return "hf://datasets/me/killed"


def test_a_push_is_killed(location: str, tmp_path: Path) -> None:
    kill_pushes(location, tmp_path, 1, seed=1)


def test_a_pull_is_killed(location: str, tmp_path: Path) -> None:
    kill_pulls(location, tmp_path, 1, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_pushes_are_killed_again_and_again(location: str, tmp_path: Path) -> None:
    found = kill_pushes(location, tmp_path, ROUNDS, seed=2)
    assert found["killed"], found
    print(f"push to {location}: {dict(found)}")  # noqa: T201


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_pulls_are_killed_again_and_again(location: str, tmp_path: Path) -> None:
    found = kill_pulls(location, tmp_path, ROUNDS, seed=2)
    assert found["killed"], found
    print(f"pull from {location}: {dict(found)}")  # noqa: T201
