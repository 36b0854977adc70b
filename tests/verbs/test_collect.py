import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import rlx
from rlx.collector.environment.gym_env import EnvSource
from rlx.collector.worker.shard_worker import Budget, Collection
from rlx.errors import CollectError, DatasetError, DatasetExistsError, DiskFullError, OptionError
from rlx.manifest import Manifest
from rlx.schema import Field, Role
from rlx.store.codec import Codec
from rlx.store.verification import UNLISTED, verify
from rlx.verbs.report import Report
from tests.collector.environments import Counter, Rich, Structured
from tests.collector.walks import lane_of_walks, talkative, talking
from tests.verbs.datasets import ROOT, tree, wait_until
from tests.verbs.processes import printed


def collected(path: Path, environment: EnvSource = Counter, **options: Any) -> Report:
    return rlx.collect(environment, output=path, **{"envs": 3, "shard_steps": 1000, **options})


def lengths(path: Path) -> list[int]:
    table: list[int] = rlx.open(path).trajectories.length.tolist()
    return table


def seen(path: Path) -> list[int]:
    dataset = rlx.open(path)
    numbers: list[int] = dataset[np.arange(len(dataset))]["observation"][:, 0].tolist()
    return numbers


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 24, 25, 100, 257, 1000])
def test_exactly_so_many_steps_in_whole_episodes(tmp_path: Path, steps: int) -> None:
    report = collected(tmp_path / "set", steps=steps, shard_steps=40)
    assert (report.steps, report.steps_written) == (steps, steps)
    dataset = rlx.open(tmp_path / "set")
    found = dataset[np.arange(steps)]
    now, then = found["observation"][:, 0], found["next", "observation"][:, 0]
    assert ((then - now) == 1).all(), "final observations are real"
    table = dataset.trajectories
    assert (table.terminated | table.truncated).all()
    assert table.from_reset.all()
    assert table.final_recorded.all()
    # Whole episodes have 3 or 5 steps by turns; of each of three environments the last may be cut off, flagged so.
    cut = [length for length, terminated in zip(table.length, table.terminated, strict=True) if not terminated]
    assert sum(length != 5 for length in cut) <= 3
    assert verify(tmp_path / "set").ok


def test_exactly_so_many_episodes(tmp_path: Path) -> None:
    report = collected(tmp_path / "set", episodes=10)
    assert (report.trajectories, report.steps) == (10, sum(lengths(tmp_path / "set")))
    assert lengths(tmp_path / "set") == [3, 3, 3, 5, 5, 5, 3, 3, 3, 5]


def test_shards_end_with_episodes_and_are_listed_as_they_end(tmp_path: Path) -> None:
    collected(tmp_path / "set", steps=3000, shard_steps=300)
    listed = Manifest.load(tmp_path / "set")
    assert len(listed.shards) > 5
    assert max(shard.steps for shard in listed.shards) < 300 + 3 * 64
    assert listed.missing == []
    assert rlx.open(tmp_path / "set").trajectories.episode.tolist() == list(range(listed.trajectories))


@pytest.mark.parametrize("environment", ["CartPole-v1", "ALE/Pong-v5", Rich])
def test_the_same_seed_gives_the_same_bytes(tmp_path: Path, environment: EnvSource) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        collected(tmp_path / name, environment, steps=300, shard_steps=100, seed=seed)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert tree(tmp_path / "a") != tree(tmp_path / "c")


def test_resumed_until_there_is_as_much(tmp_path: Path) -> None:
    path = tmp_path / "set"
    collected(path, "CartPole-v1", steps=300, shard_steps=100)
    before = {file: data for file, data in tree(path).items() if "shards" in str(file)}
    with pytest.raises(DatasetExistsError, match="holds a dataset"):
        collected(path, "CartPole-v1", steps=500)
    report = collected(path, "CartPole-v1", steps=500, resume=True)
    assert (report.steps, report.steps_written) == (500, 200)
    after = tree(path)
    assert all(after[file] == data for file, data in before.items()), "what is listed stays as it is"
    listed = Manifest.load(path)
    assert [made["session"] for made in listed.lineage] == [0, 1]
    assert {shard.origin["session"] for shard in listed.shards} == {0, 1}
    first = rlx.open(path)[np.arange(500)]["observation"]
    assert len(np.unique(first.numpy(), axis=0)) > 490, "the second session is no repetition of the first"
    assert collected(path, "CartPole-v1", steps=500, resume=True).steps_written == 0
    assert collected(path, "CartPole-v1", steps=50, overwrite=True).steps == 50


