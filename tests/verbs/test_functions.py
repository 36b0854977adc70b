"""The functions of rlx do what the commands do, and return what ``--json`` prints."""

import functools
import io
import json
import os
import re
import shutil
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

import rlx
from rlx.errors import (
    CorruptShardError,
    DatasetExistsError,
    DatasetNotFoundError,
    FileAccessError,
    OptionError,
    PartialError,
    SourceNotFoundError,
    TransformError,
    TransformOptionError,
    UnknownFormatError,
)
from rlx.store.layout import SHARDS
from rlx.transform.scaling import RewardClip
from tests.conftest import SAMPLE_RUN, Cli
from tests.factories import make_block, write_dataset

untyped: Any = rlx  # whose types wrong arguments do not have


def made(path: Path, first_episode: int = 0) -> Path:
    shards = [[make_block([3, 5], first_episode=first_episode)], [make_block([8], first_episode=first_episode + 2)]]
    return write_dataset(path, shards).path


def shown(cli: Cli, *arguments: object) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(cli(*map(str, arguments), "--json").out)
    return document


def damage(dataset: Path, shard: str) -> None:
    file = next(file for file in sorted((dataset / SHARDS / shard).rglob("*")) if file.is_file())
    file.write_bytes(file.read_bytes()[:-1])


class Reported:
    """Progress that keeps its units."""

    def __init__(self) -> None:
        self.units: set[str] = set()

    def expect(self, unit: str, amount: int) -> None:  # noqa: ARG002
        self.units.add(unit)

    def advance(self, unit: str, amount: int) -> None:  # noqa: ARG002
        self.units.add(unit)


def test_verify_and_repair(tmp_path: Path, cli: Cli) -> None:
    dataset, other = made(tmp_path / "a"), made(tmp_path / "b")
    progress = Reported()
    found = rlx.verify(dataset, progress=progress)
    assert (found.ok, found.shards, progress.units) == (True, 2, {"bytes"})
    for path in (dataset, other):
        damage(path, "00001")
    found = rlx.verify(str(dataset))
    assert not found.ok
    assert shown(cli, "verify", dataset) == found.to_json()
    assert all(hasattr(found, key) for key in found.to_json())
    done = rlx.repair(dataset)
    assert (done.dataset, done.dropped, done.lost_steps) == (dataset, ["00001"], 8)
    assert all(hasattr(done, key) for key in done.to_json())
    assert shown(cli, "repair", other).keys() == done.to_json().keys()
    assert rlx.verify(dataset).ok
    with pytest.raises(DatasetNotFoundError):
        rlx.verify(tmp_path / "nothing")


def untimed(document: dict[str, Any]) -> dict[str, Any]:
    return {key: document[key] for key in document if key not in ("dataset", "seconds", "steps_per_second")}


def test_download(home: Path, tmp_path: Path, cli: Cli) -> None:
    progress = Reported()
    report = rlx.download("Pong/5", source=SAMPLE_RUN, shards=[1, 0], progress=progress)
    assert (report.dataset, report.shards, progress.units) == (home / "Pong/5", 2, {"shards", "steps"})
    assert all(hasattr(report, key) for key in report.to_json())
    printed = shown(cli, "download", "Pong/5", "--source", SAMPLE_RUN, "--shards", "0,1", "-o", tmp_path / "pong")
    assert untimed(report.to_json()) == untimed(printed)
    assert rlx.open("Pong/5").manifest.lineage == rlx.open(tmp_path / "pong").manifest.lineage
    plan = rlx.download("Pong/5", source=SAMPLE_RUN, dry_run=True)
    assert [file.state for file in plan.files] == ["done", "done", "present"]
    assert plan.to_json() == shown(cli, "download", "Pong/5", "--source", SAMPLE_RUN, "--dry-run")
    with pytest.raises(SourceNotFoundError, match="no shard 7"):
        rlx.download("Pong/5", source=SAMPLE_RUN, shards=[7])


