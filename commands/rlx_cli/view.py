"""``rlx view``: show a dataset in a browser, or write it as images, a video or a page."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlx.quantities import plural, size
from rlx_cli.exit_codes import UsageError
from rlx_cli.options import AnyDatasetArgument, DebugOption, JsonOption, QuietOption
from rlx_cli.output import Output
from rlx_cli.progress import showing

if TYPE_CHECKING:
    from rlx.store.dataset import Dataset

_FILM_SUFFIXES = (".gif", ".mp4")


def view(
    ctx: typer.Context,
    dataset: AnyDatasetArgument,
    episode: Annotated[
        int | None,
        typer.Option("--episode", min=0, metavar="N", help="Episode to show.", show_default="best, median and worst"),
    ] = None,
    out: Annotated[
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
    from rlx.store.dataset import Dataset

    output: Output = ctx.obj
    if fps is not None and (out is None or out.suffix.lower() not in _FILM_SUFFIXES):
        raise UsageError("--fps requires a video: expected -o FILE.gif or FILE.mp4", hint="rlx view --help")
    opened = Dataset(dataset)
    if out is None:
        _serve(output, opened, port, episode, browse=not no_browser)
    else:
        _write(output, opened, out, episode, fps)


def _write(output: Output, dataset: "Dataset", out: Path, episode: int | None, fps: int | None) -> None:
    from rlx.viewer.files import DEFAULT_FPS, write_view

    with showing(output, f"view {out.name}") as progress:
        written = write_view(dataset, out, episode=episode, fps=fps or DEFAULT_FPS, progress=progress)
    shown = ", ".join(f"{one:,}" for one in written.episodes)
    what = f"{'episode' if len(written.episodes) == 1 else 'episodes'} {shown}" if shown else "no episode"
    frames = "" if written.frames is None else f", {plural(written.frames, 'frame')}"
    frames += f", one for every {written.every} steps" if written.every > 1 else ""
    output.show(written.to_json(), f"{dataset.manifest.id}: {what}{frames}, {size(written.bytes)}", str(out))


def _serve(output: Output, dataset: "Dataset", port: int, episode: int | None, *, browse: bool) -> None:
    import webbrowser

    from rlx.viewer.server import HOST, ViewServer

    try:
        server = ViewServer(dataset, port, episode)
    except OSError as exc:
        raise UsageError(
            f"cannot listen on port {port} of {HOST}: {exc.strerror}", hint="--port 0 uses any free port"
        ) from exc
    with server:
        output.show({"url": server.url}, f"{dataset.manifest.id}: {server.url}")
        sys.stdout.flush()
        if browse and _has_screen():
            webbrowser.open(server.url)
        output.say("hint", "Ctrl-C stops the server")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            output.stderr.print()


def _has_screen() -> bool:
    """Return whether a graphical browser may exist; one inside this terminal would not help."""
    return sys.stdout.isatty() and (sys.platform != "linux" or bool(os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"}))