def test_a_finished_dataset_whose_command_has_its_options_in_another_order(tmp_path: Path) -> None:
    path = tmp_path / "set"
    collected(path, "CartPole-v1", steps=30)
    listed = Manifest.load(path)
    (made,) = listed.lineage
    earlier = "rlx collect CartPole-v1 --steps 30 --envs 3 --policy random --seed 0 --shard-steps 1000"
    assert earlier != made["command"]
    replace(listed, lineage=[{**made, "command": earlier}]).save(path)
    assert collected(path, "CartPole-v1", steps=30).skipped_shards == 1


def test_another_dataset_is_left_alone(tmp_path: Path) -> None:
    collected(tmp_path / "set", steps=30)
    with pytest.raises(DatasetExistsError, match="another dataset"):
        collected(tmp_path / "set", "CartPole-v1", steps=50, resume=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("all of it")
    with pytest.raises(DatasetExistsError, match=r"thesis\.txt"):
        collected(tmp_path / "mine", steps=30)


@pytest.mark.parametrize("environment", [Rich, Structured])
@pytest.mark.parametrize("store", ["zarr", "memmap"])
def test_pictures_vectors_and_parts(tmp_path: Path, environment: type[Rich], store: str) -> None:
    collected(tmp_path / "set", environment, steps=50, store=store)
    dataset = rlx.open(tmp_path / "set")
    steps = dataset[np.arange(50)]
    t = steps["observation", "picture"][:, 0, 0]
    assert (t.unique() == np.arange(4)).all()
    assert (steps["next", "observation", "picture"][:, 5, 5] == t + 1).all()
    assert (steps["next", "observation", "vector"][:, 1] == (t + 1) / 4).all()
    assert (steps["next", "observation", "pair", "0"] == (t + 1) % 4).all()
    assert (steps["next", "reward"] == -2.5).all(), "raw"
    if environment is Structured:
        assert set(steps["action", "press"].tolist()) == {5, 6}
        assert steps["action", "push"].shape == (50, 2)
    else:
        assert steps["action"].shape == (50, 2)
    assert verify(tmp_path / "set").ok


def test_pictures_share_a_dictionary_over_sessions(tmp_path: Path) -> None:
    collected(tmp_path / "set", Rich, steps=50)
    collected(tmp_path / "set", Rich, steps=100, resume=True)
    metadata = [path.read_bytes() for path in sorted(tmp_path.glob("set/shards/*/observation/picture/zarr.json"))]
    assert len(metadata) == 2
    assert b"dictionary" in metadata[0]
    dictionaries = [data[data.index(b'"dictionary"') :][:200] for data in metadata]
    assert dictionaries[0] == dictionaries[1]


def test_what_led_here_is_in_the_manifest(tmp_path: Path) -> None:
    collected(tmp_path / "set", "ALE/Pong-v5", steps=20, seed=7)
    listed = Manifest.load(tmp_path / "set")
    assert listed.id == "ALE/Pong-v5"
    assert listed.notes["policy"] == "random"
    assert listed.notes["environment_settings"]["repeat_action_probability"] == 0.25
    (made,) = listed.lineage
    command = "rlx collect ALE/Pong-v5 --envs 3 --steps 20 --policy random --seed 7 --shard-steps 1000"
    assert (made["command"], made["seed"]) == (command, 7)
    assert {"rlx", "gymnasium", "ale-py", "torch"} <= set(made)
    assert Codec.from_json(listed.codec).name == "zstd-dict"
    collected(tmp_path / "short", lambda: gymnasium.make("CartPole-v1", max_episode_steps=9), steps=10)
    assert Manifest.load(tmp_path / "short").notes["environment_spec"]["max_episode_steps"] == 9


def test_episodes_before_a_failure_are_kept(tmp_path: Path) -> None:
    with pytest.raises(CollectError, match="the motor is hot"):
        collected(tmp_path / "set", lambda: Counter(fails_after=200), steps=1000)
    listed = Manifest.load(tmp_path / "set")
    assert listed.steps >= 300
    assert listed.missing == ["00001"]
    assert collected(tmp_path / "set", steps=1000, resume=True).steps == 1000


def test_a_failure_before_any_episode(tmp_path: Path) -> None:
    with pytest.raises(CollectError, match="the motor is hot"):
        collected(tmp_path / "set", lambda: Counter(fails_after=2), steps=1000)
    assert collected(tmp_path / "set", steps=10).steps == 10


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("tests.collector.environments:of_floats", r"float64\[3, 2\], expected int64\[3\]"),
        ("tests.collector.environments:nobody", "has no 'nobody'"),
        ("no.such.module:act", "cannot be imported"),
        ("absent.py:act", "does not exist"),
        ("absent.pt2", "does not exist"),
    ],
)
def test_policies_that_do_not_fit(tmp_path: Path, policy: str, message: str) -> None:
    with pytest.raises(CollectError, match=message):
        collected(tmp_path / "set", steps=10, policy=policy)