def test_failed_shards_are_raised_on_request(tmp_path: Path, cli: Cli) -> None:
    run = tmp_path / "run" / "Pong"
    shutil.copytree(SAMPLE_RUN / "Pong", run)
    first, *others = sorted(run.iterdir())
    first.write_bytes(first.read_bytes()[:5000])
    report = rlx.download("Pong/5", source=run.parent, output=tmp_path / "pong")
    assert (report.shards, report.failed_shards) == (2, ["00000"])
    with pytest.raises(PartialError, match="1 shard failed: 00000") as raised:
        report.raise_for_failures()
    assert str(raised.value.hint).startswith("run the same command again to resume; `on_error` skip leaves out what")
    printed = shown(cli, "download", "Pong/5", "--source", run.parent, "-o", tmp_path / "again")
    printed["error"]["hint"] = printed["error"]["hint"].replace("--on-error", "`on_error`")  # in words of the library
    assert untimed(report.to_json()) == untimed(printed)
    for other in others:
        other.write_bytes(b"")
    none = rlx.download("Pong/5", source=run.parent, output=tmp_path / "none")
    with pytest.raises(CorruptShardError):
        none.raise_for_failures()
    assert none.to_json()["error"]["type"] == "CorruptShardError"


def test_convert(tmp_path: Path, cli: Cli) -> None:
    report = rlx.convert(SAMPLE_RUN, tmp_path / "a", from_="rlu", to="memmap", shards=range(1))
    printed = shown(cli, "convert", SAMPLE_RUN, tmp_path / "b", "--from", "rlu", "--to", "memmap", "--shards", "0")
    assert (report.store, report.raise_for_failures(), untimed(report.to_json())) == (
        "memmap",
        report,
        untimed(printed),
    )
    assert rlx.open(tmp_path / "a").manifest.lineage == rlx.open(tmp_path / "b").manifest.lineage
    exported = rlx.convert(tmp_path / "a", tmp_path / "a.npz", to="npz")
    printed = shown(cli, "convert", tmp_path / "a", tmp_path / "b.npz", "--to", "npz")
    assert untimed(exported.to_json()) == untimed(printed)
    assert (exported.steps, exported.losses) == (report.steps, [])
    assert all(hasattr(exported, key) for key in printed)


