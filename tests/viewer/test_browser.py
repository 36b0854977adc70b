"""The page in a browser: on a phone and on a desk, light and dark, without a network; the player plays."""

import base64
import io
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import rlx
from rlx.progress import Silent
from rlx.store.dataset import Dataset
from rlx.viewer.episode import Episode
from rlx.viewer.files import write_view
from rlx.viewer.server import ViewServer, table
from tests.factories import collected
from tests.viewer import datasets
from tests.viewer.chromium import PROGRAM, Chromium
from tests.viewer.test_server import serving

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium on this machine")
SIZES = [(390, 844), (1280, 900)]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(autouse=True)
def nothing_said_yet(browser: Chromium) -> None:
    browser.complaints.clear()
    browser.requests.clear()


def written(dataset: Dataset, path: Path) -> str:
    write_view(dataset, path, progress=Silent())
    return path.as_uri()


def canvas(browser: Chromium, name: str = "canvas") -> NDArray[np.uint8]:
    """What the player shows, a pixel for each of the stored picture."""
    url = browser.run(f"document.getElementById('{name}').toDataURL('image/png')")
    with Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) as image:
        return np.asarray(image.convert("RGB"))


def scrub(browser: Chromium, row: int) -> None:
    """Moves the player's slider, and waits for the frame."""
    change(browser, "slider", f"value = {row}", "input")
    browser.wait_until(f"document.getElementById('canvas').dataset.row === '{row}'")


def change(browser: Chromium, name: str, assignment: str, event: str = "change") -> None:
    """Changes a control as a hand would."""
    browser.run(
        f"{{const e = document.getElementById('{name}'); e.{assignment}; e.dispatchEvent(new Event('{event}'))}}"
    )


def shown(browser: Chromium, name: str) -> str:
    text: str = browser.run(f"document.getElementById('{name}').textContent")
    return text


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("kind", ["pong", "numbers", "evil"])
def test_it_fits_every_screen(
    browser: Chromium, pong: Path, tmp_path: Path, kind: str, width: int, height: int, scheme: str
) -> None:
    dataset = rlx.open(pong) if kind == "pong" else datasets.numbers(tmp_path / "numbers")
    if kind == "evil":
        dataset = rlx.open(datasets.with_evil_names(datasets.coloured(tmp_path / "evil").path))
    url = written(dataset, tmp_path / "page.html")
    browser.look_like(width, height, scheme=scheme)
    browser.open(url)
    assert browser.run("document.documentElement.scrollWidth") <= width
    outside = """[...document.querySelectorAll('body *')].filter((e) => !e.closest('.scroll, svg') &&
        e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 80))"""
    assert browser.run(outside) == []
    background = browser.run("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(246, 247, 249)" if scheme == "light" else "rgb(15, 17, 21)")
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [url]


