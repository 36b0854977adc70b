"""The user's directories: datasets named by an id in ``$RLX_HOME``, else ``$XDG_DATA_HOME/rlx``, else
``~/.local/share/rlx``; settings in ``$XDG_CONFIG_HOME/rlx``, else ``~/.config/rlx``."""

import logging
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rlx import manifest
from rlx.errors import DatasetError, DatasetNotFoundError, FileAccessError
from rlx.files.disk import file_error, is_there
from rlx.files.urls import check_path, is_url, local_path
from rlx.wording import command, did_you_mean

logger = logging.getLogger(__name__)
_HOSTED = re.compile(r"(minari|lerobot|hf):")
_MAX_DEPTH = 4  # of a dataset below $RLX_HOME
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")


def home() -> Path:
    """Return the directory below which a dataset's id is its path."""
    if chosen := os.environ.get("RLX_HOME"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "rlx"


def cache_home() -> Path:
    """Return the directory of files that can be fetched again: ``$XDG_CACHE_HOME/rlx``, else ``~/.cache/rlx``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "rlx"


def config_file(name: str) -> Path:
    """Return path of a file of the user's settings: in ``$XDG_CONFIG_HOME/rlx``, else in ``~/.config/rlx``."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "rlx" / name


def below_home(id: str) -> Path:
    """Return the directory of the dataset with this id.

    Raises:
        DatasetError: the id, which may be anybody's, leads out of ``$RLX_HOME``.
    """
    if not _ID.fullmatch(id):
        raise DatasetError(f"id {id!r} is not a path below $RLX_HOME", hint="choose a directory with -o")
    return home() / id


def locate(dataset: str | os.PathLike[str]) -> Path:
    """Return the directory, or file, that a path or an id means; it need not hold a dataset.

    A path takes precedence: an id is looked up only if the path has no dataset.

    Raises:
        DatasetNotFoundError: it is a URL; or it may be an id, and neither the id nor the path exists.
        OptionError: it is neither a text nor a path; UrlError: a URL of an unknown kind.
        FileAccessError: the path is too long, or cannot be read.

    Example:
        >>> locate("/data/pong").as_posix()
        '/data/pong'
    """
    if is_url(check_path("dataset", dataset)):
        local_path(dataset)
        raise DatasetNotFoundError(
            f"{dataset} is not on this machine: expected a directory or an id", hint=command("rlx", "pull", dataset)
        )
    path = Path(dataset).expanduser()
    if _is_there(path / manifest.FILE_NAME) or (path / "shards").is_dir():
        return path
    if isinstance(dataset, str) and _ID.fullmatch(dataset):
        below = home() / dataset
        if _is_there(below):
            return below
        if not _is_there(path):
            raise DatasetNotFoundError(
                f"no dataset at {dataset}, nor at {below}",
                hint=did_you_mean(dataset, [*dataset_ids(), *_beside(path)]) or "rlx list --local",
            )
    elif isinstance(dataset, str) and _HOSTED.match(dataset) and not _is_there(path):
        near = did_you_mean(dataset.replace(":", "/", 1), dataset_ids())
        raise DatasetNotFoundError(f"no dataset at {dataset}", hint=near or command("rlx", "download", dataset))
    return path


def _is_there(path: Path) -> bool:
    try:
        return is_there(path)
    except OSError as exc:
        raise file_error(exc, path) from exc


def dataset_ids() -> list[str]:
    """Return ids of the datasets below ``$RLX_HOME``, sorted; their manifests are not read.

    Raises:
        FileAccessError: ``$RLX_HOME`` is a file, or cannot be read.
    """
    try:
        if not stat.S_ISDIR(home().stat().st_mode):
            raise FileAccessError(f"{home()} is a file; expected a directory", hint="set RLX_HOME to a directory")
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise file_error(exc) from exc
    return datasets_below(home())


def datasets_below(directory: Path) -> list[str]:
    """Return the datasets at most four levels below a directory, or it itself (``.``), as paths from it, sorted."""
    return sorted(_datasets(str(directory), "", 0))


def _beside(path: Path) -> Iterator[str]:
    with suppress(OSError):
        for found in path.parent.iterdir():
            if (found / manifest.FILE_NAME).is_file():
                yield str(found)


def _datasets(directory: str, below: str, depth: int) -> Iterator[str]:
    # Paths are texts here: with pathlib, a list of 20,000 datasets takes a second longer.
    try:
        if is_there(f"{directory}/{manifest.FILE_NAME}"):
            yield below or "."
            return
        entries = [] if depth == _MAX_DEPTH else [*filter(_is_directory, os.scandir(directory))]
    except OSError as exc:
        logger.warning("%s", file_error(exc, directory))
        return
    for entry in entries:
        yield from _datasets(entry.path, f"{below}/{entry.name}" if below else entry.name, depth + 1)


def _is_directory(entry: "os.DirEntry[str]") -> bool:
    # A link that leads nowhere, or in a circle, is an error to entry.is_dir().
    return entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and os.path.isdir(entry.path))