def test_convert_resumes_its_own_work_only(tmp_path: Path) -> None:
    monday, tuesday = made(tmp_path / "monday"), made(tmp_path / "tuesday", first_episode=4)
    rlx.convert(monday, tmp_path / "copy", shards=[0])
    assert rlx.convert(monday, tmp_path / "copy").skipped_shards == 1
    with pytest.raises(DatasetExistsError, match="copy was created in another way: its shard 00000 is of other files"):
        rlx.convert(tuesday, tmp_path / "copy")
    rlx.preprocess(monday, tmp_path / "clipped", transform="clip_reward", num_workers=1)
    with pytest.raises(DatasetExistsError, match="clipped was created in another way: by rlx preprocess"):
        rlx.convert(monday, tmp_path / "clipped")
    assert rlx.convert(tuesday, tmp_path / "copy", overwrite=True).steps == 16


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"to": "zar"}, "`to` 'zar' is unknown: expected zarr, memmap, minari"),
        ({"from_": "minary"}, "`from_` 'minary' is unknown"),
        ({"to": "npz", "codec": "zstd"}, "`codec` requires `to` zarr or memmap, found `to` npz"),
        ({"capacity": 100}, "`capacity` requires `to` dopamine"),
        ({"engine": "dask"}, "`engine` 'dask' is unknown: expected local, ray"),
        ({"jobs": 0}, "`jobs` 0: expected 1 to 4,096"),
        ({"ray_address": "auto"}, "`ray_address` requires `engine` ray"),
        ({"to": "npz", "engine": "dask"}, "`engine` 'dask' is unknown: expected local, ray"),
        ({"to": "npz", "jobs": 0}, "`jobs` 0: expected 1 to 4,096"),
        ({"to": "npz", "ray_address": "auto"}, "`ray_address` requires `to` zarr or memmap, found `to` npz"),
    ],
)
def test_wrong_arguments_are_named(tmp_path: Path, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        rlx.convert(SAMPLE_RUN, tmp_path / "new", **wrong)
    assert not (tmp_path / "new").exists()


def lean(observation: NDArray[np.float32]) -> NDArray[np.int64]:
    return (observation[:, 2] > 0).astype(np.int64)


def test_collect(home: Path, tmp_path: Path, cli: Cli) -> None:
    progress = Reported()
    report = rlx.collect("CartPole-v1", episodes=3, envs=2, seed=3, reward_dtype="float64", progress=progress)
    printed = shown(
        cli,
        "collect",
        "CartPole-v1",
        "--episodes",
        3,
        "--envs",
        2,
        "--seed",
        3,
        "--reward-dtype",
        "float64",
        "-o",
        tmp_path / "b",
    )
    assert (report.dataset, report.trajectories, progress.units) == (home / "CartPole-v1", 3, {"episodes"})
    assert untimed(report.to_json()) == untimed(printed)
    ours, theirs = rlx.open("CartPole-v1"), rlx.open(tmp_path / "b")
    assert ours.manifest.lineage == theirs.manifest.lineage
    assert (ours[:]["action"] == theirs[:]["action"]).all()
    assert rlx.collect("CartPole-v1", episodes=3, envs=2, seed=3, reward_dtype="float64").skipped_shards == 1


def test_collect_with_a_policy_and_a_factory(tmp_path: Path) -> None:
    make = functools.partial(gymnasium.make, "CartPole-v1")
    report = rlx.collect(make, policy=lean, steps=60, envs=1, output=tmp_path / "lean")
    steps = rlx.open(report.dataset)[:]
    assert (steps["action"].flatten() == (steps["observation"][:, 2] > 0)).all()
    assert rlx.open(report.dataset).manifest.notes["policy"] == "lean"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"steps": 1, "episodes": 1}, "`steps` and `episodes` are mutually exclusive"),
        ({"env": make, "output": None}, "`output` is required"),
        ({"reward_dtype": "int8"}, "`reward_dtype` 'int8' is unknown"),
    ]
    for wrong, message in cases:
        with pytest.raises(OptionError, match=message):
            rlx.collect(**{"env": "CartPole-v1", "output": tmp_path / "new", **wrong})
    for wrong_steps, expected in ((0, "at least 1"), ("5", "a whole number"), (1e3, "a whole number")):
        with pytest.raises(OptionError, match=f"`steps` {wrong_steps!r}: expected {expected}"):
            untyped.collect("CartPole-v1", steps=wrong_steps)
    for seed, expected in (
        ("a", "a whole number"),
        (None, "a whole number"),
        (1.5, "a whole number"),
        (-1, "at least 0"),
    ):
        with pytest.raises(OptionError, match=f"`seed` {seed!r}: expected {expected}"):
            untyped.collect("CartPole-v1", seed=seed)


def test_a_function_called_random_is_seeded_as_any_other(tmp_path: Path) -> None:
    def random(observation: NDArray[Any]) -> NDArray[np.int64]:
        return np.random.randint(0, 2, len(observation))  # noqa: NPY002  (the generator that the seed is for)

    random.__qualname__ = "random"
    for name in ("a", "b"):
        rlx.collect("CartPole-v1", policy=random, steps=60, envs=1, seed=1, output=tmp_path / name)
    ours, theirs = (rlx.open(tmp_path / name)[:]["action"] for name in ("a", "b"))
    assert torch.equal(ours, theirs)


def test_preprocess(tmp_path: Path, cli: Cli) -> None:
    dataset, progress = made(tmp_path / "a"), Reported()
    report = rlx.preprocess(dataset, tmp_path / "b", transform="filter:length > 4", progress=progress)
    printed = shown(cli, "preprocess", dataset, tmp_path / "c", "--transform", "filter:length > 4")
    assert (report.trajectories, "bytes read" in progress.units) == (2, True)
    assert untimed(report.to_json()) == untimed(printed)
    assert rlx.open(tmp_path / "b").manifest.lineage == rlx.open(tmp_path / "c").manifest.lineage
    preview = rlx.preprocess(dataset, transform=["filter:length > 4", RewardClip(-1, 1)], dry_run=True)
    options = ("--transform", "filter:length > 4", "--transform", "clip_reward:low=-1,high=1", "--dry-run")
    assert preview.to_json() == shown(cli, "preprocess", dataset, *options)
    assert all(hasattr(preview, key) for key in preview.to_json())

    def double(steps: TensorDict) -> TensorDict:
        steps["next", "reward"] *= 2
        return steps

    rlx.preprocess(dataset, tmp_path / "double", fn=double)
    new, old = (rlx.open(path)[:]["next", "reward"] for path in (tmp_path / "double", dataset))
    assert (new == 2 * old).all()
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "expected `transform` or `fn`"),
        ({"transform": "resise"}, "did you mean resize"),
        ({"transform": "crop", "per": "shard"}, "`per` 'shard' is unknown"),
        ({"transform": "filter:whole", "num_workers": 0}, "`num_workers` 0"),
    ]
    for wrong, message in cases:
        with pytest.raises(OptionError, match=message):
            rlx.preprocess(dataset, tmp_path / "new", **wrong)
    with pytest.raises(OptionError, match="no destination given"):
        rlx.preprocess(dataset, transform="filter:whole")  # type: ignore[call-overload]


