"""Datasets pushed to the hub and used from there, by the real client of huggingface_hub."""

import json
from pathlib import Path

import pytest
from huggingface_hub import constants

import rlx
from rlx.errors import DatasetExistsError, DatasetLockedError, DatasetNotFoundError, OptionError, PartialError
from rlx.files.retry import RetryPolicy
from rlx.progress import Silent
from rlx.store.verification import verify
from rlx.testing.dataset_exporter import whole_dataset
from rlx.verbs.export import EXPORT_FORMATS, export
from tests.bad_files import NAMES
from tests.hub_server import Fault, HubServer, Request
from tests.verbs.datasets import tree
from tests.verbs.pushes import files, write

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
URL = "hf://datasets/me/pong"


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write(tmp_path / "dataset", 3)


def shards_at(hub: HubServer) -> dict[str, bytes]:
    """The dataset's own files at the hub, less the copies of small ones."""
    return {
        name: content
        for name, content in hub.files("me/pong").items()
        if name.startswith("shards/0") or name == "rlx.json"
    }


def card_at(hub: HubServer) -> dict[str, bytes]:
    """The files of the dataset's card at the hub."""
    own = ("shards/", "rlx.json", ".gitattributes")
    return {name: content for name, content in hub.files("me/pong").items() if not name.startswith(own)}


def test_push_is_one_commit_and_pull_gives_the_same_bytes(hub: HubServer, dataset: Path, tmp_path: Path) -> None:
    plan = rlx.push(dataset, URL, dry_run=True)
    report = rlx.push(dataset, URL, private=True)
    assert len(plan.to_transfer) == len(files(dataset)) - 1  # without the manifest
    card = card_at(hub)
    assert report.transferred_files == len(plan.to_transfer) + len(card)
    assert report.transferred_bytes == plan.bytes + sum(map(len, card.values()))
    assert shards_at(hub) == files(dataset)
    assert hub.repos["me/pong"].private
    assert len(hub.repos["me/pong"].commits) == 2  # the first is the hub's own
    assert rlx.push(dataset, URL).transferred_files == 0
    assert len(hub.repos["me/pong"].commits) == 2
    rlx.pull(URL, tmp_path / "copy")
    assert tree(tmp_path / "copy") == tree(dataset)


