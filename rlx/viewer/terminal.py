"""An episode for a terminal: images as graphics or half blocks, numbers as sparklines."""

from __future__ import annotations

import base64
import os
import re
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING
from unicodedata import east_asian_width

import numpy as np

from rlx.viewer.episode import SHOWN_APART, Episode, observation_lines
from rlx.viewer.pictures import Frames, image_of, picture_fields, pillow, png
from rlx.wording import excerpt, number, sparkline

if TYPE_CHECKING:
    from numpy.typing import NDArray

_UPPER_HALF = "▀"
_RESET = "\x1b[0m"
_PIECE_ROWS = 64
_FEWEST_COLUMNS = 8
_MAX_FIELDS = 6  # of numbers and texts below the picture
_CHUNK = 4096  # characters of a command of kitty's
_COLOURS = 64  # of a sixel picture
_ANSWER_S = 0.5  # a remote terminal may take this long
# Three questions: kitty's graphics, the size of a character, the kind of terminal (4: sixel), which all answer. The
# line is erased because some terminals print a question that they do not understand.
_QUERY = "\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\\x1b[16t\x1b[c\r\x1b[K"
_TTY = "/dev/tty"
_REPEATED = re.compile(rb"(.)\1{3,}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Terminal:
    """The graphics of a terminal.

    Args:
        graphics: ``kitty`` or ``sixel``; empty for half blocks.
        cell: width and height of a character, in pixels.
        is_late: whether it was asked and has not answered yet.
    """

    graphics: str = ""
    cell: tuple[int, int] = (10, 20)
    is_late: bool = field(default=False, compare=False, repr=False)

    @classmethod
    def of(cls, answer: str, environment: Mapping[str, str]) -> Terminal:
        """Return the terminal of an answer to the query, or of the environment variables.

        Example:
            >>> Terminal.of("\x1b[6;16;8t\x1b[?62;4c", {})
            Terminal(graphics='sixel', cell=(8, 16))
        """
        size, kind = re.search(r"\x1b\[6;(\d+);(\d+)t", answer), re.search(r"\x1b\[\?([\d;]*)c", answer)
        cell = (int(size[2]) or 10, int(size[1]) or 20) if size else (10, 20)
        named = environment.get("TERM", "") + environment.get("TERM_PROGRAM", "").lower()
        if ";OK" in answer or (not kind and re.search("kitty|ghostty|wezterm", named)):
            return cls("kitty", cell, kind is None)
        return cls("sixel" if kind and "4" in kind[1].split(";") else "", cell, kind is None)


def asked_terminal(path: str = _TTY) -> Terminal:
    """Query the graphics of this process's terminal."""
    answer = b""
    try:
        terminal = os.open(path, os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return Terminal()
    try:
        before = termios.tcgetattr(terminal)
        try:
            tty.setcbreak(terminal)
            os.write(terminal, _QUERY.encode())
            deadline = time.monotonic() + _ANSWER_S
            while not re.search(rb"\x1b\[\?[\d;]*c", answer) and (left := deadline - time.monotonic()) > 0:
                if select.select([terminal], [], [], left)[0]:
                    answer += os.read(terminal, 1024)
        finally:
            termios.tcsetattr(terminal, termios.TCSAFLUSH, before)
    except (OSError, termios.error):
        return Terminal()
    finally:
        os.close(terminal)
    return Terminal.of(answer.decode("ascii", "replace"), os.environ)


def drop_late_answer(path: str = _TTY) -> None:
    """Drop a late answer of the terminal, which a shell would take for a command."""
    with suppress(OSError, termios.error), Path(path).open("rb", buffering=0) as terminal:
        termios.tcflush(terminal, termios.TCIFLUSH)


def kitty(picture: Frames, columns: int, lines: int) -> str:
    """Return kitty's commands that draw an image in some cells, replacing the previous one; the cursor stays.

    https://sw.kovidgoyal.net/kitty/graphics-protocol
    """
    data = base64.b64encode(png(picture, 2)).decode()
    pieces = [data[start : start + _CHUNK] for start in range(0, len(data), _CHUNK)]
    head = f"a=T,f=100,i=1,p=1,q=2,C=1,c={columns},r={lines},"
    return "".join(
        f"\x1b_G{'' if n else head}m={int(n < len(pieces) - 1)};{piece}\x1b\\" for n, piece in enumerate(pieces)
    )


def sixel(picture: Frames) -> str:
    """Return an image in sixels: for each six rows of pixels and each colour, the pixels that have it."""
    image = image_of(picture).quantize(_COLOURS, pillow().Image.Quantize.MEDIANCUT, dither=pillow().Image.Dither.NONE)
    palette, pixels = np.array(image.getpalette()).reshape(-1, 3), np.asarray(image)
    height, width = pixels.shape
    used = np.unique(pixels).tolist()
    parts = [f'\x1bP0;1q"1;1;{width};{height}']
    parts += [f"#{n};2;{';'.join(str(round(part / 2.55)) for part in palette[n].tolist())}" for n in used]
    bits = np.array([1, 2, 4, 8, 16, 32], np.uint8)
    for top in range(0, height, 6):
        band = pixels[top : top + 6]
        for n in np.unique(band).tolist():
            sixels = (63 + ((band == n) * bits[: len(band), None]).sum(axis=0)).astype(np.uint8).tobytes()
            row = _REPEATED.sub(lambda run: b"!%d%s" % (len(run[0]), run[1]), sixels)
            parts.append(f"#{n}{row.decode()}$")
        parts.append("-")
    return "".join(parts) + "\x1b\\"


def half_blocks(picture: Frames, columns: int, lines: int) -> list[str]:
    """Return an image as lines of half blocks in 24-bit colour; a character is two pixels, one above the other.

    Args:
        picture: [height, width, 3] pixels, uint8.

    Example:
        >>> half_blocks(np.uint8([[[255, 0, 0]], [[0, 0, 255]]]), 1, 1)
        ['\\x1b[38;2;255;0;0;48;2;0;0;255m▀\\x1b[0m']
    """
    pixels = _fitted(picture, columns, 2 * lines)
    if len(pixels) % 2:
        pixels = np.concatenate([pixels, np.zeros_like(pixels[:1])])
    drawn = []
    for upper, lower in zip(pixels[::2], pixels[1::2], strict=True):
        cells, before = [], None
        for colours in zip(upper.tolist(), lower.tolist(), strict=True):
            if colours != before:
                (r, g, b), (x, y, z) = before = colours
                cells.append(f"\x1b[38;2;{r};{g};{b};48;2;{x};{y};{z}m")
            cells.append(_UPPER_HALF)
        drawn.append("".join(cells) + _RESET)
    return drawn


def _fitted(picture: Frames, width: int, height: int) -> Frames:
    scale = min(width / picture.shape[1], height / picture.shape[0])
    size = max(1, min(width, round(picture.shape[1] * scale))), max(1, min(height, round(picture.shape[0] * scale)))
    return picture if size == picture.shape[1::-1] else np.asarray(image_of(picture).resize(size))


def _drawn(picture: Frames, columns: int, lines: int, terminal: Terminal) -> tuple[list[str], str]:
    """Return the lines of an image, and the commands that draw it from the end of the line below."""
    if not terminal.graphics:
        return half_blocks(picture, columns, lines), ""
    width, height = terminal.cell
    pixels = _fitted(picture, columns * width, lines * height)
    across, down = -(-pixels.shape[1] // width), -(-pixels.shape[0] // height)
    graphic = sixel(pixels) if terminal.graphics == "sixel" else kitty(picture, across, down)
    return [""] * down, f"\x1b7\r\x1b[{down}A{graphic}\x1b8"


def terminal_frames(
    episode: Episode,
    size: Callable[[], tuple[int, int]],
    terminal: Terminal = Terminal(),
) -> Iterator[list[str]]:
    """Yield a screen for each recorded observation of an episode, in order, read lazily.

    Several images are side by side. Graphics are drawn over empty lines.

    Args:
        size: returns the terminal's columns and lines, of which a screen leaves one for the cursor; called for each
            screen.
    """
    fields, rows = picture_fields(episode.dataset.schema), np.arange(episode.rows)
    for start in range(0, len(rows), _PIECE_ROWS):
        piece = rows[start : start + _PIECE_ROWS]
        captions = _captions(episode, piece) if fields else [[] for _ in piece]
        pictures = [episode.frames(field, piece) for field in fields]
        for place, row in enumerate(piece.tolist()):
            columns, lines = size()
            columns = max(columns, _FEWEST_COLUMNS)
            below = [episode.title, "  ".join(episode.caption(row)), *captions[place][: max((lines - 4) // 4, 0)]]
            room, graphic = max(lines - 1 - len(below), 1), ""
            if fields:
                body, graphic = _drawn(_abreast([frames[place] for frames in pictures]), columns, room, terminal)
            else:
                body = _curves(episode, row, columns, room)
            below = [cut(line, columns) for line in below]
            yield [*body, below[0] + graphic, *below[1:]]


def _abreast(pictures: list[Frames]) -> Frames:
    height = max(len(picture) for picture in pictures)
    return np.concatenate([_fitted(picture, sys.maxsize, height) for picture in pictures], axis=1)


def _captions(episode: Episode, rows: NDArray[np.int64]) -> list[list[str]]:
    """Return lines of other fields of some rows: single numbers, such as a policy's value, and texts."""
    schema, taken = episode.dataset.schema, rows < episode.length
    single = [name for name in schema if not schema[name].shape and name not in SHOWN_APART]
    values = {name: episode.values(name, rows) for name in single[:_MAX_FIELDS]}
    said: list[list[str]] = [[] for _ in rows]
    for place, at in enumerate(taken.tolist()):
        for name, found in values.items():
            if schema[name].is_text:
                said[place].append(f"{name} {excerpt(found[place], 400)}")
            else:
                is_known = at or schema[name].role == "observation"
                value = found[place].item()
                said[place].append(
                    f"{name} {'-' if not is_known else f'{value:,}' if type(value) is int else number(value)}"
                )
    return said


def _curves(episode: Episode, row: int, columns: int, lines: int) -> list[str]:
    """Return a line for each of the first numbers of the observation: the last values up to a row."""
    window: NDArray[np.int64] = np.arange(max(0, row - columns + 1), row + 1)
    named = observation_lines(episode, window, most=lines)
    width = max((len(name) for name, _ in named), default=0)
    bars = max(columns - width - 12, 1)
    drawn = (
        f"{name:<{width}} {number(float(values[-1])):>10} {sparkline(np.nan_to_num(values[-bars:]).tolist(), bars)}"
        for name, values in named
    )
    return [cut(line, columns) for line in drawn]


def cut(line: str, columns: int) -> str:
    """Return as much of a line as fits; East Asian characters are two columns wide.

    Example:
        >>> cut("抓住红色方块", 5), cut("grasp", 5)
        ('抓住', 'grasp')
    """
    width = accumulate(1 + (east_asian_width(character) in "WF") for character in line)
    return line[: sum(end <= columns for end in width)]
