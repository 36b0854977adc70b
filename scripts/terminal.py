"""An animated picture of a terminal: each command is typed, run on a pseudo-terminal, and drawn.

    python scripts/terminal.py docs/terminal.gif "rlx list --local" "rlx inspect Pong/5"

It needs pyte, a terminal emulator, and DejaVu Sans Mono.
"""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

COLUMNS, ROWS = 92, 24
_SIZE = 15
_MARGIN = 12
_BACKGROUND, _TEXT = "#101216", "#d7dae0"
_COLOURS = {
    "default": _TEXT,
    "black": "#5c6370",
    "red": "#e06c75",
    "green": "#98c379",
    "brown": "#e5c07b",
    "blue": "#61afef",
    "magenta": "#c678dd",
    "cyan": "#56b6c2",
    "white": _TEXT,
}
_PALETTE_COLOURS, _PALETTE_EVERY = 32, 10
_PROMPT = "\x1b[32m$\x1b[0m "
_TYPE_MS, _FRAME_MS, _READ_MS, _END_MS = 40, 80, 1800, 4000

Frame = tuple[Image.Image, int]


class Terminal:
    """A screen that commands are typed on, and the frames that were seen, each with its milliseconds."""

    def __init__(self) -> None:
        pyte: Any = import_module("pyte")
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self._font = ImageFont.truetype("DejaVuSansMono.ttf", _SIZE)
        self._bold = ImageFont.truetype("DejaVuSansMono-Bold.ttf", _SIZE)
        self._width = self._font.getlength("M")
        self._height = round(_SIZE * 1.35)
        self.frames: list[Frame] = []

    def type(self, command: str) -> None:
        """Show a prompt, and a command letter by letter."""
        self._feed(b"\r\n" * bool(self.frames) + _PROMPT.encode(), 400)
        for letter in command:
            self._feed(letter.encode(), _TYPE_MS)
        self._feed(b"\r\n", _FRAME_MS)

    def run(self, command: str) -> None:
        """Show what a command prints; waits are shortened."""
        for output in _output(command):
            self._feed(output, _FRAME_MS)
        self._hold(_READ_MS)

    def save(self, path: Path) -> None:
        """Write the frames as a GIF that repeats."""
        self._feed(b"\r\n" + _PROMPT.encode(), _END_MS)
        # One palette for all, so that a frame has only what differs from the one before.
        palette = _palette([self.frames[place][0] for place in range(0, len(self.frames), _PALETTE_EVERY)])
        pictures = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture, _ in self.frames]
        times = [milliseconds for _, milliseconds in self.frames]
        pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=times, loop=0, optimize=True)

    def _feed(self, output: bytes, milliseconds: int) -> None:
        self._stream.feed(output)
        self.frames.append((self._drawn(), milliseconds))

    def _hold(self, milliseconds: int) -> None:
        picture, shown = self.frames[-1]
        self.frames[-1] = (picture, shown + milliseconds)

    def _drawn(self) -> Image.Image:
        size = (round(COLUMNS * self._width) + 2 * _MARGIN, ROWS * self._height + 2 * _MARGIN)
        picture = Image.new("RGB", size, _BACKGROUND)
        pen = ImageDraw.Draw(picture)
        for row in range(ROWS):
            for column, cell in sorted(self._screen.buffer[row].items()):
                place = (_MARGIN + column * self._width, _MARGIN + row * self._height)
                if cell.data.strip():
                    colour = _COLOURS.get(cell.fg, f"#{cell.fg}" if len(cell.fg) == 6 else _TEXT)
                    pen.text(place, cell.data, fill=colour, font=self._bold if cell.bold else self._font)
        cursor = self._screen.cursor
        if not cursor.hidden:
            left, top = _MARGIN + cursor.x * self._width, _MARGIN + cursor.y * self._height
            pen.rectangle((left, top, left + self._width - 1, top + self._height - 3), fill=_TEXT)
        return picture


def _palette(pictures: list[Image.Image]) -> Image.Image:
    width, height = pictures[0].size
    sheet = Image.new("RGB", (width, height * len(pictures)))
    for place, picture in enumerate(pictures):
        sheet.paste(picture, (0, place * height))
    return sheet.quantize(_PALETTE_COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)


def _output(command: str) -> Iterator[bytes]:
    """Yield what a shell prints for a command on a terminal, all of a frame's time at once."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    with subprocess.Popen(
        ["sh", "-c", command], stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    ) as process:
        os.close(theirs)
        gathered, due = b"", time.monotonic() + _FRAME_MS / 1000
        while True:
            try:
                is_there = bool(select.select([ours], [], [], _FRAME_MS / 1000)[0])
                received = os.read(ours, 2**16) if is_there else b""
            except OSError:  # the terminal is closed
                break
            if is_there and not received:
                break
            gathered += received
            if gathered and time.monotonic() >= due:
                yield gathered
                gathered, due = b"", time.monotonic() + _FRAME_MS / 1000
        if gathered:
            yield gathered
    os.close(ours)
    if process.returncode:
        raise SystemExit(f"{command}: exit code {process.returncode}")


def main(path: str, *commands: str) -> None:
    """Draw the commands."""
    terminal = Terminal()
    for command in commands:
        terminal.type(command)
        terminal.run(command)
    terminal.save(Path(path))


if __name__ == "__main__":
    main(*sys.argv[1:])
