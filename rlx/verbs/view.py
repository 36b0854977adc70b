"""``rlx.view``: a dataset, or two, in a browser, an image, a video or a page."""

import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict, Unpack, overload

from rlx.closing import Closing
from rlx.errors import OptionError
from rlx.files.urls import check_path
from rlx.progress import Progress, receiver
from rlx.verbs.arguments import StrPath
from rlx.verbs.options import ANY_DATASET, Argument, Option, check, dataset_names

if TYPE_CHECKING:
    from rlx.store.dataset import Dataset
    from rlx.viewer.files import ViewFile
    from rlx.viewer.server import ViewServer

_FILM_SUFFIXES = (".gif", ".mp4")


class Viewer(Closing):
    """A page of one dataset or two, served to this machine by a thread until ``close`` or the end of the process.

    Attributes:
        url: address of the page.
    """

    def __init__(self, server: "ViewServer") -> None:
        self.url = server.url
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, name="view", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def wait(self) -> None:
        """Return when the viewer is closed; Ctrl-C interrupts the wait."""
        self._thread.join()

    def close(self) -> None:
        """Stop the server and free the port."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def to_json(self) -> dict[str, str]:
        """Return the keys that scripts rely on."""
        return {"url": self.url}


class _ViewArguments(TypedDict, total=False):
    episode: int | None
    fps: int | None
    port: int
    no_browser: bool
    progress: Progress | None


@overload
def view(
    dataset: "StrPath | Dataset",
    other: "StrPath | Dataset | None" = None,
    *,
    output: None = None,
    **arguments: Unpack[_ViewArguments],
) -> Viewer: ...


@overload
def view(
    dataset: "StrPath | Dataset",
    other: "StrPath | Dataset | None" = None,
    *,
    output: StrPath,
    **arguments: Unpack[_ViewArguments],
) -> "ViewFile": ...


def view(
    dataset: Annotated["StrPath | Dataset", ANY_DATASET],
    other: Annotated[
        "StrPath | Dataset | None",
        Argument("Dataset to compare it with.", metavar="OTHER", completes=dataset_names),
    ] = None,
    *,
    episode: Annotated[int | None, Option("Episode to show.", least=0, default="best, median and worst")] = None,
    output: Annotated[
        StrPath | None,
        Option("Output file: .png, .gif, .mp4 or .html.", metavar="FILE", short="-o", default="open a browser"),
    ] = None,
    fps: Annotated[int | None, Option("Frames per second.", least=1, most=100, default="30; 15 with --term")] = None,
    port: Annotated[int, Option("Port to serve on; 0 is any free port.", least=0, most=65535)] = 0,
    no_browser: Annotated[bool, Option("Print the URL without opening a browser.")] = False,
    progress: Progress | None = None,
) -> "Viewer | ViewFile":
    """Show a dataset in a browser, or compare two; or write images, a video or a page.

    Args:
        dataset: the dataset's directory, its id below ``$RLX_HOME``, or its URL. The page of one that another process
            is still writing shows new episodes as their shards are complete.
        other: a dataset to compare it with.
        episode: episode to show; the best, median and worst by default.
        output: file to write: ``.png`` (a contact sheet), ``.gif``, ``.mp4`` or ``.html`` (a page that works offline).
        fps: frames per second of a video; 30 by default.
        port: port to serve on; 0 is any free port.
        no_browser: serve the page without opening a browser.
        progress: reports ``frames`` of a video.

    Returns:
        The file that was written. Without output a viewer, which serves the page on 127.0.0.1 while the process runs;
        a script calls its ``wait()``.

    Raises:
        DatasetNotFoundError: dataset does not exist.
        CorruptDatasetError: the dataset is damaged.
        SamplingError: the episode does not exist, or the dataset is empty.
        UnknownFormatError: output has another suffix.
        DatasetExistsError: output is a directory.
        OptionError: the port is taken, fps is given without a video, or other with episode or a non-HTML file.
        MissingExtraError: Pillow, or for MP4 PyAV, is not installed.

    Example:
        >>> rlx.view("Pong/5", output="pong.png").episodes
        [4, 0]
        >>> with rlx.view("Pong/5", no_browser=True) as viewer:
        ...     print(viewer.url)  # doctest: +ELLIPSIS
        http://127.0.0.1:...
    """
    check(view, locals())
    if output is not None:
        check_path("`output`", output, "a file")
    if fps is not None and (output is None or Path(output).suffix.lower() not in _FILM_SUFFIXES):
        raise OptionError("`fps` requires a video: expected `output` FILE.gif or FILE.mp4")
    if other is not None and (episode is not None or (output is not None and Path(output).suffix.lower() != ".html")):
        raise OptionError("two datasets are compared in a page: expected no `episode`, and `output` FILE.html")
    import webbrowser

    from rlx.viewer.files import DEFAULT_FPS, write_comparison, write_view
    from rlx.viewer.server import HOST, ViewServer

    opened = _opened(dataset, partial=output is None)
    beside = None if other is None else _opened(other, partial=output is None)
    if output is not None and beside is not None:
        return write_comparison((opened, beside), Path(output))
    if output is not None:
        return write_view(opened, Path(output), episode=episode, fps=fps or DEFAULT_FPS, progress=receiver(progress))
    try:
        server = ViewServer(opened, *([] if beside is None else [beside]), port=port, first=episode)
    except OSError as exc:
        raise OptionError(
            f"cannot listen on port {port} of {HOST}: {exc.strerror}", hint="port 0 is any free port"
        ) from exc
    viewer = Viewer(server)
    if not no_browser and _has_screen():
        webbrowser.open(viewer.url)
    return viewer


def _opened(dataset: "StrPath | Dataset", *, partial: bool) -> "Dataset":
    from rlx.store.dataset import Dataset

    return dataset if isinstance(dataset, Dataset) else Dataset(dataset, partial=partial)


def _has_screen() -> bool:
    """Return whether a graphical browser may exist; one inside a terminal would not help."""
    return sys.platform != "linux" or bool(os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"})