@pytest.mark.parametrize(
    "collection", [{"budget": Budget()}, {"budget": Budget(1, 1)}, {"budget": Budget(steps=0)}, {"num_envs": 0}]
)
def test_numbers_that_make_no_sense(collection: dict[str, Any]) -> None:
    with pytest.raises(CollectError, match="expected"):
        Collection(**collection)


def run_child(arguments: Sequence[str]) -> "subprocess.Popen[str]":
    path = os.pathsep.join([str(ROOT), str(ROOT / "commands")])
    program = "from rlx_cli.app import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", program, "collect", *arguments, "--quiet"],
        env={**os.environ, "PYTHONPATH": path, "PYTHONFAULTHANDLER": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def shards_listed(path: Path) -> int:
    try:
        return len(Manifest.load(path).shards)
    except DatasetError:
        return 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_killed_and_resumed(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "set"
    options = ["CartPole-v1", "-o", str(path), "--steps", "1000000", "--shard-steps", "2000"]
    child = run_child(options)
    wait_until(lambda: shards_listed(path) >= 2)
    child.send_signal(number)
    _, errors = printed(child)
    assert child.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    assert number == signal.SIGKILL or "run the same command with --resume" in errors
    listed = Manifest.load(path)
    assert len(listed.missing) == 1
    assert verify(path).ok
    report = collected(path, "CartPole-v1", steps=listed.steps + 500, resume=True)
    assert (report.steps, report.steps_written) == (listed.steps + 500, 500)
    assert Manifest.load(path).missing == []
    assert verify(path).ok


@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_keeps_finished_shards(small_disk: Path, workers: int) -> None:
    path = small_disk / "set"
    with pytest.raises(DiskFullError, match="no room") as error:
        collected(path, "CartPole-v1", steps=1_000_000, shard_steps=1000, workers=workers)
    assert error.value.hint == "free some space, or inodes (df -i), and run the command again"
    listed = Manifest.load(path)
    assert listed.steps > 1000
    assert listed.missing
    assert {problem.problem for problem in verify(path).problems} <= {UNLISTED}
    subprocess.run(["mount", "-o", "remount,size=20m", small_disk], check=True)
    report = collected(path, "CartPole-v1", steps=listed.steps + 2000, resume=True)
    assert (report.steps, report.steps_written) == (listed.steps + 2000, 2000)
    assert verify(path).ok


@pytest.mark.parametrize("store", ["zarr", "memmap"])
def test_what_a_policy_writes_is_stored(tmp_path: Path, store: str) -> None:
    path = tmp_path / "set"
    torch.manual_seed(0)
    collected(path, lane_of_walks, steps=200, policy="tests.collector.memory:agent", store=store)
    dataset = rlx.open(path)
    schema = dataset.manifest.schema
    assert schema["action_log_prob"] == Field("float32", (), Role.STEP)
    assert schema["logits"] == Field("float32", (4,), Role.STEP)
    assert schema["h"] == Field("float32", (5,), Role.OBSERVATION)
    steps = dataset[np.arange(200)]
    starts = np.zeros(200, bool)
    starts[np.cumsum(dataset.trajectories.length)[:-1]] = starts[0] = True
    assert (steps["is_init"][:, 0].numpy() == starts).all()
    assert not steps["h"][starts].any()
    assert steps["h"][~starts].all()
    inside = np.flatnonzero(~starts)
    assert torch.equal(steps["h"][inside], steps["next", "h"][inside - 1])
    assert verify(path).ok


def test_a_distribution_is_sampled_as_the_seed_says(tmp_path: Path) -> None:
    policy = "tests.collector.memory:fixed_agent"
    state = torch.get_rng_state()
    for name in "ab":
        collected(tmp_path / name, lane_of_walks, steps=300, policy=policy, seed=0)
    collected(tmp_path / "c", lane_of_walks, steps=300, policy=policy, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    a, b, c = (rlx.open(tmp_path / name)[np.arange(300)] for name in "abc")
    assert (a == b).all()
    assert not torch.equal(a["action"], c["action"])
    assert 0.3 < (a["action"] != a["logits"].argmax(-1)).float().mean() < 0.9


def test_a_deterministic_policy_takes_the_mode(tmp_path: Path) -> None:
    policy = "tests.collector.memory:fixed_agent"
    collected(tmp_path / "a", lane_of_walks, steps=100, policy=policy, deterministic=True)
    steps = rlx.open(tmp_path / "a")[np.arange(100)]
    assert torch.equal(steps["action"], steps["logits"].argmax(-1))


def test_some_of_what_a_policy_writes_is_left_out(tmp_path: Path) -> None:
    policy = "tests.collector.memory:counting"
    collected(tmp_path / "a", lane_of_walks, steps=50, policy=policy)
    collected(tmp_path / "b", lane_of_walks, steps=50, policy=policy, drop=["said", "next/double"])
    a, b = (rlx.open(tmp_path / name).manifest.schema for name in "ab")
    assert set(a) - set(b) == {"said/count", "double"}
    with pytest.raises(CollectError, match="drop 'clok': the policy writes said/count, next/double, clock"):
        collected(tmp_path / "c", lane_of_walks, steps=50, policy=policy, drop=["clok"])
    assert not (tmp_path / "c" / "rlx.json").exists()


def test_another_policy_goes_on_only_if_it_writes_the_same(tmp_path: Path) -> None:
    path = tmp_path / "set"
    collected(path, lane_of_walks, steps=50, policy="tests.collector.memory:arrays")
    collected(path, lane_of_walks, steps=90, policy="tests.collector.memory:arrays", resume=True)
    assert len(rlx.open(path)) == 90
    with pytest.raises(DatasetExistsError, match="holds another dataset: its field"):
        collected(path, lane_of_walks, steps=130, resume=True)
    assert len(rlx.open(path)) == 90


def test_infos_are_stored_and_others_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    collected(tmp_path / "a", talkative, steps=100)
    (record,) = caplog.records
    assert record.message == (
        "info that is not kept: t, vector, who, odd/t, last; `info` all or `info` KEY,... keeps it; "
        "info that cannot be kept (expected texts as keys, and numbers or texts as values): object"
    )
    caplog.clear()
    collected(tmp_path / "c", talkative, steps=100, info=["t", "vector", "who", "odd/t", "last", "tt"])
    assert [record.message for record in caplog.records][1:] == [
        "info that the first steps lack: tt; stored as NaN until it appears"
    ]
    caplog.clear()
    collected(tmp_path / "b", talkative, steps=100, info=["t", "who", "odd/t"], workers=2)
    assert len(caplog.records) == 1
    dataset = rlx.open(tmp_path / "b")
    steps = dataset[np.arange(100)]
    assert dataset.manifest.schema["info/who"] == Field("string", (), Role.NEXT)
    age = np.concatenate([np.arange(1, length + 1) for length in dataset.trajectories.length])
    assert (steps["next", "info", "t"].numpy() == age).all()
    assert (steps["next", "info", "odd", "t"].isnan().numpy() == (age % 2 == 0)).all()
    assert set(steps["next", "info", "who"]) == {"lane 0", "lane 1", "lane 2"}


class Numbered(Counter):
    """A Counter whose info has keys that are numbers."""

    def step(self, action: Any) -> Any:
        *outcome, _ = super().step(action)
        return (*outcome, {"t": self._t, 0: 1.0, "agents": {1: 2.0}})


@pytest.mark.parametrize("keys", [(), "all"])
def test_infos_whose_keys_are_numbers_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture, keys: Any) -> None:
    collected(tmp_path / "set", Numbered, steps=40, info=keys)
    (record,) = caplog.records
    assert record.message.endswith(
        "info that cannot be kept (expected texts as keys, and numbers or texts as values): 0, agents/1"
    )


@pytest.mark.parametrize(("scale", "dtype"), [(0.25, "float32"), (16777217.1, "float64")])
def test_rewards_are_stored_in_the_type_that_holds_them(tmp_path: Path, scale: float, dtype: str) -> None:
    collected(tmp_path / "set", partial(talkative, scale), steps=90)
    dataset = rlx.open(tmp_path / "set")
    assert dataset.manifest.schema["reward"].dtype == dtype
    rewards = dataset[np.arange(90)]["next", "reward"][:, 0].double().numpy()
    age = np.concatenate([np.arange(1, length + 1) for length in dataset.trajectories.length])
    assert (rewards == scale * age).all()
    assert dataset.manifest.notes["rewards"] == "raw"


class LateReward(Counter):
    """A reward that float32 would change, after the first steps."""

    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return (observation, 0.1 if self._episode > 40 else 1.0, *rest)


def test_a_reward_that_would_be_rounded_later(tmp_path: Path) -> None:
    with pytest.raises(CollectError, match=r"reward 0\.1 would be rounded") as error:
        collected(tmp_path / "a", LateReward, steps=900)
    assert "`reward_dtype` float64" in str(error.value.hint)
    assert Manifest.load(tmp_path / "a").steps == 384, "episodes that ended before are kept"
    collected(tmp_path / "b", LateReward, steps=900, reward_dtype="float64")
    rewards = rlx.open(tmp_path / "b")[np.arange(900)]["next", "reward"]
    assert set(rewards.flatten().tolist()) == {1.0, 0.1}
    collected(tmp_path / "c", LateReward, steps=900, reward_dtype="float32")
    assert rlx.open(tmp_path / "c").manifest.notes["rewards"] == "as float32"


def test_texts_are_stored(tmp_path: Path) -> None:
    collected(tmp_path / "set", talking, steps=80)
    dataset = rlx.open(tmp_path / "set")
    assert dataset.manifest.schema["observation/task"].is_text
    steps = dataset[np.arange(80)]
    ended = dataset.trajectories.cut
    last = np.cumsum(dataset.trajectories.length) - 1
    assert all(steps["next", "observation", "task"][at].endswith("left 0") for at in last[~ended])
    assert all(isinstance(action, str) and action for action in steps["action"])


def test_episodes_that_the_end_cuts_are_marked(tmp_path: Path) -> None:
    collected(tmp_path / "set", lambda: Counter((1000,)), steps=30)
    table = rlx.open(tmp_path / "set").trajectories
    assert table.cut.all()
    assert table.truncated.all()
    collected(tmp_path / "whole", steps=24)
    assert not rlx.open(tmp_path / "whole").trajectories.cut.any()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"envs": 10**9}, "`envs` 1000000000: expected 1 to 65,536"),
        ({"workers": 10**6}, "`workers` 1000000: expected 1 to 4,096"),
        ({"envs": 0}, "`envs` 0: expected 1 to 65,536"),
        ({"shard_steps": 0}, "`shard_steps` 0: expected at least 1"),
    ],
)
def test_numbers_out_of_range(wrong: dict[str, int], said: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"steps": 5, **wrong}
    with pytest.raises(OptionError, match=said):
        rlx.collect("CartPole-v1", output=tmp_path / "set", **options)
