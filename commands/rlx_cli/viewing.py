"""``rlx view``: show a dataset in a browser, or write it as images, a video or a page."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlx.wording import plural, size
from rlx_cli.options import AnyDatasetArgument, DebugOption, JsonOption, QuietOption
from rlx_cli.output import Output
from rlx_cli.progress import showing

if TYPE_CHECKING:
    from rlx.viewer.files import ViewFile


def view(
    ctx: typer.Context,
    dataset: AnyDatasetArgument,
    episode: Annotated[
        int | None,
        typer.Option("--episode", min=0, metavar="N", help="Episode to show.", show_default="best, median and worst"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Output file: .png, .gif, .mp4 or .html.",
            show_default="open a browser",
        ),
    ] = None,
    fps: Annotated[
        int | None, typer.Option("--fps", min=1, max=100, metavar="N", help="Frames per second.", show_default="30")
    ] = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="N", help="Port to serve on; 0 is any free port.")
    ] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the URL without opening a browser.")] = False,
    _json: JsonOption = False,
    _quiet: QuietOption = False,
    _debug: DebugOption = False,
) -> None:
    """Show a dataset in a browser, or write images or a video.

    \b
    Examples:
      rlx view Pong/5
      rlx view Pong/5 -o pong.png
      rlx view Pong/5 --episode 7 -o pong.mp4 --fps 15
      rlx view Pong/5 -o report.html

    Without -o, serves a page on 127.0.0.1 until Ctrl-C. A PNG is a contact sheet of
    the best, the median and the worst episode. An HTML file works offline and
    contains some episodes with all their frames.
    """
    import rlx
    from rlx.store.dataset import Dataset

    shown: Output = ctx.obj
    opened = Dataset(dataset)
    if output is not None:
        with showing(shown, f"view {output.name}") as progress:
            written = rlx.view(opened, episode=episode, output=output, fps=fps, port=port, progress=progress)
        _show_file(shown, opened.manifest.id, written)
        return
    # A browser in this terminal would not help, and a program that reads the URL has none.
    no_browser = no_browser or not sys.stdout.isatty()
    with rlx.view(opened, episode=episode, fps=fps, port=port, no_browser=no_browser) as viewer:
        shown.say("hint", "Ctrl-C stops the server")
        try:
            shown.show(viewer.to_json(), f"{opened.manifest.id}: {viewer.url}")
            sys.stdout.flush()
            viewer.wait()
        except KeyboardInterrupt:
            shown.stderr.print()


def _show_file(output: Output, name: str, written: "ViewFile") -> None:
    shown = ", ".join(f"{one:,}" for one in written.episodes)
    what = f"{'episode' if len(written.episodes) == 1 else 'episodes'} {shown}" if shown else "no episode"
    frames = "" if written.frames is None else f", {plural(written.frames, 'frame')}"
    frames += f", one for every {written.every} steps" if written.every > 1 else ""
    output.show(written.to_json(), f"{name}: {what}{frames}, {size(written.bytes)}", str(written.file))
