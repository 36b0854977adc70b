"""The page: one file with all in it, exact frames, bounded, and names that are nothing but names."""

import html
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.manifest import Manifest
from rlx.store.dataset import Dataset
from rlx.viewer import episode
from rlx.viewer import page as page_module
from rlx.viewer.drawing import DARK, LIGHT, Theme
from rlx.viewer.episode import Episode, embedded, numbers
from rlx.viewer.page import asked_first, chosen_episodes, page
from tests.factories import write_dataset
from tests.viewer import datasets
from tests.viewer.page_data import embedded_frames, page_data


class _Tags(HTMLParser):
    """The elements of a page, and whether each is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attributes
        if tag not in {"meta", "link", "input", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def made(dataset: Dataset, **asked: Any) -> str:
    return page(dataset, chosen_episodes(dataset), **asked)


@pytest.fixture
def opened(pong: Path) -> Dataset:
    return rlx.open(pong)


class TestWhatIsInIt:
    def test_the_manifest(self, opened: Dataset) -> None:
        text = html.unescape(made(opened))
        for said in ("Pong/5", "2,491", "00002", "84 x 84", "rlx convert sample", "zstd-dict", "observation"):
            assert said in text
        for note in opened.manifest.notes:
            assert note.replace("_", " ") in text

    def test_the_frames_of_some_episodes_are_exact(self, opened: Dataset) -> None:
        data = page_data(made(opened))
        assert [one["number"] for one in data["embedded"]] == list(chosen_episodes(opened).values())
        for one in data["embedded"]:
            frames = embedded_frames(one)
            rows = np.array(one["rows"])
            wanted = Episode(opened, one["number"]).frames("observation", rows)
            assert (rows[0], rows[-1], len(frames)) == (0, Episode(opened, one["number"]).rows - 1, len(rows))
            assert all(np.array_equal(frame, want) for frame, want in zip(frames, wanted, strict=True))

    def test_in_colour_too(self, tmp_path: Path) -> None:
        dataset = datasets.coloured(tmp_path / "set", colours=3000)
        one = page_data(made(dataset))["embedded"][0]
        assert np.array_equal(
            embedded_frames(one), Episode(dataset, one["number"]).frames("observation", np.arange(10))
        )

    def test_the_one_that_is_asked_for_comes_first(self, opened: Dataset) -> None:
        data = page_data(page(opened, asked_first(chosen_episodes(opened), 3)))
        assert (data["first"], data["embedded"][0]["number"]) == (3, 3)

    def test_served_it_holds_no_episode(self, opened: Dataset) -> None:
        data = page_data(made(opened, served=True))
        assert (data["served"], data["embedded"], data["count"]) == (True, [], 6)

    def test_how_many_episodes_are_in_it_is_said(self, opened: Dataset, tmp_path: Path) -> None:
        assert f"{len(chosen_episodes(opened))} of 6 episodes are in this page" in made(opened)
        assert "All of 3 episodes." in made(datasets.numbers(tmp_path / "set"))


class TestNumbers:
    @pytest.mark.parametrize("every", [1, 2, 3, 7, 100])
    def test_nothing_is_lost_between_two_rows(self, opened: Dataset, every: int) -> None:
        episode = Episode(opened, 2)
        said = numbers(episode, every)
        assert said["rows"] == sorted({*range(0, episode.rows, every), episode.rows - 1})
        assert sum(said["rewards"]) == pytest.approx(episode.rewards.sum())
        assert said["returns"][-1] == pytest.approx(episode.returns[-1])
        for place, row in enumerate(said["rows"][:-1]):
            after = min(row + every, episode.length)
            assert said["returns"][place] == pytest.approx(episode.rewards[:after].sum())
            assert said["rewards"][place] == pytest.approx(episode.rewards[row:after].sum())
            assert episode.actions is not None
            assert said["actions"][place] == [episode.actions[row]]

    def test_what_is_no_number_is_null(self, tmp_path: Path) -> None:
        dataset = datasets.numbers(tmp_path / "set", [[1.0, np.nan, np.inf, 2.0]])
        assert numbers(Episode(dataset, 0), 1)["rewards"] == [1.0, None, None, 2.0]
        page_data(made(dataset))


class TestBounds:
    def test_frames_that_would_take_too_much_are_thinned_out(self, opened: Dataset) -> None:
        whole = embedded(Episode(opened, 0), 2**30)
        taken = sum(map(len, whole["frames"][0]["strips"]))
        half = embedded(Episode(opened, 0), taken // 4)
        assert whole["every"] == 1
        assert half["every"] > 1
        assert sum(map(len, half["frames"][0]["strips"])) <= taken // 4 * 4 / 3 + 200
        wanted = Episode(opened, 0).frames("observation", np.array(half["rows"]))
        assert np.array_equal(embedded_frames(half), wanted)

    def test_a_page_has_a_size(self, opened: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(page_module, "MAX_FRAME_BYTES", 50_000)
        small = made(opened)
        without = re.sub(r"data:image/png;base64,[^\"]*", "", small)
        assert len(small) - len(without) < 50_000 * 4 / 3 + 5 * 1000

    def test_rows_have_a_limit(self, opened: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(episode, "_MAX_EMBEDDED_ROWS", 20)
        assert len(embedded(Episode(opened, 0), 2**30)["rows"]) <= 21

    def test_many_shards_are_not_all_shown(self, opened: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(page_module, "_MAX_SHARDS", 2)
        text = made(opened)
        assert "the first 2 are shown" in text
        assert "<td>00002</td>" not in text


class TestNames:
    @pytest.fixture
    def evil(self, tmp_path: Path) -> Dataset:
        return rlx.open(datasets.with_evil_names(datasets.coloured(tmp_path / "<b>set").path))

    @pytest.mark.parametrize("served", [False, True])
    def test_are_nothing_but_names(self, evil: Dataset, tmp_path: Path, served: bool) -> None:
        plain = datasets.coloured(tmp_path / "plain")
        tags, expected = _Tags(made(evil, served=served)), _Tags(made(plain, served=served))
        assert {"img", "b"}.isdisjoint(set(tags.names) - set(expected.names))
        assert tags.names.count("script") == 2
        assert not [name for name, _ in tags.attributes if name.startswith("on")]

    def test_nothing_is_fetched_from_elsewhere(self, evil: Dataset) -> None:
        tags = _Tags(made(evil))
        addresses = [value for name, value in tags.attributes if name in {"src", "href", "data-src", "action"}]
        assert addresses == ["data:,"]
        (rules,) = [value for name, value in tags.attributes if name == "content" and "default-src" in (value or "")]
        assert rules is not None
        assert "default-src 'none'" in rules
        assert "unsafe" not in rules


def test_a_page_to_share_names_no_path_of_this_machine(tmp_path: Path) -> None:
    path = datasets.numbers(tmp_path / "set").path
    listed = Manifest.load(path)
    line = {
        "command": f"rlx collect --policy {path}/a.py:act -o '{path} x/out' s3://b/c file://{path}/run",
        "parents": [],
    }
    replace(listed, notes={"policy": f"{path}/agent.pt:make", "url": "https://b.c/d"}, lineage=[line]).save(path)
    shared, served = (html.unescape(made(rlx.open(path), served=served)) for served in (False, True))
    assert str(path) in served
    assert str(tmp_path) not in shared
    for kept in ("rlx collect --policy a.py:act -o 'out' s3://b/c run", "agent.pt:make", "https://b.c/d"):
        assert kept in shared


def test_a_dataset_without_a_step(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "set", [[]], schema=datasets.NUMBERS)
    text = made(dataset)
    _Tags(text)
    assert page_data(text)["embedded"] == []
    assert 'id="player"' not in text


def test_another_sort_of_dataset(tmp_path: Path) -> None:
    dataset = datasets.coloured(tmp_path / "set", [[0.1 * n for n in range(50)]])
    text = made(dataset)
    _Tags(text)
    assert "action[1]" in text
    assert "median" in text


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_the_page_and_the_pictures_have_the_same_colours(theme: Theme) -> None:
    light, _, dark = page_module._style().partition("@media (prefers-color-scheme: dark)")
    said = dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", light if theme is LIGHT else dark.partition("}}")[0]))
    assert said == dict(theme)
