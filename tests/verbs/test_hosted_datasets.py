"""Datasets of other projects on the hub, by the projects' own names, from a hub on loopback."""

import json
from pathlib import Path

import pytest

import rlx
from rlx.errors import OptionError, SourceNotFoundError
from rlx.verbs.hosted_datasets import hosted
from tests.conftest import Cli
from tests.hub_server import HubServer
from tests.minari_files import write_dataset
from tests.verbs.pushes import write

LEROBOT = Path(__file__).parents[1] / "golden/lerobot"
DOOR = "minari:D4RL/door/human-v2"
CARD = b"""# Door
```bash
pip install minari
```
## Citation
```bibtex

@article{adroit,
  title = {Adroit}
}
```
```bibtex
[More Information Needed]
```
"""


@pytest.fixture
def minari(hub: HubServer, tmp_path: Path) -> str:
    """Minari's repositories: a namespace with two versions of a dataset, and a dataset in none; the first's commit."""
    written = write_dataset(tmp_path / "minari", "D4RL/door/human-v2")
    files = {str(path.relative_to(written)): path.read_bytes() for path in written.rglob("*") if path.is_file()}
    names = ["D4RL/door/human-v1", "D4RL/door/human-v2", "D4RL/door/human-v10", "D4RL/pen/cloned-v1"]
    hub.add("farama-minari/lunar-v0", {"data/metadata.json": b"{}"})
    hub.add("other/door", {"a.npz": b""})
    return hub.add(
        "farama-minari/D4RL",
        {
            "namespace_metadata.json": json.dumps({"datasets": names}).encode(),
            "README.md": CARD,
            **{f"door/human-v{version}/{name}": content for version in (2, 10) for name, content in files.items()},
        },
    )


def test_download_of_minari(hub: HubServer, minari: str, cli: Cli, home: Path) -> None:
    plan = json.loads(cli("download", DOOR, "--dry-run", "--json").out)
    assert {file["state"] for file in plan["files"]} == {"missing"}
    assert sum("main_data.hdf5" in file["url"] for file in plan["files"]) == 1
    result = cli("download", DOOR, "--json")
    assert result.code == 0, result.err
    report = json.loads(result.out)
    assert (report["dataset"], report["steps"]) == (str(home / "minari/D4RL/door/human-v2"), 12)
    manifest = rlx.open("minari/D4RL/door/human-v2").manifest
    pinned = f"hf://datasets/farama-minari/D4RL@{minari}/door/human-v2"
    assert manifest.notes["origin"] == pinned
    assert manifest.lineage[-1]["from"] == pinned
    assert manifest.lineage[-1]["command"] == f"rlx download {DOOR}"
    assert [entry.partition("{")[2].partition(",")[0] for entry in rlx.cite(report["dataset"])] == [
        "adroit",
        "fu2020d4rl",
    ]
    assert json.loads(cli("download", DOOR, "--dry-run", "--json").out)["files"][0]["state"] == "done"
    hub.add("farama-minari/D4RL", {"README.md": b"news"})  # the files are the same
    assert json.loads(cli("download", DOOR, "--json").out)["skipped_shards"] == 1
    name = "door/human-v2/data/main_data.hdf5"
    hub.add("farama-minari/D4RL", {name: hub.files("farama-minari/D4RL")[name] + b"\0"})
    files = json.loads(cli("download", DOOR, "--dry-run", "--json").out)["files"]
    assert {file["state"] for file in files} == {"missing"}
    refused = cli("download", DOOR)
    assert "is of other files than those of" in refused.err
    assert refused.code != 0


def test_download_of_lerobot(hub: HubServer) -> None:
    """Of Parquet that LeRobot has written."""
    files = {str(path.relative_to(LEROBOT)): path.read_bytes() for path in LEROBOT.rglob("*") if path.is_file()}
    commit = hub.add("lerobot/pusht", files)
    report = rlx.download("lerobot:pusht")
    found = rlx.open("lerobot/pusht")
    assert found.manifest.notes["origin"] == f"hf://datasets/lerobot/pusht@{commit}"
    expected = rlx.convert(LEROBOT, report.dataset.parent / "here")
    assert (len(found), report.trajectories) == (expected.steps, expected.trajectories)
    assert (found[:]["action"] == rlx.open(expected.dataset)[:]["action"]).all()


@pytest.mark.usefixtures("minari")
def test_list_of_minari(cli: Cli, home: Path) -> None:
    def names(*arguments: str) -> list[str]:
        found = json.loads(cli("list", "--remote", "--source", "minari", *arguments, "--json").out)
        return [one["id"] for one in found]

    assert names() == [
        *(f"minari:D4RL/door/human-v{version}" for version in (1, 10, 2)),
        *("minari:D4RL/pen/cloned-v1", "minari:lunar-v0"),
    ]
    assert len(names("--search", "DOOR")) == len(names("--game", "door")) == 3
    (home / "minari/D4RL/pen/cloned-v1").mkdir(parents=True)
    shown = cli("list", "--remote", "--source", "minari", "--game", "Pen").out.splitlines()
    assert shown[1].split() == ["minari:D4RL/pen/cloned-v1", "-", "hf://datasets/farama-minari/D4RL/pen/cloned-v1"]


@pytest.mark.usefixtures("minari")
def test_the_newest_version_of_minari(tmp_path: Path) -> None:
    report = rlx.download("minari:D4RL/door/human")
    assert report.dataset.parts[-2:] == ("door", "human-v10")
    with pytest.raises(SourceNotFoundError, match="Minari has no dataset D4RL/door/robot"):
        rlx.download("minari:D4RL/door/robot")
    with pytest.raises(SourceNotFoundError, match=r"farama-minari/D4RL/door/human-v9"):
        rlx.download("minari:D4RL/door/human-v9", output=tmp_path / "none")


def test_any_format_of_the_hub_in_any_revision(hub: HubServer, tmp_path: Path) -> None:
    rlx.convert(write(tmp_path / "dataset", 1), tmp_path / "steps.npz", to="npz")
    commit = hub.add("lerobot/pusht", {"steps.npz": (tmp_path / "steps.npz").read_bytes()})
    hub.add("lerobot/aloha", {})
    hub.add("lerobot/pusht", {"steps.npz": b"damaged"})
    report = rlx.download(f"hf:lerobot/pusht/steps.npz@{commit}")
    assert (
        rlx.open("hf/lerobot/pusht/steps.npz")
        .manifest.notes["origin"]
        .startswith(f"hf://datasets/lerobot/pusht@{commit}")
    )
    assert report.steps == 8
    assert str(hosted("lerobot:pusht@v2.1")) == "lerobot:pusht@v2.1"
    with pytest.raises(SourceNotFoundError, match="no such revision"):
        rlx.download("lerobot:pusht@v2.1")
    assert [run.id for run in rlx.list_runs(source="lerobot", remote=True)] == ["lerobot:aloha", "lerobot:pusht"]
    assert [run.id for run in rlx.list_runs(source="hf", search="push", remote=True)] == ["hf:lerobot/pusht"]
    with pytest.raises(OptionError, match="`source` requires a run GAME/NUMBER"):
        rlx.download("lerobot:pusht", source="somewhere")


@pytest.mark.parametrize("run", ["minary:a", "hf:pusht", "minari:", "lerobot:../a", "minari:a//b", "Pong:5"])
def test_names_that_lead_nowhere(run: str) -> None:
    with pytest.raises(SourceNotFoundError, match="expected"):
        hosted(run)
