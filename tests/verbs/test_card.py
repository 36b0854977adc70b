"""The card of a dataset on the hub, and its Croissant description as mlcroissant reads it."""

import csv
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlcroissant
import numpy as np
import pytest
import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

import rlx
from rlx.errors import OptionError
from rlx.manifest import Manifest
from rlx.store.dataset import Dataset
from rlx.store.layout import CITATION as CITATIONS
from rlx.verbs.card import CROISSANT, MARK, NAME, TABLE, Card
from rlx.verbs.citation import card_citations, known_citations
from tests.factories import collected
from tests.hub_server import HubServer
from tests.verbs.datasets import SAMPLE_RUN
from tests.verbs.pushes import write

pytestmark = [
    pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning"),
    # mlcroissant's own.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
URL = "hf://datasets/me/pong"


@pytest.fixture
def sample_dataset(tmp_path: Path) -> Path:
    rlx.download("Pong/5", source=SAMPLE_RUN, output=tmp_path / "pong")
    return tmp_path / "pong"


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    return collected("CartPole-v1", tmp_path / "vectors", steps=300, seed=3)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    words = np.array(["left", "right | wrong", "```", "<b>ü</b>"] * 5)
    arrays: dict[str, Any] = {
        "observation": words,
        "action": np.arange(20),
        "next/observation": np.roll(words, -1),
        "next/reward": np.ones(20, np.float32),
        "next/terminated": np.arange(20) % 10 == 9,
        "next/truncated": np.zeros(20, bool),
    }
    np.savez(tmp_path / "text.npz", **arrays)
    rlx.convert(tmp_path / "text.npz", tmp_path / "text")
    return tmp_path / "text"


@pytest.mark.parametrize("name", ["atari", "vectors", "text"])
def test_mlcroissant_validates_it_and_iterates_its_records(
    hub: HubServer, name: str, tmp_path: Path, sample_dataset: Path, request: pytest.FixtureRequest
) -> None:
    dataset = sample_dataset if name == "atari" else request.getfixturevalue(name)
    rlx.push(dataset, URL)
    there = tmp_path / CROISSANT
    there.write_bytes(hub.files("me/pong")[CROISSANT])
    described = mlcroissant.Dataset(jsonld=str(there))
    assert not described.metadata.ctx.issues.errors
    table = rlx.open(dataset).trajectories
    records = list(described.records("trajectories"))
    assert [record["trajectories/length"] for record in records] == table.length.tolist()
    assert [record["trajectories/return"] for record in records] == table.returns.tolist()
    assert [record["trajectories/whole"] for record in records] == table.whole.tolist()


def test_the_description_of_a_version_reads_its_tag(hub: HubServer, tmp_path: Path) -> None:
    dataset = write(tmp_path / "dataset", 2)
    rlx.push(dataset, URL, version="v1")
    rlx.push(write(tmp_path / "grown", 3), URL)
    files = hub.files("me/pong", "v1")
    there = tmp_path / CROISSANT
    there.write_bytes(files[CROISSANT])
    assert len(list(mlcroissant.Dataset(jsonld=str(there)).records("trajectories"))) == 4
    text = files[NAME].decode()
    assert 'rlx.open("hf://datasets/me/pong@v1")' in text
    assert "`rlx pull hf://datasets/me/pong@v1`" in text
    assert b"/resolve/main/trajectories.csv" in hub.files("me/pong")[CROISSANT]
    rlx.push(dataset, "hf://datasets/me/again/run/5")  # the version is noted
    files = hub.files("me/again")
    assert b"/resolve/v1/run/5/trajectories.csv" in files[f"run/5/{CROISSANT}"]
    assert b'rlx.open("hf://datasets/me/again@v1/run/5")' in files[f"run/5/{NAME}"]


def test_the_card_says_what_the_dataset_is(hub: HubServer, sample_dataset: Path) -> None:
    rlx.push(sample_dataset, URL, license="cc-by-4.0")
    files = hub.files("me/pong")
    _, front, text = files[NAME].decode().split("---\n", 2)
    found = yaml.safe_load(front)
    assert found["license"] == "cc-by-4.0"
    assert found["pretty_name"] == "Pong/5"
    assert found["task_categories"] == ["reinforcement-learning"]
    assert "rlx" in found["tags"]
    assert found["size_categories"] == ["1K<n<10K"]
    assert 'rlx.open("hf://datasets/me/pong")' in text
    assert "rewards: clipped to [-1, 1]" in text
    assert "licence" not in text
    assert "rlx download Pong/5" in text
    assert "| observation | uint8 | 84 x 84 |" in text
    for picture in ("images/overview.png", "images/frames.png"):
        assert f"({picture})" in text
        assert files[picture].startswith(b"\x89PNG")
    rows = list(csv.DictReader(files[TABLE].decode().splitlines()))
    assert sum(int(row["length"]) for row in rows) == 2491
    assert files[CITATIONS].decode().count("@inproceedings") == 2
    assert json.loads(files[CROISSANT])["license"] == "cc-by-4.0"


def test_without_a_given_licence_the_card_notes_what_the_source_says(hub: HubServer, sample_dataset: Path) -> None:
    rlx.push(sample_dataset, URL)
    assert "- licence: unspecified" in hub.files("me/pong")[NAME].decode()


def test_the_card_has_no_path_of_this_machine(hub: HubServer, tmp_path: Path) -> None:
    path = write(tmp_path / "dataset", 1, planned=1)
    lineage = [{"command": "rlx convert '/home/ann b/run' s3://bucket/x", "rlx": "0.1.0", "parents": []}]
    replace(Manifest.load(path), notes={"policy": "/home/ann/agent.py:act"}, lineage=lineage).save(path)
    rlx.push(path, URL)
    text = hub.files("me/pong")[NAME].decode()
    assert "/home" not in text
    assert "- policy: agent.py:act" in text
    assert "rlx convert 'run' s3://bucket/x" in text


def test_nothing_is_invented(hub: HubServer, vectors: Path) -> None:
    rlx.push(vectors, URL)
    files = hub.files("me/pong")
    assert CITATIONS not in files
    assert b"license" not in files[NAME]
    assert "license" not in json.loads(files[CROISSANT])
    assert known_citations(Dataset(vectors).manifest) == []


def test_the_same_dataset_gives_the_same_card(vectors: Path) -> None:
    cards = [
        Card(Dataset(vectors), "hf://datasets/me/pong", "http://host/me/pong", "http://host/me/pong/t").files()
        for _ in range(2)
    ]
    assert cards[0] == cards[1]


def test_a_given_citation_comes_first_and_an_unchanged_dataset_is_cited_anew(
    hub: HubServer, sample_dataset: Path, tmp_path: Path
) -> None:
    rlx.push(sample_dataset, URL)
    (tmp_path / "mine.bib").write_text("@misc{mine, title = {Mine}}\n")
    rlx.push(sample_dataset, URL, cite=tmp_path / "mine.bib", license="mit")
    assert [entry.partition(",")[0] for entry in rlx.cite(URL)] == [
        *("@misc{mine", "@inproceedings{agarwal2020optimistic", "@inproceedings{gulcehre2020rl")
    ]
    rlx.pull(URL, tmp_path / "copy")
    assert rlx.cite(tmp_path / "copy") == rlx.cite(URL)
    rlx.preprocess(tmp_path / "copy", tmp_path / "signs", transform="clip_reward")
    rlx.merge([tmp_path / "copy", tmp_path / "signs"], output=tmp_path / "both")
    assert rlx.cite(tmp_path / "both") == rlx.cite(tmp_path / "signs") == rlx.cite(URL)
    rlx.push(tmp_path / "copy", URL, version="v1")  # what was given stays
    assert rlx.cite(URL) == rlx.cite(tmp_path / "copy")
    assert b'license: "mit"' in hub.files("me/pong")[NAME]
    assert hub.files("me/pong")[CITATIONS].startswith(b"@misc{mine, title = {Mine}}\n\n@inproceedings{agarwal")
    assert len(hub.repos["me/pong"].commits) == 4
    (tmp_path / "mine.bib").write_text("not BibTeX")
    with pytest.raises(OptionError, match="is not BibTeX"):
        rlx.push(sample_dataset, URL, cite=tmp_path / "mine.bib")
    with pytest.raises(OptionError, match="`license` requires hf://datasets/ORG/NAME"):
        rlx.push(sample_dataset, str(tmp_path / "there"), license="mit")


def test_a_card_that_somebody_wrote_stays(hub: HubServer, vectors: Path, caplog: pytest.LogCaptureFixture) -> None:
    hub.add("me/pong", {NAME: b"# Mine"})
    with caplog.at_level(logging.WARNING):
        rlx.push(vectors, URL)
    assert hub.files("me/pong")[NAME] == b"# Mine"
    assert "README.md is kept" in caplog.text
    assert "rlx.json" in hub.files("me/pong")


def test_beside_a_card_that_somebody_wrote_the_other_files_are_written(
    hub: HubServer, sample_dataset: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hub.add("me/pong", {NAME: b"# Mine"})
    (tmp_path / "mine.bib").write_text("@misc{mine, title = {Mine}}\n")
    rlx.push(sample_dataset, URL, cite=tmp_path / "mine.bib", license="mit")
    files = hub.files("me/pong")
    assert files[NAME] == b"# Mine"
    assert files[CITATIONS].startswith(b"@misc{mine, title = {Mine}}\n\n@inproceedings{agarwal")
    assert json.loads(files[CROISSANT])["license"] == "mit"
    assert len(files[TABLE].splitlines()) > 1
    assert "the licence mit is not written to it; not written: images/frames.png, images/overview.png" in caplog.text
    assert "images/frames.png" not in files
    (tmp_path / "mine.bib").write_text("@misc{later}\n")  # its own files are replaced, and the licence still holds
    rlx.push(sample_dataset, URL, cite=tmp_path / "mine.bib")
    files = hub.files("me/pong")
    assert files[CITATIONS].startswith(b"@misc{later}\n\n@inproceedings{agarwal")
    assert json.loads(files[CROISSANT])["license"] == "mit"


def test_files_that_somebody_wrote_stay_and_are_named(
    hub: HubServer, vectors: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = {NAME: b"# Mine", CITATIONS: b"@misc{theirs}\n", CROISSANT: b'{"distribution": []}', TABLE: b"a,b\n"}
    hub.add("me/pong", theirs)
    (tmp_path / "mine.bib").write_text("@misc{mine}\n")
    for _ in range(2):
        rlx.push(vectors, URL, cite=tmp_path / "mine.bib")
        assert {name: hub.files("me/pong")[name] for name in theirs} == theirs
        named = "CITATION.bib, croissant.json, images/frames.png, images/overview.png, trajectories.csv"
        assert f"not written: {named}" in caplog.text
        caplog.clear()


def test_what_a_dataset_says_of_itself_stays_text(tmp_path: Path) -> None:
    path = write(tmp_path / "dataset", 1, planned=1)
    evil = "<script>alert(1)</script>\n```\x1b[31m\n---\nlicense: mit"
    lineage = [{"command": f"rlx collect {evil}", "rlx": "0.1.0", "parents": []}]
    manifest = replace(Manifest.load(path), notes={"warning": evil, "citation": evil}, lineage=lineage)
    (path / "rlx.json").write_bytes(manifest.encode())
    text = (
        Card(Dataset(path), "hf://datasets/me/pong", "http://host/me/pong", "http://host/me/pong/t")
        .files()[NAME]
        .decode()
    )
    assert "\x1b" not in text
    tokens = MarkdownIt("commonmark").parse(text.split("---\n", 2)[2])
    html = [token.content.strip() for token in _leaves(tokens) if token.type.startswith("html")]
    assert html == [MARK]
    fenced = [token.content for token in tokens if token.type == "fence"]
    assert len(fenced) == 3
    assert "<script>alert(1)" in fenced[1]
    assert "license" not in yaml.safe_load(text.split("---\n")[1])


def _leaves(tokens: Sequence[Token]) -> Iterator[Token]:
    for token in tokens:
        yield from _leaves(token.children) if token.children else [token]


def test_code_is_shown_as_it_was_written_and_stays_in_its_fence(hub: HubServer, tmp_path: Path) -> None:
    path = write(tmp_path / "dataset", 1, planned=1)
    command = "rlx preprocess pong 'filter:whole and return < 25' '\n```\n# out\n````\n<b>'"
    lineage = [{"command": command, "rlx": "0.1.0", "parents": []}]
    replace(Manifest.load(path), lineage=lineage).save(path)
    entry = "@misc{mine,\n  title = {A < B & C}\n}"
    other = "@misc{other,\n  title = {\n```\n}\n}"
    (tmp_path / "mine.bib").write_text(f"{entry}\n\n{other}")
    rlx.push(path, URL, cite=tmp_path / "mine.bib")
    text = hub.files("me/pong")[NAME].decode()
    tokens = MarkdownIt("commonmark").parse(text.split("---\n", 2)[2])
    shown = {token.info: token.content for token in tokens if token.type == "fence"}
    assert shown["sh"] == f"{command}\n"
    assert shown["bibtex"] == f"{entry}\n\n{other}\n"
    assert tokens[-1].type == "fence"
    (tmp_path / NAME).write_text(text)
    assert card_citations(tmp_path / NAME) == [entry, other]
