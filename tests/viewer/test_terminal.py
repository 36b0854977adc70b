"""Episodes in a terminal: what is drawn, and how much room it takes."""

import base64
import io
import os
import re
import select
import sys
import threading
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rlx.store.dataset import Dataset
from rlx.viewer.episode import Episode
from rlx.viewer.terminal import (
    Terminal,
    asked_terminal,
    cut,
    drop_late_answer,
    half_blocks,
    kitty,
    sixel,
    terminal_frames,
)
from rlx.wording import number
from rlx_cli.viewing import _play
from tests.conftest import Cli
from tests.factories import collected
from tests.viewer.datasets import everything

_CODE = re.compile(r"\x1b\[[0-9;]*m")


def pixels(lines: list[str]) -> list[list[list[int]]]:
    """The upper and the lower pixels of every line, each [width][3], as a terminal would colour them."""
    rows = []
    for line in lines:
        upper, lower, colours = [], [], [0] * 10
        for part in re.findall(r"\x1b\[[0-9;]+m|▀", line):
            if part == "▀":
                upper.append(colours[2:5])
                lower.append(colours[7:10])
            else:
                colours = [int(number) for number in part[2:-1].split(";")]
        rows += [upper, lower]
    return rows


@pytest.mark.parametrize("height", [6, 7])
def test_every_pixel_of_a_picture_that_fits_is_drawn(height: int) -> None:
    picture = np.random.default_rng(0).integers(0, 3, (height, 9, 3), np.uint8)
    black = [[[0, 0, 0]] * 9] * (height % 2)  # below the last row of an odd number

    assert pixels(half_blocks(picture, 9, 4)) == [*picture.tolist(), *black]


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (30, 50), (8, 4), (200, 10)])
def test_a_screen_fits_the_terminal(pong: Path, columns: int, lines: int) -> None:
    for frame in list(terminal_frames(Episode(Dataset(pong), 0), lambda: (columns, lines)))[:70]:
        assert len(frame) <= lines - 1
        assert all(len(_CODE.sub("", line)) <= columns for line in frame)


def test_there_is_a_screen_for_each_observation_and_its_step(pong: Path) -> None:
    episode = Episode(Dataset(pong), 1)
    frames = list(terminal_frames(episode, lambda: (40, 20)))
    assert len(frames) == episode.rows
    assert frames[0][-2] == episode.title[:40]
    assert frames[2][-1].startswith(f"step 2 of {episode.length}  return ")


def test_numbers_are_drawn_as_curves(tmp_path: Path) -> None:
    collected("CartPole-v1", tmp_path / "cartpole", episodes=1, seed=0)
    frames = list(terminal_frames(Episode(Dataset(tmp_path / "cartpole"), 0), lambda: (60, 24)))
    assert [line.split()[0] for line in frames[-1][:4]] == [f"observation[{part}]" for part in range(4)]
    assert all("█" in line for line in frames[-1][:4])
    assert frames[-1][-1].endswith("terminated")
    narrow = next(terminal_frames(Episode(Dataset(tmp_path / "cartpole"), 0), lambda: (20, 24)))
    assert max(map(len, narrow)) <= 20


class _Interrupted(io.StringIO):
    """A terminal whose user presses Ctrl-C while the third screen is written."""

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        self.flushed = getattr(self, "flushed", 0) + 1
        if self.flushed == 3:
            raise KeyboardInterrupt


def test_ctrl_c_leaves_no_graphic_open_and_no_late_answer(pong: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen, dropped = _Interrupted(), []
    monkeypatch.setattr("rlx.viewer.terminal.asked_terminal", lambda: Terminal("kitty", is_late=True))
    monkeypatch.setattr("rlx.viewer.terminal.drop_late_answer", lambda: dropped.append(True))
    _play(screen, Dataset(pong), 0, 100)
    height = int(re.findall(r"\x1b\[(\d+)F", screen.getvalue())[-1])
    assert screen.getvalue().endswith(f"\n\x1b\\\x1b[0m\x1b[{height}E")
    assert dropped == [True]


@pytest.fixture
def tty() -> Iterator[tuple[int, str]]:
    """The other end of a terminal, and the path of the terminal."""
    far, near = os.openpty()
    yield far, os.ttyname(near)
    os.close(far)
    os.close(near)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("\x1b[6;16;8t\x1b[?62;4c", Terminal("sixel", (8, 16))),
        ("\x1b_Gi=31;OK\x1b\\\x1b[6;18;9t\x1b[?62c", Terminal("kitty", (9, 18))),
        ("", Terminal(is_late=True)),
    ],
)
def test_a_terminal_is_asked(tty: tuple[int, str], answer: str, expected: Terminal) -> None:
    far, path = tty
    asked = threading.Event()

    def answers() -> None:
        query = b""
        while not query.endswith(b"\x1b[c\r\x1b[K"):
            query += os.read(far, 1024)
        asked.set()
        os.write(far, answer.encode())

    thread = threading.Thread(target=answers)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TERM", raising=False)
        patch.delenv("TERM_PROGRAM", raising=False)
        found = asked_terminal(path)
    thread.join()
    assert asked.is_set()
    assert (found, found.is_late) == (expected, expected.is_late)