def test_the_player_shows_the_frames_of_the_dataset(browser: Chromium, pong: Path, tmp_path: Path) -> None:
    dataset = rlx.open(pong)
    browser.look_like(390, 844)
    browser.open(written(dataset, tmp_path / "page.html"))
    number = browser.run("Number(document.getElementById('pick').value)")
    episode = Episode(dataset, number)
    for row in (0, 80, 81, 82, episode.rows - 1):  # a strip has 81
        scrub(browser, row)
        frame = episode.frames("observation", np.array([row]))[0]
        times = canvas(browser).shape[0] // 84
        assert np.array_equal(canvas(browser)[times // 2 :: times, times // 2 :: times], frame)
        step = min(row, episode.length - 1)
        assert float(shown(browser, "return")) == episode.returns[step]
        assert shown(browser, "step") == (f"{row:,} (end)" if row == episode.length else f"{row:,}")
        assert shown(browser, "action") == ("\u2013" if row == episode.length else str(episode.action_text(step)))
    assert browser.complaints == []


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_what_was_done_can_be_read_to_the_end(browser: Chromium, tmp_path: Path, width: int, height: int) -> None:
    dataset = datasets.coloured(tmp_path / "set", [[-0.012345678] * 9])
    browser.look_like(width, height)
    browser.open(written(dataset, tmp_path / "page.html"))
    assert shown(browser, "action") == Episode(dataset, 0).action_text(0)
    cut = "[...document.querySelectorAll('.facts b')].filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.id)"
    assert browser.run(cut) == []


def test_it_plays_stops_and_steps(browser: Chromium, pong: Path, tmp_path: Path) -> None:
    browser.look_like(1200, 900)
    browser.open(written(rlx.open(pong), tmp_path / "page.html"))
    browser.run("document.getElementById('play').click()")
    browser.wait_until("Number(document.getElementById('slider').value) >= 5")
    browser.run("document.getElementById('play').click()")
    assert shown(browser, "play") == "Play"
    row = browser.run("Number(document.getElementById('slider').value)")
    for key, expected in (("ArrowRight", row + 1), ("ArrowRight", row + 2), ("ArrowLeft", row + 1)):
        browser.run(f"document.body.dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}', bubbles: true}}))")
        assert browser.run("Number(document.getElementById('slider').value)") == expected
    change(browser, "pick", "selectedIndex = 1")
    assert shown(browser, "step") == "0"
    number = browser.run("document.getElementById('pick').value")
    assert shown(browser, "title").startswith(f"episode {number}")
    assert browser.complaints == []


def test_numbers_have_a_line_that_moves(browser: Chromium, tmp_path: Path) -> None:
    dataset = datasets.numbers(tmp_path / "set", [[1.0] * 5, [1234567.0] * 40, [1.0] * 12])
    browser.open(written(dataset, tmp_path / "page.html"))
    assert browser.run("document.getElementById('reward').textContent") == "1,234,567"
    shown = "[...document.querySelectorAll('#curves > div')].at(-1)"
    assert browser.run(f"{shown}.querySelectorAll('path').length") == 4
    change(browser, "slider", "value = 20", "input")
    assert browser.run(f"{shown}.querySelector('.cursor').getAttribute('x1')") == "500.0"
    value = float(Episode(dataset, 1).observations("observation", np.array([20]))[0, 2])
    assert float(browser.run(f"{shown}.querySelector('.legend').children[3].lastChild.textContent")) == pytest.approx(
        value, rel=1e-3
    )
    assert browser.complaints == []


def press(browser: Chromium, *keys: str) -> None:
    for key in keys:
        browser.run(f"document.body.dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}', bubbles: true}}))")


def test_cameras_keys_filter_and_new_episodes(browser: Chromium, tmp_path: Path) -> None:
    dataset = rlx.open(datasets.everything(tmp_path / "set").path)
    rows = "[...document.querySelectorAll('#rows tr')].map((one) => Number(one.dataset.episode))"
    for server in serving(ViewServer(dataset, first=0)):
        browser.look_like(1000, 900, scheme="dark")
        browser.open(server.url)
        browser.wait_until("document.getElementById('canvas1')?.dataset.row === '0'")
        wrist = Episode(dataset, 0).frames("observation/wrist", np.array([0]))[0]
        pixels = canvas(browser, "canvas1")
        times = pixels.shape[1] // 16
        assert np.array_equal(pixels[times // 2 :: times, times // 2 :: times], wrist)
        browser.run("document.querySelectorAll('#cameras button')[1].click()")
        hidden = "[...document.querySelectorAll('#stage figure')].map((one) => one.hidden)"
        assert browser.run(hidden) == [False, True]
        assert shown(browser, "texts") == "observation/taskgo to <b>0</b>  [31m"
        press(browser, "End")
        assert shown(browser, "step") == "5 (end)"
        press(browser, "n", "n")
        browser.wait_until("document.getElementById('title').textContent.includes(' 1  ')")
        change(browser, "where", "value = 'length > 4'", "input")
        browser.wait_until(f"String({rows}) === '0,1'")
        assert shown(browser, "found") == "2 of 3 episodes"
        browser.run("document.querySelector('[data-sort=length]').click()")
        browser.wait_until(f"String({rows}) === '1,0'")
        change(browser, "where", "value = 'lenght > 4'", "input")
        browser.wait_until("document.getElementById('found').textContent.includes('did you mean length?')")
        assert browser.complaints == []
        change(browser, "where", "value = ''", "input")
        for number, focused in ((4, "#rows button"), (5, ".pairs .scroll")):
            browser.run(f"document.querySelector({focused!r}).focus()")
            shutil.rmtree(dataset.path)
            datasets.everything(dataset.path, (5, 9, 3, 7, 6)[:number])
            browser.wait_until(f"String({rows}).split(',').length === {number}")
            assert browser.run(f"document.activeElement === document.querySelector({focused!r})")
        assert browser.run("document.documentElement.scrollWidth") <= 1000


def test_a_file_filters_as_the_server_does(browser: Chromium, tmp_path: Path) -> None:
    collected("CartPole-v1", tmp_path / "poles", steps=2_000, seed=2, shard_steps=400)
    dataset = rlx.open(tmp_path / "poles")
    browser.open(written(dataset, tmp_path / "page.html"))
    rows = "[...document.querySelectorAll('#rows tr')].map((one) => Number(one.dataset.episode))"
    for where in (
        "",
        "filter:whole and return > 20",
        "not whole or 2*(length - 10) >= return + 1.5e1",
        "10 < return <= 25 != id and truncated == False",
        "-length % 7 == 2 or shard == 1 or not not cut",
        "id / 0 > 3 and (from_reset and True or terminated != final_recorded)",
        ".5 > episode - 3 - 2 * 4",
    ):
        change(browser, "where", f"value = {where!r}", "input")
        found = table(dataset, {"where": [where], "most": ["999"]})
        assert browser.run(rows) == [row[0] for row in found["rows"]], where
        assert shown(browser, "found") == ("" if not where else f"{found['found']} of {found['of']} episodes")
    for where, problem in {
        "lenght > 4": "lenght is unexpected; names are length, return,",
        "return": "expected a condition",
        "cut > 1": "expected a number",
        "(cut": "a parenthesis is not closed",
        "return >": "the end is unexpected",
        "cut cut": "cut is unexpected",
    }.items():
        change(browser, "where", f"value = {where!r}", "input")
        assert problem in shown(browser, "found"), where
    assert browser.complaints == []


def test_served_any_episode_can_be_had(browser: Chromium, pong: Path) -> None:
    dataset = rlx.open(pong)
    for server in serving(ViewServer(dataset)):
        browser.look_like(390, 844)
        browser.open(server.url)
        browser.wait_until("document.getElementById('canvas')?.dataset.row === '0'")
        for number in (3, 1):
            change(browser, "goto", f"value = {number}")
            browser.wait_until(f"document.getElementById('title').textContent.includes(' {number}  ')")
            row = min(150, Episode(dataset, number).rows - 1)
            scrub(browser, row)
            frame = Episode(dataset, number).frames("observation", np.array([row]))[0]
            times = canvas(browser).shape[0] // 84
            assert np.array_equal(canvas(browser)[times // 2 :: times, times // 2 :: times], frame)
        dot = "document.querySelector('.narrow circle[data-episode]')"
        number = browser.run(f"{dot}.dataset.episode")
        browser.run(f"{dot}.dispatchEvent(new Event('click', {{bubbles: true}}))")
        browser.wait_until(f"document.getElementById('title').textContent.includes(' {number}  ')")
        assert browser.run("document.documentElement.scrollWidth") <= 390
        assert browser.complaints == []
        last = Episode(dataset, int(number)).rows - 1  # of a strip that the server names by another edition by now
        server.shown[0]._datasets, server.shown[0].edition = {1: dataset}, 1
        browser.wait_until("document.querySelector('#pick') && performance.getEntriesByName(location.href).length > 1")
        change(browser, "slider", f"value = {last}", "input")
        browser.wait_until(f"document.getElementById('canvas').dataset.row === '{last}'")
    assert all(url.startswith((server.url, "data:")) for url in browser.requests)