def test_inspect(tmp_path: Path, cli: Cli) -> None:
    dataset = made(tmp_path / "a")
    found = rlx.inspect(dataset)
    assert (found.steps, found.stats, found.trajectory) == (16, None, None)
    assert found.to_json() == shown(cli, "inspect", dataset)
    found = rlx.inspect(str(dataset), stats=True, trajectories=True, plot=tmp_path / "a.png")
    options = ("--stats", "--trajectories", "--plot", tmp_path / "a.png")
    assert found.to_json() == shown(cli, "inspect", dataset, *options)
    assert found.trajectory is not None
    assert [row["length"] for row in found.trajectory] == found.trajectory.columns.length.tolist() == [3, 5, 8]
    assert all(hasattr(found, key) for key in found.to_json())
    with pytest.raises(UnknownFormatError):
        rlx.inspect(dataset, plot="a.gif")


def test_sample(tmp_path: Path, cli: Cli) -> None:
    dataset = made(tmp_path / "a")
    drawn = rlx.sample(dataset, batch_size=4, slice_len=2, seed=3)
    options = ("--batch-size", 4, "--slice-len", 2, "--seed", 3)
    assert drawn.to_json() == shown(cli, "sample", dataset, *options)
    assert drawn.batch is not None
    assert drawn.batch.batch_size == (4,)
    assert all(hasattr(drawn, key) for key in drawn.to_json())
    ours, theirs = tmp_path / "ours.npz", tmp_path / "theirs.npz"
    written = rlx.sample([dataset, rlx.open(dataset)], batches=3, batch_size=8, seed=1, output=ours)
    printed = shown(cli, "sample", dataset, dataset, "--batches", 3, "--batch-size", 8, "--seed", 1, "--output", theirs)
    assert written.to_json() | {"output": str(theirs)} == printed
    assert (written.batch, written.head, written.steps) == (None, None, 24)
    assert ours.read_bytes() == theirs.read_bytes()
    with (tmp_path / "stream").open("wb") as file:
        rlx.sample([dataset, dataset], batches=3, batch_size=8, seed=1, output=file, format="npz")
    assert (tmp_path / "stream").read_bytes() == ours.read_bytes()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"batches": 2}, "`batches` requires `output`"),
        ({"gamma": 0.9}, "`gamma` requires `n_step`"),
        ({"slice_len": 2, "num_slices": 2}, "`slice_len` and `num_slices` are mutually exclusive"),
        ({"format": "npz"}, "`format` requires `output`"),
        ({"output": io.BytesIO()}, "requires `format`"),
        ({"output": io.BytesIO(), "format": "zarr"}, "zarr is a directory"),
        ({"batch_size": 0}, "`batch_size` 0: expected at least 1"),
    ]
    for wrong, message in cases:
        with pytest.raises(OptionError, match=message):
            rlx.sample(dataset, **wrong)


def test_view(tmp_path: Path, pong: Path, cli: Cli) -> None:
    written = rlx.view(pong, output=tmp_path / "pong.png")
    assert written.to_json() == shown(cli, "view", pong, "-o", tmp_path / "pong.png")
    with rlx.view(rlx.open(pong), no_browser=True) as viewer, urllib.request.urlopen(viewer.url) as answer:
        assert b"Pong/5" in answer.read()
        port = int(viewer.url.rsplit(":", 1)[1].strip("/"))
        with pytest.raises(OptionError, match=f"cannot listen on port {port}"):
            rlx.view(pong, port=port, no_browser=True)
    again = rlx.view(pong, port=port, no_browser=True)  # the port is free
    assert (repr(again), again.to_json()) == (f"Viewer({viewer.url!r})", {"url": viewer.url})
    again.close()
    again.wait()
    with pytest.raises(OptionError, match="`fps` requires a video"):
        rlx.view(pong, output=tmp_path / "pong.png", fps=3)