def test_no_bars_of_another_program_are_drawn(
    hub: HubServer, dataset: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rlx.files.hub.Hub.max_batch", 4)
    rlx.push(dataset, URL)
    assert hub.files("me/pong")
    assert capsys.readouterr() == ("", "")


class Counting(Silent):
    """Progress that adds up what was sent."""

    sent = 0

    def advance(self, unit: str, amount: int) -> None:
        if unit == "bytes":
            self.sent += amount


def test_bytes_are_counted_as_they_are_sent(hub: HubServer, dataset: Path) -> None:
    progress, counted = Counting(), list[int]()
    failures = iter([Fault(500), Fault(500)])

    def note(request: Request) -> Fault | None:
        if request.method == "PUT":
            counted.append(progress.sent)
            return next(failures, None)
        return None

    hub.faults = note
    report = rlx.push(dataset, URL, jobs=1, progress=progress)
    assert progress.sent == report.transferred_bytes
    assert counted == sorted(counted)
    assert len(set(counted)) > len(counted) / 2  # not batch by batch


def test_few_requests_push_and_open(hub: HubServer, dataset: Path) -> None:
    rlx.push(dataset, URL)
    sends = [request for request in hub.requests if request.method == "PUT"]
    others = [request for request in hub.requests if request.method != "PUT" and "/verify" not in request.path]
    assert len(sends) > 20  # files of equal content are sent once or twice, as it happens
    assert len(others) <= 20
    hub.requests.clear()
    opened = rlx.open(URL)
    assert len(opened) == 24
    assert len(hub.requests) <= 5
    batch = opened[[0, 7, 23]]
    assert len([request for request in hub.requests if "/api/" in request.path]) <= 1
    assert (batch["observation"] == rlx.open(dataset)[[0, 7, 23]]["observation"]).all()
    hub.requests.clear()
    cold = rlx.open(URL)
    assert len(cold[[*range(24)] * 5]) == 120
    resolved = [request.path for request in hub.requests if "/resolve/" in request.path]
    assert len(resolved) <= 2  # the manifest, and copies of all files, as they are small
    hub.repos["me/pong"].commits[-1][1].pop(next(name for name in hub.files("me/pong") if "/small." in name))
    assert len(rlx.open(URL)[[*range(24)] * 5]) == 120


@pytest.mark.usefixtures("hub")
def test_every_verb_that_reads_takes_the_url(dataset: Path) -> None:
    rlx.push(dataset, URL)
    assert rlx.inspect(URL).steps == 24
    assert rlx.verify(URL).problems == []
    drawn = rlx.sample(URL, batch_size=5, seed=1).batch
    assert drawn is not None
    assert drawn.batch_size == (5,)
    assert not [finding for finding in rlx.doctor(URL).findings if finding.severity == "error"]


def test_only_what_is_sent_is_counted(hub: HubServer, dataset: Path) -> None:
    rlx.push(dataset, URL)
    again = rlx.push(dataset, URL, overwrite=True)
    assert (again.transferred_files, again.transferred_bytes, again.skipped_shards) == (0, 0, 3)
    before = card_at(hub)
    licensed = rlx.push(dataset, URL, license="mit")
    new = [content for name, content in card_at(hub).items() if content != before[name]]
    assert (licensed.transferred_files, licensed.transferred_bytes) == (len(new), sum(map(len, new)))
    assert len(new) == 2  # README.md and croissant.json


def test_more_shards_are_one_more_commit(hub: HubServer, dataset: Path, tmp_path: Path) -> None:
    rlx.push(write(tmp_path / "part", 2), URL)
    before = len(hub.repos["me/pong"].commits)
    report = rlx.push(dataset, URL)
    assert report.skipped_shards == 2
    assert shards_at(hub) == files(dataset)
    assert len(hub.repos["me/pong"].commits) == before + 1


def test_another_dataset_is_refused_and_replaced_on_request(hub: HubServer, dataset: Path, tmp_path: Path) -> None:
    rlx.push(dataset, URL)
    other = write(tmp_path / "other", 1, planned=1, first_episode=40)
    with pytest.raises(DatasetExistsError, match="holds another dataset"):
        rlx.push(other, URL)
    before = len(hub.repos["me/pong"].commits)
    rlx.push(other, URL, overwrite=True)
    assert shards_at(hub) == files(other)
    assert len(hub.repos["me/pong"].commits) == before + 1


def test_other_files_of_the_repository_stay(hub: HubServer, dataset: Path) -> None:
    hub.add("me/pong", {"thesis.tex": b"mine", "README.md": b"mine too"})
    rlx.push(dataset, URL)
    assert hub.files("me/pong")["thesis.tex"] == b"mine"
    assert hub.files("me/pong")["README.md"] == b"mine too"


def test_somebody_else_pushes_meanwhile(hub: HubServer, dataset: Path) -> None:
    hub.add("me/pong", {})

    def meanwhile(request: Request) -> None:
        if "/commit/" in request.path and len(hub.repos["me/pong"].commits) == 1:
            hub.add("me/pong", {"README.md": b"theirs"})

    hub.faults = meanwhile
    with pytest.raises(DatasetLockedError, match="meanwhile"):
        rlx.push(dataset, URL)
    rlx.push(dataset, URL)
    assert shards_at(hub) == files(dataset)


def test_an_interrupted_push_sends_what_is_missing(
    hub: HubServer, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlx.files.hub.Hub.max_batch", 8)
    monkeypatch.setattr("rlx.files.hub_api.DEFAULT_RETRY", RetryPolicy(2, 0.01, 0.01))
    sent = []

    def full(request: Request) -> Fault | None:
        if request.method == "PUT":
            sent.append(request)
            return Fault(403) if len(sent) > 20 else None
        return None

    hub.faults = full
    with pytest.raises((PartialError, rlx.errors.ForbiddenError)):
        rlx.push(dataset, URL)
    assert shards_at(hub) == {}
    there = set(hub.objects)
    assert there
    hub.faults = lambda _: None
    hub.requests.clear()
    rlx.push(dataset, URL)
    assert shards_at(hub) == files(dataset)
    put = {request.path.split("/")[2].split("?")[0] for request in hub.requests if request.method == "PUT"}
    assert put == set(hub.objects) - there


def test_a_path_and_a_branch(hub: HubServer, dataset: Path, tmp_path: Path) -> None:
    hub.add("me/pong", {"README.md": b"main"})
    hub.repos["me/pong"].branches["v1"] = hub.repos["me/pong"].branches["main"]
    rlx.push(dataset, f"{URL}@v1/run/5")
    assert "run/5/rlx.json" in hub.files("me/pong", "v1")
    assert "run/5/rlx.json" not in hub.files("me/pong")
    rlx.pull(f"{URL}@v1/run/5", tmp_path / "copy")
    assert verify(tmp_path / "copy").problems == []
    with pytest.raises(DatasetNotFoundError, match="no dataset at hf://datasets/me/pong@v2/run/5: no such revision"):
        rlx.open(f"{URL}@v2/run/5")


def test_the_datasets_that_rlx_pushed_are_listed(hub: HubServer, dataset: Path) -> None:
    rlx.push(dataset, URL)
    hub.add("me/broken", {"README.md": b"---\ntags:\n- rlx\n---\n"})
    hub.add("me/damaged", {"README.md": b"---\ntags:\n- rlx\n---\n", "rlx.json": b"{}"})
    hub.add("me/other", {"README.md": b"---\ntags:\n- text\n---\n"})
    (found,) = rlx.list_runs("hf://datasets/me")
    assert (found.source, found.steps, found.shards, found.local) == (URL, 24, 3, False)
    rlx.push(dataset, f"{URL}/runs/5")
    assert [one.source for one in rlx.list_runs(URL)] == [URL, f"{URL}/runs/5"]
    assert [one.source for one in rlx.list_runs(f"{URL}@main/runs")] == [f"{URL}@main/runs/5"]
    hub.add("me/shards", {"Pong/run_1-00000-of-00050": b""})
    assert [one.id for one in rlx.list_runs("hf://datasets/me/shards")] == ["Pong/1"]


def test_files_of_the_hub_are_converted_with_their_commit(hub: HubServer, dataset: Path, tmp_path: Path) -> None:
    rlx.convert(dataset, tmp_path / "steps.npz", to="npz")
    commit = hub.add("me/steps", {"steps.npz": (tmp_path / "steps.npz").read_bytes()})
    rlx.convert("hf://datasets/me/steps/steps.npz", tmp_path / "out")
    manifest = json.loads((tmp_path / "out/rlx.json").read_bytes())
    assert manifest["notes"]["origin"] == f"hf://datasets/me/steps@{commit}/steps.npz"
    assert "hf://datasets/me/steps/steps.npz" in manifest["lineage"][-1]["command"]
    assert len(rlx.open(tmp_path / "out")) == 24


@pytest.mark.parametrize("format", EXPORT_FORMATS)
def test_every_format_is_read_from_the_hub(format: str, hub: HubServer, tmp_path: Path) -> None:
    data = whole_dataset(tmp_path / "data", "pictures" if format in ("dopamine", "hf_parquet") else "vectors").path
    path = tmp_path / "out" / NAMES.get(format, "a.h5")
    export(data, path, format, progress=Silent())
    written = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    hub.add("me/other", {file.relative_to(path.parent).as_posix(): file.read_bytes() for file in written})
    rlx.convert(f"hf://datasets/me/other/{path.name}", tmp_path / "there")
    rlx.convert(path, tmp_path / "here")
    shards = [tree(tmp_path / place / "shards") for place in ("there", "here")]
    assert shards[0] == shards[1]


def test_private_is_of_the_hub_alone(dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="`private` requires hf://datasets/ORG/NAME"):
        rlx.push(dataset, str(tmp_path / "there"), private=True)


def test_without_a_network_the_cache_is_read(hub: HubServer, dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rlx.push(dataset, URL)
    rlx.files.hub.Hub(URL).snapshot()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    opened = rlx.open(URL)
    assert (opened[:]["action"] == rlx.open(dataset)[:]["action"]).all()
    with pytest.raises(DatasetNotFoundError, match=r"other/rlx.json: HF_HUB_OFFLINE is set, and the file is not in"):
        rlx.open("hf://datasets/me/other")
    assert hub.requests == []


def test_versions_are_tags_and_stay(hub: HubServer, tmp_path: Path) -> None:
    dataset = write(tmp_path / "dataset", 2)
    rlx.push(dataset, URL, version="v1")
    assert rlx.open(dataset).manifest.version == "v1"
    assert shards_at(hub) == files(dataset)
    assert "@v1" in hub.files("me/pong")["README.md"].decode()
    assert json.loads(hub.files("me/pong")["croissant.json"])["version"] == "1.0.0"
    commits = len(hub.repos["me/pong"].commits)
    assert rlx.push(dataset, URL, version="v1").transferred_files == 0  # the tag is there: nothing to do
    assert rlx.push(dataset, URL).transferred_files == 0
    assert len(hub.repos["me/pong"].commits) == commits
    (found,) = rlx.list_runs(source="hf://datasets/me", remote=True)
    assert found.version == "v1"
    grown = write(tmp_path / "grown", 3)
    with pytest.raises(DatasetExistsError, match="version v1 names another state"):
        rlx.push(grown, URL, version="v1")
    rlx.push(grown, URL, version="v2")
    assert rlx.pull(f"{URL}@v1", tmp_path / "one").steps == 16
    assert tree(tmp_path / "one") == tree(dataset)
    assert len(rlx.open(f"{URL}@v2")) == len(rlx.open(URL)) == 24
    rlx.convert(dataset, tmp_path / "derived")
    assert rlx.open(tmp_path / "derived").manifest.version is None
    with pytest.raises(OptionError, match=r"`version` '\.\./v1'"):
        rlx.push(grown, URL, version="../v1")


def test_a_version_named_as_a_branch_is_refused_before_anything_is_written(hub: HubServer, dataset: Path) -> None:
    before = tree(dataset)
    with pytest.raises(
        OptionError, match=r"`version` main is the name of a branch of hf://datasets/me/pong"
    ) as refused:
        rlx.push(dataset, URL, version="main")
    assert refused.value.hint == "choose another `version`, such as v1"
    assert tree(dataset) == before
    assert "me/pong" not in hub.repos
    hub.add("me/pong", {})
    hub.repos["me/pong"].branches["dev"] = hub.repos["me/pong"].branches["main"]
    with pytest.raises(OptionError, match="`version` dev is the name of a branch"):
        rlx.push(dataset, URL, version="dev")
    assert tree(dataset) == before
    assert len(hub.repos["me/pong"].commits) == 1


def test_a_killed_push_is_tagged_by_the_next(hub: HubServer, dataset: Path) -> None:
    hub.faults = lambda request: Fault(403) if "/tag/" in request.path else None
    with pytest.raises(rlx.errors.ForbiddenError):
        rlx.push(dataset, URL, version="v1")
    hub.faults = lambda _: None
    assert rlx.push(dataset, URL, version="v1").transferred_files == 0
    assert len(rlx.open(f"{URL}@v1")) == 24


def test_what_would_be_transferred(hub: HubServer, dataset: Path, tmp_path: Path) -> None:
    plan = rlx.push(dataset, URL, dry_run=True)
    assert "me/pong" not in hub.repos
    sizes = {name: len(content) for name, content in files(dataset).items() if name != "rlx.json"}
    assert {file.file: file.bytes for file in plan.to_transfer} == sizes
    assert plan.bytes == sum(sizes.values())
    rlx.push(write(tmp_path / "part", 2), URL)
    plan = rlx.push(dataset, URL, dry_run=True)
    assert {file.file.split("/")[1] for file in plan.to_transfer} == {"00002"}
    before = dict(hub.files("me/pong"))
    fetch = rlx.pull(URL, tmp_path / "copy", dry_run=True)
    assert not (tmp_path / "copy").exists()
    assert len(fetch.to_transfer) == len(fetch.files)
    rlx.pull(URL, tmp_path / "copy")
    assert rlx.pull(URL, tmp_path / "copy", dry_run=True).to_json()["transferred_bytes"] == 0
    assert hub.files("me/pong") == before
    with pytest.raises(DatasetExistsError, match="holds another dataset"):
        rlx.push(write(tmp_path / "other", 1, planned=1, first_episode=40), URL, dry_run=True)
