"""``rlx view``: datasets in a browser or a terminal, and pictures of them."""

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

import rlx
from rlx.wording import plural, size, without_secrets
from rlx_cli.output import Output
from rlx_cli.progress import showing
from rlx_cli.report import UsageError
from rlx_cli.signature import command_of

if TYPE_CHECKING:
    from rlx.store.dataset import Dataset
    from rlx.viewer.files import ViewFile

_TERMINAL_FPS = 15  # a remote terminal keeps up with this


@command_of(rlx.view)
def view(
    ctx: typer.Context,
    dataset: str,
    other: str | None,
    episode: int | None,
    output: Path | None,
    fps: int | None,
    port: int,
    no_browser: bool,
    term: Annotated[bool, typer.Option("--term", help="Play the episode in this terminal.")] = False,
) -> None:
    """Show one or two datasets in a browser, or write images.

    \b
    Examples:
      rlx view Pong/5
      rlx view Pong/5 -o pong.png
      rlx view Pong/5 --episode 7 -o pong.mp4 --fps 15
      rlx view Pong/5 -o report.html
      rlx view Pong/5 --term --fps 15
      rlx view Pong/5 Pong/4

    Without -o, serves a page on 127.0.0.1 until Ctrl-C. A PNG is a contact sheet of
    the best, the median and the worst episode. An HTML file works offline and
    contains some episodes with all their frames. The page of a dataset that
    rlx collect is writing shows new episodes as they come.
    """
    from rlx.store.dataset import Dataset

    shown: Output = ctx.obj
    opened = Dataset(dataset, partial=output is None)
    beside = None if other is None else Dataset(other, partial=output is None)
    name = opened.manifest.id if beside is None else f"{without_secrets(dataset)} and {without_secrets(other or '')}"
    if term:
        if output is not None or other is not None:
            raise UsageError("--term excludes --output and a second dataset")
        _play(shown.results, opened, episode, fps or _TERMINAL_FPS)
        return
    if output is not None:
        with showing(shown, f"view {output.name}") as progress:
            written = rlx.view(opened, beside, episode=episode, output=output, fps=fps, port=port, progress=progress)
        _show_file(shown, name, written)
        return
    # A browser in this terminal would not help, and a program that reads the URL has none.
    no_browser = no_browser or not shown.results.isatty()
    with rlx.view(opened, beside, episode=episode, fps=fps, port=port, no_browser=no_browser) as viewer:
        shown.say("hint", "Ctrl-C stops the server")
        try:
            shown.show(viewer.to_json(), f"{name}: {viewer.url}")
            shown.results.flush()
            viewer.wait()
        except KeyboardInterrupt:
            shown.stderr.print()


def _play(screen: TextIO, dataset: "Dataset", episode: int | None, fps: int) -> None:
    """Draw the frames of an episode over each other; Ctrl-C stops it."""
    from rlx.viewer.episode import Episode, notable
    from rlx.viewer.terminal import asked_terminal, drop_late_answer, terminal_frames

    if not screen.isatty():
        raise UsageError("--term requires a terminal", hint="-o FILE.gif writes a film")
    chosen = Episode(dataset, next(iter(notable(dataset).values()), 0) if episode is None else episode)
    size, terminal = shutil.get_terminal_size(), asked_terminal()
    due, unfinished, back = time.monotonic(), 0, ""
    try:
        for lines in terminal_frames(chosen, lambda: size, terminal):  # noqa: B023  (the size of this turn)
            unfinished = len(lines)
            screen.write(back + "".join(f"{line}\x1b[K\n" if line else "\n" for line in lines))
            screen.flush()
            unfinished = 0
            now = time.monotonic()
            due = max(due + 1 / fps, now)
            time.sleep(due - now)
            before, size = size, shutil.get_terminal_size()
            # A terminal that changes its width breaks lines anew.
            back = f"\x1b[{len(lines)}F" if size == before else "\x1b[H\x1b[2J"
    except KeyboardInterrupt:
        pass
    finally:
        # Ctrl-C may have cut an escape sequence: end graphics and colours, and move the cursor down.
        screen.write("\x1b\\\x1b[0m" + (f"\x1b[{unfinished}E" if unfinished else ""))
        screen.flush()
        if terminal.is_late:
            drop_late_answer()


def _show_file(output: Output, name: str, written: "ViewFile") -> None:
    shown = ", ".join(f"{one:,}" for one in written.episodes)
    what = (
        f"{'episode' if len(written.episodes) == 1 else 'episodes'} {shown}"
        if shown
        else "compared"
        if " and " in name
        else "no episode"
    )
    frames = "" if written.frames is None else f", {plural(written.frames, 'frame')}"
    frames += f", one for every {written.every} steps" if written.every > 1 else ""
    output.show(written.to_json(), f"{name}: {what}{frames}; {size(written.bytes)}", str(written.file))