def test_a_place_may_be_a_path(tmp_path: Path) -> None:
    dataset = made(tmp_path / "a")
    assert rlx.push(dataset, tmp_path / "bucket", dry_run=True).files
    assert rlx.push(dataset, tmp_path / "bucket").steps == len(rlx.open(dataset))
    assert rlx.pull(tmp_path / "bucket", tmp_path / "b", dry_run=True).files
    rlx.pull(tmp_path / "bucket", tmp_path / "b")
    assert rlx.diff(dataset, tmp_path / "b").equal


def test_cite(tmp_path: Path, cli: Cli) -> None:
    rlx.download("Pong/5", source=SAMPLE_RUN, output=tmp_path / "pong")
    found = rlx.cite(tmp_path / "pong")
    assert [entry.partition("{")[2].partition(",")[0] for entry in found] == ["agarwal2020optimistic", "gulcehre2020rl"]
    assert found == json.loads(cli("cite", tmp_path / "pong", "--json").out)
    assert cli("cite", tmp_path / "pong").out == "\n\n".join(found) + "\n"
    nameless = made(tmp_path / "a")
    assert rlx.cite(nameless) == []
    (tmp_path / "picture.bib").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(SourceNotFoundError, match=r"none\.bib"):
        rlx.push(nameless, "hf://datasets/me/a", cite=tmp_path / "none.bib")
    with pytest.raises(OptionError, match=r"picture\.bib is not BibTeX"):
        rlx.push(nameless, "hf://datasets/me/a", cite=tmp_path / "picture.bib")
    result = cli("cite", nameless)
    assert (result.code, result.out, result.err) == (0, "", f"hint: {nameless} names no papers\n")


def test_doctor(tmp_path: Path, cli: Cli) -> None:
    dataset, progress = made(tmp_path / "a"), Reported()
    other = write_dataset(tmp_path / "b", [[make_block([3]), make_block([3])]]).path
    found = rlx.doctor(dataset, progress=progress)
    assert (found.steps, found.trajectories, progress.units) == (16, 3, {"steps"})
    assert found.to_json() == shown(cli, "doctor", dataset)
    found = rlx.doctor(other, against=dataset, fix=True, output=tmp_path / "ours")
    printed = shown(cli, "doctor", other, "--against", dataset, "--fix", "-o", tmp_path / "theirs")
    assert found.fixed is not None
    assert found.to_json()["fixed"] | {"dataset": str(tmp_path / "theirs")} == printed["fixed"]
    assert {**found.to_json(), "fixed": None} == {**printed, "fixed": None}
    assert all(hasattr(found, key) for key in printed)
    ours, theirs = (rlx.open(tmp_path / name).manifest for name in ("ours", "theirs"))
    assert ours.lineage == theirs.lineage
    for wrong in ({"fix": True}, {"output": tmp_path / "new"}, {"sample": 0}, {"from_": "minary"}):
        with pytest.raises(OptionError):
            rlx.doctor(dataset, **wrong)


def test_what_cannot_be_fixed_is_not_examined(tmp_path: Path) -> None:
    rlx.convert(made(tmp_path / "a"), tmp_path / "a.npz", to="npz")
    progress = Reported()
    with pytest.raises(DatasetNotFoundError, match="no dataset at"):
        rlx.doctor(tmp_path / "a.npz", fix=True, output=tmp_path / "fixed", progress=progress)
    assert progress.units == set()