def test_a_late_answer_is_dropped(tty: tuple[int, str]) -> None:
    far, path = tty
    near = os.open(path, os.O_RDWR | os.O_NOCTTY)
    os.write(far, b"late\n")
    assert select.select([near], [], [], 10)[0]
    drop_late_answer(path)
    assert not select.select([near], [], [], 0)[0]
    os.close(near)


def test_without_a_terminal_nothing_is_asked(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert asked_terminal(str(tmp_path / "none")) == asked_terminal(str(tmp_path / "file")) == Terminal()
    drop_late_answer(str(tmp_path / "none"))


def test_a_terminal_may_change_its_size(pong: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = chain([(80, 24)] * 3, repeat((40, 12)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout.isatty", lambda: True)
        patch.setattr("shutil.get_terminal_size", lambda: next(sizes))
        patch.setattr("rlx.viewer.terminal.asked_terminal", Terminal)
        patch.setattr("time.sleep", lambda _: None)
        _play(sys.stdout, Dataset(pong), 0, 100)
    wide, narrow = capsys.readouterr().out.split("\x1b[H\x1b[2J")
    assert wide.count("\x1b[23F") == 2
    assert "\x1b[11F" in narrow
    assert "\x1b[23F" not in narrow


def test_wide_characters_fit() -> None:
    assert [cut("a抓住", columns) for columns in range(6)] == ["", "a", "a", "a抓", "a抓", "a抓住"]


def test_a_terminal_is_required(cli: Cli, pong: Path) -> None:
    result = cli("view", pong, "--term")
    assert result.code == 2
    assert "--term requires a terminal" in result.err


def sixels(text: str, width: int, height: int) -> np.ndarray:
    """The pixels of a sixel picture, read as a terminal does, in colours of 0 to 100."""
    found, colours = np.zeros((height + 5, width, 3), np.int64), {}
    top, x, colour = 0, 0, 0
    body = text.removeprefix(f'\x1bP0;1q"1;1;{width};{height}').removesuffix("\x1b\\")
    for part in re.findall(r"#\d+;2;\d+;\d+;\d+|#\d+|!\d+.|\$|-|[?-~]", body):
        if part.startswith("#"):
            colour, *mixed = (int(n) for n in part[1:].split(";"))
            if mixed:
                colours[colour] = mixed[1:]
        elif part in "$-":
            top, x = top + 6 * (part == "-"), 0
        else:
            count = int(part[1:-1]) if part.startswith("!") else 1
            for bit in range(6):
                if ord(part[-1]) - 63 >> bit & 1:
                    found[top + bit, x : x + count] = colours[colour]
            x += count
    return found[:height]


def test_graphics_have_the_pixels_of_the_picture() -> None:
    picture = np.random.default_rng(0).choice(np.array([0, 51, 255], np.uint8), (23, 31, 3))
    assert np.array_equal(sixels(sixel(picture), 31, 23), np.round(picture / 2.55))
    commands = re.findall(r"\x1b_G([^;]*);([^\x1b]*)\x1b\\", kitty(np.repeat(picture, 9, 1), 40, 10))
    assert [head[-3:] for head, _ in commands] == ["m=1"] * (len(commands) - 1) + ["m=0"] or len(commands) == 1
    assert "c=40,r=10" in commands[0][0]
    with Image.open(io.BytesIO(base64.b64decode("".join(data for _, data in commands)))) as image:
        assert np.array_equal(np.asarray(image.convert("RGB")), np.repeat(picture, 9, 1))


@pytest.mark.parametrize(
    ("answer", "environment", "expected"),
    [
        ("\x1b_Gi=31;OK\x1b\\\x1b[6;18;9t\x1b[?62;c", {}, Terminal("kitty", (9, 18))),
        ("\x1b_Gi=31;EINVAL\x1b\\\x1b[?64;1;4c", {"TERM": "xterm-kitty"}, Terminal("sixel")),
        ("\x1b[6;0;0t\x1b[?1;2c", {}, Terminal()),
        ("", {"TERM": "xterm-kitty"}, Terminal("kitty")),
        ("", {"TERM": "dumb"}, Terminal()),
    ],
)
def test_a_terminal_says_what_it_draws(answer: str, environment: dict[str, str], expected: Terminal) -> None:
    assert Terminal.of(answer, environment) == expected


@pytest.mark.parametrize("graphics", ["", "sixel", "kitty"])
def test_every_picture_and_what_else_a_step_holds_is_on_the_screen(tmp_path: Path, graphics: str) -> None:
    dataset = everything(tmp_path / "set")
    frames = list(terminal_frames(Episode(dataset, 0), lambda: (60, 30), Terminal(graphics, (8, 16))))
    text = "\n".join(frames[1])
    assert all(len(frame) <= 29 for frame in frames)
    assert ("\x1bP" in text, "\x1b_G" in text, "▀" in text) == (graphics == "sixel", graphics == "kitty", not graphics)
    said = [line for line in frames[1] if line.startswith(("value", "observation/task"))]
    assert said == ["observation/task go to <b>0</b>  [31m", f"value {number(1.0)}"]
    assert "value -" in frames[-1]
