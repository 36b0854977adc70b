"""An episode is what ``dataset[i]`` gives, row by row."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlx
from rlx.errors import SamplingError
from rlx.progress import Silent
from rlx.schema import Field, Role, Schema
from rlx.viewer.drawing import Box
from rlx.viewer.episode import Episode, notable, observation_lines, observation_numbers, served, spread
from rlx.viewer.files import write_view
from rlx.viewer.overview import Overview
from rlx.viewer.page import chosen_episodes, page
from tests.factories import TEXT, make_block, write_dataset
from tests.viewer.datasets import NUMBERS, block, coloured, numbers


def test_rows_are_those_of_the_dataset(pong: Path) -> None:
    dataset = rlx.open(pong)
    for number in range(6):
        episode = Episode(dataset, number)
        first = int(dataset.trajectories.start[number])
        steps = dataset[first : first + episode.length]
        assert np.array_equal(episode.rewards, steps["next", "reward"].numpy()[:, 0])
        assert np.array_equal(episode.returns, np.cumsum(steps["next", "reward"].numpy()[:, 0]))
        assert episode.actions is not None
        assert np.array_equal(episode.actions, steps["action"].numpy())
        rows = np.array([episode.length, 0, 5, 6, 7, episode.length - 1, 3])
        seen = episode.observations("observation", rows)
        for row, frame in zip(rows.tolist(), seen, strict=True):
            at = dataset[first + min(row, episode.length - 1)]
            wanted = at["next", "observation"] if row == episode.length else at["observation"]
            assert np.array_equal(frame, wanted.numpy())


def test_a_final_observation_that_was_not_recorded_is_no_row(tmp_path: Path) -> None:
    recorded, unrecorded = coloured(tmp_path / "a"), coloured(tmp_path / "b", recorded=False)
    assert (Episode(recorded, 1).rows, Episode(unrecorded, 1).rows) == (10, 9)


@pytest.mark.parametrize("number", [-1, 3, 10**9])
def test_no_such_episode(tmp_path: Path, number: int) -> None:
    with pytest.raises(SamplingError, match="expected 0 to 2"):
        Episode(numbers(tmp_path / "set"), number)


@given(st.integers(1, 200), st.integers(2, 60))
def test_a_spread_is_even_with_both_ends(rows: int, count: int) -> None:
    found = spread(rows, count)
    gaps = np.diff(found)
    assert (found[0], found[-1], len(found)) == (0, rows - 1, min(rows, count))
    assert rows == 1 or gaps.max() - gaps.min() <= 1


def test_of_few_episodes_each_is_named_once(tmp_path: Path) -> None:
    assert notable(numbers(tmp_path / "one", [[1.0]])) == {"best": 0}
    assert notable(numbers(tmp_path / "two", [[1.0], [2.0]])) == {"best": 1, "median": 0}
    assert notable(numbers(tmp_path / "more", [[1.0], [np.nan], [3.0], [2.0]])) == {"best": 2, "median": 0, "worst": 1}


def test_lines_of_observations(tmp_path: Path) -> None:
    dataset = numbers(tmp_path / "set")
    episode = Episode(dataset, 2)
    lines = observation_lines(episode, np.arange(13), most=3)
    assert [name for name, _ in lines] == ["observation[0]", "observation[1]", "observation[2]"]
    first = int(dataset.trajectories.start[2])
    assert np.array_equal(lines[1][1][:12], dataset[first : first + 12]["observation"][:, 1].numpy())
    assert lines[1][1][12] == dataset[first + 11]["next", "observation"][1]
    assert observation_numbers(dataset) == 4


def test_what_the_page_gets_is_exact_however_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewards = [1234567.0, 0.25, 16777215.0, 1.0]
    episode = Episode(numbers(tmp_path / "set", [rewards]), 0)
    said = served(episode)
    assert (said["rewards"], said["returns"][0], said["returns"][-1]) == (rewards, 1234567.0, 18011783.2)
    monkeypatch.setattr("rlx.viewer.episode._PIECE_BYTES", 20)
    assert served(episode) == said
    endless = served(Episode(numbers(tmp_path / "endless", [[1.0, np.inf, -np.inf, np.nan]]), 0))
    assert (endless["rewards"], endless["returns"]) == ([1.0, None, None, None], [1.0] + [None] * 4)


def test_rewards_that_read_the_same_are_counted_apart(tmp_path: Path) -> None:
    dataset = numbers(tmp_path / "set", [[0.12345671, 0.12345678, 0.12345678]])
    marks = Overview.of(dataset).drawings(400, 200)[3].marks
    assert sum(int(mark.hint.rsplit(": ")[1]) for mark in marks if isinstance(mark, Box) and mark.hint) == 3


def test_the_numbers_of_an_action_stand_apart(tmp_path: Path) -> None:
    episode = Episode(coloured(tmp_path / "set"), 1)
    assert episode.actions is not None
    assert episode.action_text(3) == ", ".join(f"{value:.2f}" for value in episode.actions[3])


def test_the_best_is_a_whole_episode(tmp_path: Path) -> None:
    made = block(NUMBERS, [[1.0], [9.0], [3.0], [2.0]])
    from_reset, cut = np.array([True, False, True, True]), np.array([False, False, False, True])
    pieces = write_dataset(
        tmp_path / "pieces", [[replace(made, from_reset=from_reset, cut=cut)]], schema=NUMBERS, codec="zstd"
    )
    assert notable(pieces) == {"best": 2, "median": 0}
    assert Episode(pieces, 1).title.startswith("piece 1  ·  return 9")
    assert Episode(pieces, 2).title.startswith("episode 2  ·  return 3")
    shown = [drawing.title for drawing in Overview.of(pieces).drawings(400, 200)]
    assert shown[1:3] == ["Returns of whole episodes", "Lengths of whole episodes, in steps"]
    told = re.sub("<[^>]*>", " ", page(pieces, chosen_episodes(pieces)))
    assert re.search(r"2\s+whole episodes, 2 pieces", told)
    assert re.search(r"2\s+mean return, 1 to 3", told)

    only = write_dataset(tmp_path / "only", [[replace(made, from_reset=cut & False)]], schema=NUMBERS, codec="zstd")
    assert notable(only) == {"best": 1, "median": 3, "worst": 0}
    assert Overview.of(only).drawings(400, 200)[1].title == "Returns of pieces of episodes"


@pytest.mark.parametrize("suffix", ["png", "gif", "html"])
@pytest.mark.parametrize("only", [False, True])
def test_texts_do_not_break_what_is_shown(tmp_path: Path, suffix: str, only: bool) -> None:
    """Beside other observations and alone, with an action that is text."""
    fields = {**TEXT.fields, "action": Field("string", (), Role.STEP)}
    if only:
        del fields["observation/state"]
    said = Schema(fields)
    made = make_block((3, 5), schema=TEXT)
    action = np.array([f"go to <b>{step}</b>\n" for step in range(8)], object)
    data = {name: rows for name, rows in {**made.data, "action": action}.items() if name in said.fields}
    dataset = write_dataset(tmp_path / "said", [[replace(made, data=data)]], schema=said)
    write_view(dataset, tmp_path / f"view.{suffix}", progress=Silent())
    assert Episode(dataset, 1).action_text(1) == "go to <b>4</b> "