def test_merge(tmp_path: Path, cli: Cli) -> None:
    datasets = [made(tmp_path / "a"), made(tmp_path / "b", first_episode=3)]
    report = rlx.merge(datasets, tmp_path / "library", codec="zstd")
    printed = shown(cli, "merge", *datasets, "-o", tmp_path / "command", "--codec", "zstd")
    assert (report.steps, report.shards) == (32, 4)
    assert all(hasattr(report, key) for key in report.to_json())
    assert untimed(report.to_json()) == untimed(printed)
    library, command = (rlx.open(tmp_path / name).manifest for name in ("library", "command"))
    assert library.lineage == command.lineage
    assert rlx.merge(datasets, tmp_path / "library", codec="zstd").skipped_shards == 4


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: rlx.merge([], "new"), "no dataset given: expected a list of at least one"),
        (lambda: rlx.merge("a", "new"), "one dataset given, 'a': expected a list"),
        (lambda: rlx.sample([]), "no dataset given: expected at least one"),
        (lambda: rlx.sample((), output="new.npz"), "no dataset given"),
        (lambda: rlx.push("a", "new", jobs=0), "`jobs` 0: expected 1 to 4,096"),
        (lambda: rlx.pull("a", "new", jobs=-1), "`jobs` -1: expected 1 to 4,096"),
        (
            lambda: untyped.preprocess("a", "new", transform="clip_reward", num_workers="2"),
            "`num_workers` '2': expected a whole",
        ),
        (lambda: untyped.sample("a", batch_size=1e2), "`batch_size` 100.0: expected a whole number"),
        (
            lambda: rlx.sample("a", batch_size=64, slice_len=7),
            "64: expected a multiple of `slice_len` .7",
        ),
        (lambda: untyped.sample("a", n_step=2, gamma="1"), "`gamma` '1': expected a number"),
        (lambda: untyped.convert("a", "new", shards="a-b"), "`shards` 'a-b': expected numbers such as .0, 1."),
        (lambda: untyped.convert("a", "new", shards=3), "`shards` 3: expected numbers such as .0, 1."),
        (lambda: untyped.split("a", "0.9,0.1"), "`fractions` '0.9,0.1': expected numbers such as .0.9, 0.1."),
        (lambda: untyped.split("a", [None]), "`fractions` .None.: expected numbers"),
        (lambda: untyped.split("a", [], output="new"), "fractions none: expected numbers"),
        (lambda: untyped.download(["Pong/5"]), "run .'Pong/5'.: expected a text such as Pong/5"),
        (lambda: untyped.download("Pong/5", source=["b"]), "`source` .'b'.: expected a URL or a directory"),
        (lambda: untyped.convert("a", "new", codec=6), "`codec` 6: expected a text such as zstd:level=19"),
        (lambda: untyped.convert("a", "new", progress=True), "`progress` True: expected an object with the methods"),
        (lambda: untyped.convert("a", "new", from_=object()), "`from_` <object .*> is unknown: expected rlx"),
        (lambda: untyped.split("a", [0.5], seed="1"), "`seed` '1': expected a whole number"),
        (lambda: untyped.collect("CartPole-v1", output="new", drop=5), "keys 5: expected a list of texts"),
        (lambda: untyped.collect("CartPole-v1", output="new.h5", steps=9), "new.h5 is the name of a file"),
        (lambda: untyped.convert("a", "new.npz"), "new.npz is the name of a file, and a dataset is a directory"),
        (lambda: untyped.sample("a", batch_size=None), "`batch_size` None: expected a whole number"),
        (lambda: untyped.sample("a", output=5, format="npz"), "`output` 5: expected a path or an open binary file"),
        (lambda: untyped.sample("a", output="new\0", format="npz"), "`output` 'new.*': expected a path, without a NUL"),
        (lambda: untyped.list_runs(game=5), "`game` 5: expected a text"),
        (lambda: untyped.list_runs(search=5), "`search` 5: expected a text"),
        (lambda: untyped.list_runs(game=[5], sources=True), "`game` .5.: expected a text"),
        (lambda: untyped.open("a").trajectory("x"), "trajectory 'x': expected a whole number"),
    ],
)
def test_wrong_lists_and_numbers_are_named(
    wrong: Callable[[], Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made(Path("a"))
    with pytest.raises(OptionError, match=message):
        wrong()
    assert os.listdir() == ["a"]
    for transform in (3, lambda steps: steps):
        with pytest.raises(TransformOptionError, match="expected a text or a transform") as raised:
            untyped.preprocess("a", "new", transform=transform)
        assert raised.value.hint == "`fn` takes a function"
    with pytest.raises(TransformError, match="expression 3: expected a text"):
        untyped.open("a").filter(3)


PATHS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "open": (untyped.open, "dataset"),
    "inspect": (untyped.inspect, "dataset"),
    "inspect plot": (lambda wrong: untyped.inspect("a", plot=wrong), "`plot`"),
    "verify": (untyped.verify, "dataset"),
    "repair": (untyped.repair, "dataset"),
    "doctor": (untyped.doctor, "dataset"),
    "doctor against": (lambda wrong: untyped.doctor("a", against=[wrong]), "`against`"),
    "doctor output": (lambda wrong: untyped.doctor("a", fix=True, output=wrong), "`output`"),
    "cite": (untyped.cite, "dataset"),
    "diff": (lambda wrong: untyped.diff("a", wrong), "dataset"),
    "view": (untyped.view, "dataset"),
    "view output": (lambda wrong: untyped.view("a", output=wrong), "`output`"),
    "convert source": (lambda wrong: untyped.convert(wrong, "new"), "source"),
    "convert destination": (lambda wrong: untyped.convert("a", wrong), "destination"),
    "push": (lambda wrong: untyped.push(wrong, "new"), "dataset"),
    "push url": (lambda wrong: untyped.push("a", wrong), "url"),
    "pull url": (untyped.pull, "url"),
    "pull output": (lambda wrong: untyped.pull("a", wrong), "`output`"),
    "merge": (lambda wrong: untyped.merge(["a", wrong], "new"), "dataset"),
    "merge output": (lambda wrong: untyped.merge(["a"], wrong), "output"),
    "split": (lambda wrong: untyped.split(wrong, [0.5, 0.5]), "dataset"),
    "split output": (lambda wrong: untyped.split("a", [0.5, 0.5], output=[wrong, "b"]), "`output`"),
    "preprocess destination": (lambda wrong: untyped.preprocess("a", wrong, transform="clip_reward"), "destination"),
    "collect output": (lambda wrong: untyped.collect("CartPole-v1", output=wrong), "`output`"),
    "download output": (lambda wrong: untyped.download("Pong/5", output=wrong), "`output`"),
    "sample": (lambda wrong: untyped.sample(["a", wrong]), "dataset"),
    "list_runs url": (untyped.list_runs, "url"),
    "Checkpoint": (untyped.Checkpoint, "path"),
    "dumps": (lambda wrong: untyped.ReplayBuffer().dumps(wrong), "path"),
    "loads": (lambda wrong: untyped.ReplayBuffer().loads(wrong), "path"),
}


@pytest.mark.parametrize("wrong", [5, b"a", "a\0b"], ids=repr)
@pytest.mark.parametrize("where", PATHS)
def test_paths_of_a_wrong_type_are_named(
    where: str, wrong: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made(tmp_path / "a")
    call, name = PATHS[where]
    with pytest.raises(OptionError, match=rf"^({name}) {re.escape(repr(wrong))}: expected a "):
        call(wrong)
    assert os.listdir() == ["a"]


def test_a_path_that_the_system_refuses_is_named() -> None:
    with pytest.raises(FileAccessError, match="too long") as caught:
        rlx.open("a" * 5000)
    assert caught.value.hint == "choose a shorter name"


@pytest.mark.parametrize("wrong", [{"workers": "2"}, {"step_timeout": "2"}, {"step_timeout": 0}], ids=str)
def test_wrong_numbers_of_a_collection_are_named(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=f"`{next(iter(wrong))}` .*: expected"):
        rlx.collect("CartPole-v1", steps=10, output=tmp_path / "new", **wrong)


def test_a_file_that_is_no_dataset_is_converted(tmp_path: Path) -> None:
    rlx.convert(made(tmp_path / "a"), tmp_path / "a.npz", to="npz")
    with pytest.raises(DatasetNotFoundError, match="npz: it is a file, and a dataset is a directory") as raised:
        rlx.open(tmp_path / "a.npz")
    assert raised.value.hint == f"rlx convert {tmp_path / 'a.npz'} DATASET"
    (tmp_path / "envs.py").touch()
    for read in (rlx.open, rlx.verify):
        with pytest.raises(DatasetNotFoundError, match="py: it is a file, and a dataset is a directory") as raised:
            read(tmp_path / "envs.py")
        assert raised.value.hint == "rlx list --local"
    with pytest.raises(OptionError, match="name of a file") as named:
        rlx.convert(tmp_path / "a", tmp_path / "b.hdf5")
    assert named.value.hint == "rlx convert DATASET b.hdf5 --to d4rl"
    assert not (tmp_path / "b.hdf5").exists()


def test_lists_of_any_kind(tmp_path: Path) -> None:
    parts = rlx.split(made(tmp_path / "a"), np.array([0.5, 0.5], np.float32), output=[tmp_path / "b", tmp_path / "c"])
    assert rlx.merge((part.dataset for part in parts), tmp_path / "d").steps == 16
    same = rlx.split(tmp_path / "a", [0.5, 0.5], output=[tmp_path / "b", tmp_path / "c"])
    assert [part.skipped_shards for part in same] == [part.shards for part in same]


def test_push_and_pull(tmp_path: Path, cli: Cli) -> None:
    dataset = made(tmp_path / "a")
    sent = rlx.push(dataset, str(tmp_path / "bucket"))
    assert (
        sent.transferred_files == len([file for file in dataset.rglob("*") if file.is_file()]) - 2
    )  # the lock and the manifest
    assert all(hasattr(sent, key) for key in sent.to_json())
    assert shown(cli, "push", dataset, tmp_path / "bucket")["transferred_files"] == 0
    got = rlx.pull(str(tmp_path / "bucket"), tmp_path / "b", jobs=2)
    assert (got.dataset, got.steps, got.failed_shards) == (tmp_path / "b", 16, [])
    assert got.to_json().keys() == shown(cli, "pull", tmp_path / "bucket", "-o", tmp_path / "b").keys()
    assert rlx.verify(got.dataset).ok


def test_split(tmp_path: Path, cli: Cli) -> None:
    dataset = made(tmp_path / "a")
    train, test = rlx.split(dataset, [0.7, 0.3], seed=1, output=[tmp_path / "train", tmp_path / "test"])
    printed = cli("split", dataset, "--fractions", "0.7,0.3", "--seed", 1, "-o", tmp_path / "part", "--json").out
    assert [one["steps"] for one in json.loads(printed)] == [train.steps, test.steps]
    assert train.steps + test.steps == 16
    assert rlx.open(test.dataset).manifest.lineage == rlx.open(tmp_path / "part-2").manifest.lineage
    (only,) = rlx.split(str(dataset), [0.7, 0.3], seed=1, part=2, output=tmp_path / "test")
    assert (only.dataset, only.skipped_shards) == (test.dataset, only.shards)
    for wrong in ({"fractions": [0.7, 0.7]}, {"fractions": [1.0], "seed": -1}):
        with pytest.raises(OptionError, match="expected"):
            rlx.split(dataset, **wrong)
    with pytest.raises(OptionError, match="2 directories for 3 parts"):
        rlx.split(dataset, [0.5, 0.3, 0.2], output=["a", "b"])


def test_split_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made(tmp_path / "a"))
    parts = rlx.split(".", [0.5, 0.5])
    assert [Path(part.dataset) for part in parts] == [tmp_path / "a-1", tmp_path / "a-2"]
    with pytest.raises(OptionError, match="`output` /: expected a directory for each part"):
        rlx.split(".", [0.5, 0.5], output="/")


def test_list_runs(home: Path, cli: Cli) -> None:
    made(home / "Pong" / "5")
    listed = rlx.list_runs(game="pong")
    assert [run.id for run in listed] == ["Pong/5", "Pong/1", "Pong/2", "Pong/3", "Pong/4"]
    assert json.loads(cli("list", "--game", "pong", "--json").out) == [run.to_json() for run in listed]
    assert [run.steps for run in rlx.list_runs(local=True)] == [16]
    with pytest.raises(OptionError, match="mutually exclusive"):
        rlx.list_runs(local=True, remote=True)


def test_a_viewer_says_where_it_is(pong: Path) -> None:
    with rlx.view(pong, no_browser=True) as viewer:
        assert viewer.to_json() == {"url": viewer.url}
        assert repr(viewer) == f"Viewer({viewer.url!r})"
