"""``rlx.view``."""

import os
import sys
import threading
import webbrowser
from pathlib import Path
from types import TracebackType
from typing import Self, TypedDict, Unpack, overload

from rlx.api.arguments import StrPath, check_number
from rlx.errors import OptionError
from rlx.progress import Progress, Silent
from rlx.store.dataset import Dataset
from rlx.viewer.files import DEFAULT_FPS, ViewFile, write_view
from rlx.viewer.page import HOST, ViewServer

_FILM_SUFFIXES = (".gif", ".mp4")


class Viewer:
    """A page that shows a dataset, served to this machine by a thread until ``close`` or the end of the process.

    Attributes:
        url: address of the page.
    """

    def __init__(self, server: ViewServer) -> None:
        self.url = server.url
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, name="view", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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
def view(dataset: StrPath | Dataset, *, output: None = None, **arguments: Unpack[_ViewArguments]) -> Viewer: ...


@overload
def view(dataset: StrPath | Dataset, *, output: StrPath, **arguments: Unpack[_ViewArguments]) -> ViewFile: ...


def view(
    dataset: StrPath | Dataset,
    *,
    episode: int | None = None,
    output: StrPath | None = None,
    fps: int | None = None,
    port: int = 0,
    no_browser: bool = False,
    progress: Progress | None = None,
) -> Viewer | ViewFile:
    """Show a dataset in a browser, or write images, a video or a page.

    Args:
        dataset: the dataset's directory, its id below ``$RLX_HOME``, or its URL.
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
        OptionError: the port is taken, or fps is given without a video.
        MissingExtraError: Pillow, or for MP4 PyAV, is not installed.

    Example:
        >>> rlx.view("Pong/5", output="pong.png").episodes
        [4, 0]
        >>> with rlx.view("Pong/5", no_browser=True) as viewer:
        ...     print(viewer.url)  # doctest: +ELLIPSIS
        http://127.0.0.1:...
    """
    check_number("episode", episode, 0)
    check_number("fps", fps, 1, 100)
    check_number("port", port, 0, 65535)
    if fps is not None and (output is None or Path(output).suffix.lower() not in _FILM_SUFFIXES):
        raise OptionError("`fps` requires a video: expected `output` FILE.gif or FILE.mp4")
    opened = dataset if isinstance(dataset, Dataset) else Dataset(dataset)
    if output is not None:
        return write_view(opened, Path(output), episode=episode, fps=fps or DEFAULT_FPS, progress=progress or Silent())
    try:
        server = ViewServer(opened, port, episode)
    except OSError as exc:
        raise OptionError(
            f"cannot listen on port {port} of {HOST}: {exc.strerror}", hint="port 0 is any free port"
        ) from exc
    viewer = Viewer(server)
    if not no_browser and _has_screen():
        webbrowser.open(viewer.url)
    return viewer


def _has_screen() -> bool:
    """Return whether a graphical browser may exist; one inside a terminal would not help."""
    return sys.platform != "linux" or bool(os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"})
