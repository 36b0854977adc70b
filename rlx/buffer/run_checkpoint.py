"""``rlx.Checkpoint``: the state of a training run on disk, so that a killed run continues bit-identically.

<path>/checkpoint.json   step, names of the files below; replaced in one step
<path>/<hex>.pt          state of all parts but the steps of buffers: numbers, texts and tensors
<path>/<hex>/            steps of a buffer; see ``rlx.buffer.checkpoint_parts``
"""

import io
import json
import logging
import os
import random
import re
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import torch

from rlx.buffer.checkpoint import DAMAGES, HEX_NAME, warn_unchecked
from rlx.buffer.checkpoint_parts import PlainState, SavedRows, decoded
from rlx.buffer.replay_buffer import ReplayBuffer
from rlx.closing import Closing
from rlx.errors import CorruptDatasetError, DatasetExistsError, SchemaMismatchError
from rlx.files import lock
from rlx.files.atomic import write_file
from rlx.files.beneath import remove
from rlx.files.checksum import pieces_of
from rlx.files.disk import disk_errors, reading
from rlx.files.durable import sync
from rlx.files.sealed import CHECKED, read_sealed, sealed
from rlx.files.urls import check_path
from rlx.numbers import check_flag, check_whole
from rlx.seeding import generator_state, set_generator_state

logger = logging.getLogger(__name__)
FORMAT = "rlx.checkpoint"
_MANIFEST = "checkpoint.json"
_STATE = re.compile(r"[0-9a-f]{32}\.pt")


class Checkpoint(Closing):
    """Directory from which a training run continues as if it had not been killed.

    A checkpoint has the state of all parts, and of the global random generators of Python, numpy and torch. The steps
    of a replay buffer are written once: a later ``save`` writes only those that were written since the last one. Files
    are written in a thread during training; a process that is killed meanwhile leaves the last complete
    checkpoint. Only numbers, texts and tensors are unpickled; environments keep their own functions and
    classes, whose code runs on the restored values.

    The parts of the run that restores must be made in the same way as those of the run that saved.

    Args:
        path: directory of the checkpoint; it is created if it does not exist.
        parts: replay buffers, collectors, loaders, modules, optimizers, schedulers and random generators, by name;
            or anything with ``state_dict`` and ``load_state_dict``.
        trust: whether attributes of environments that are neither numbers, texts, arrays nor generators are pickled,
            and unpickled: restoring runs code of whoever wrote the checkpoint.

    Attributes:
        values: the values that the restored ``save`` was given.
        new_episodes: the reason, by name, of collectors whose environments cannot save their state: they begin new
            episodes when restored, so the run does not continue bit-identically.

    Raises:
        DatasetExistsError: path holds something else.
        DatasetLockedError: another process writes this checkpoint.
        OptionError: path is neither a text nor a path.
        TypeError: a part has no state.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(4, 2)
        >>> buffer = rlx.ReplayBuffer(storage=rlx.buffer.LazyTensorStorage(1000), batch_size=8)
        >>> with rlx.Checkpoint("run", model=model, buffer=buffer) as checkpoint:
        ...     first = checkpoint.restore()  # 0: nothing was saved yet
        ...     _ = buffer.extend(rlx.open("cartpole")[:100])
        ...     checkpoint.save(100, best=9.5)
        >>> buffer.empty()
        >>> with rlx.Checkpoint("run", model=model, buffer=buffer) as checkpoint:
        ...     checkpoint.restore(), checkpoint.values, len(buffer)
        (100, {'best': 9.5}, 100)
    """

    def __init__(self, path: str | os.PathLike[str], /, *, trust: Any = False, **parts: Any) -> None:
        # Not ``bool``: ``**parts`` of a typed dict would not fit it.
        is_trusted = check_flag("trust", trust)
        self.path = Path(check_path("path", path, "a directory"))
        self.values: dict[str, Any] = {}
        self.new_episodes: dict[str, str] = {}
        if self.path.exists() and not (self.path / _MANIFEST).is_file() and not _is_unused(self.path):
            raise DatasetExistsError(f"{self.path} exists and is not a checkpoint", hint="choose another path")
        self._parts = {name: _part(name, part, is_trusted) for name, part in parts.items()}
        self._collectors = {name: part for name, part in parts.items() if _is_collector(part)}
        self._is_closed = False
        self._writer: threading.Thread | None = None
        self._error: BaseException | None = None
        self._stack = ExitStack()
        self._stack.enter_context(lock.held(self.path / lock.FILE_NAME, self.path))
        self._buffers = {
            name: SavedRows(part, self.path) for name, part in parts.items() if isinstance(part, ReplayBuffer)
        }

    def save(self, step: int, **values: Any) -> None:
        """Write a checkpoint in place of the last one; the state is copied before this returns.

        Write errors are raised by the next call, or by ``close``.

        Args:
            step: number that ``restore`` returns.
            values: numbers, texts, arrays, tensors, and lists and dicts of them.

        Raises:
            OptionError: step is not a whole number, or below 0.
            SchemaMismatchError: a value, or a state, is of another type.
            DiskFullError: no space is left.
            ValueError: the checkpoint is closed.
        """
        self.wait()
        self._check_open()
        step = check_whole("step", step, 0)
        plain = PlainState()
        state = {"values": plain(values, "values"), "generators": generator_state(), "parts": {}}
        writes: dict[str, Callable[[], list[str]]] = {}
        try:
            for name, (read, _) in self._parts.items():
                if name not in self._buffers:
                    state["parts"][name] = plain(read(), name)
            for name, saved in self._buffers.items():
                described, writes[name] = saved.begin()
                state["parts"][name] = plain(described, name)
        except BaseException:
            self._forget_written()
            raise
        known, self.new_episodes = self.new_episodes, self._hidden()
        for name, reason in self.new_episodes.items():
            if name not in known:
                logger.warning("%s would begin new episodes when restored, as %s", name, reason)
        self._writer = threading.Thread(
            target=self._run, args=(step, state, writes), name="rlx checkpoint", daemon=False
        )
        self._writer.start()

    def _run(self, step: int, state: dict[str, Any], writes: Mapping[str, Callable[[], list[str]]]) -> None:
        try:
            with disk_errors(self.path):
                self._write(step, state, writes)
        except BaseException as exc:  # for the next call; a thread cannot report it
            self._forget_written()
            self._error = exc

    def _forget_written(self) -> None:
        """Make the next save write all steps, because a failed one did not."""
        for saved in self._buffers.values():
            saved.begin_anew()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError(f"the checkpoint {self.path} is closed")

    def _write(self, step: int, state: dict[str, Any], writes: Mapping[str, Callable[[], list[str]]]) -> None:
        buffers = {name: {"segments": write()} for name, write in writes.items()}
        file = io.BytesIO()
        torch.save(state, file)
        name, data = f"{uuid.uuid4().hex}.pt", file.getbuffer()
        write_file(self.path / name, [bytes(data)])
        manifest = {
            "format": FORMAT,
            "version": CHECKED,
            "step": step,
            "state": {"file": name, "crc32c": google_crc32c.value(bytes(data))},
            "buffers": buffers,
        }
        sync(self.path)  # segments, before they are listed
        write_file(self.path / _MANIFEST, [sealed(json.dumps(manifest, indent=1))])
        self._remove_others({name, *(one for buffer in buffers.values() for one in buffer["segments"])})

    def _remove_others(self, used: set[str]) -> None:
        for entry in self.path.iterdir():
            if entry.name in used:
                continue
            if HEX_NAME.fullmatch(entry.name) or _STATE.fullmatch(entry.name.removesuffix(".partial")):
                remove(entry)

    def restore(self) -> int:
        """Restore all parts from the last ``save``; return its step, or 0 if nothing was saved.

        Raises:
            SchemaMismatchError: it has other parts, or a part of another shape.
            CorruptDatasetError: a file is missing or damaged.
            FormatVersionError: a newer version of rlx wrote it.
            ValueError: the checkpoint is closed.
        """
        self.wait()
        self._check_open()
        if not (self.path / _MANIFEST).is_file():
            return 0
        manifest, is_checked = self._manifest()
        state = self._state(manifest)
        saved, mine = set(state["parts"]), set(self._parts)
        if saved != mine:
            raise SchemaMismatchError(
                f"{self.path} is a checkpoint of {', '.join(sorted(saved))}: expected {', '.join(sorted(mine))}"
            )
        if lacking := set(self._buffers) - set(manifest["buffers"]):
            raise CorruptDatasetError(f"{self.path / _MANIFEST} lists no steps of {', '.join(sorted(lacking))}")
        if is_checked:  # all of it before any part changes
            for name, rows in self._buffers.items():
                rows.check(manifest["buffers"][name]["segments"])
        else:
            warn_unchecked(self.path)
        for name, rows in self._buffers.items():  # before the loaders, which count their steps
            segments = manifest["buffers"][name]["segments"]
            rows.load(decoded(state["parts"][name]), segments, is_checked=is_checked)
        for name, (_, load) in self._parts.items():
            if name not in self._buffers:
                load(decoded(state["parts"][name]))
        self.new_episodes = self._hidden()
        self.values = decoded(state["values"])
        set_generator_state(state["generators"])
        return int(manifest["step"])

    def _hidden(self) -> dict[str, str]:
        return {name: reason for name, collector in self._collectors.items() if (reason := collector.hidden_state)}

    def _manifest(self) -> tuple[dict[str, Any], bool]:
        path = self.path / _MANIFEST
        manifest, is_checked = read_sealed(path, FORMAT)
        try:
            _ = int(manifest["step"]), manifest["state"]["file"], manifest["state"]["crc32c"]
            segments = [segment for buffer in manifest["buffers"].values() for segment in buffer["segments"]]
            if wrong := [segment for segment in segments if not HEX_NAME.fullmatch(segment)]:
                raise ValueError(f"segment {wrong[0]!r}")  # noqa: TRY301 (one message for all)
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise CorruptDatasetError(f"{path} is damaged: {exc!r}") from exc
        return manifest, is_checked

    def _state(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        name = str(manifest["state"]["file"])
        path = self.path / name
        try:
            with reading(path):
                data = b"".join(pieces_of(path)) if _STATE.fullmatch(name) else b""
            if google_crc32c.value(data) != manifest["state"]["crc32c"]:
                raise CorruptDatasetError(f"{path} is damaged: its checksum differs")
            # To this device whatever the run was on: each part copies to its own.
            state: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
            _ = dict(state["parts"]), state["values"], state["generators"]
        except DAMAGES as exc:
            raise CorruptDatasetError(f"{path} is damaged: {exc}") from exc
        return state

    def wait(self) -> None:
        """Wait until the last ``save`` is on disk; raise its error, if any."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Wait until the last ``save`` is on disk, and let other processes write."""
        try:
            self.wait()
        finally:
            self._is_closed = True
            for rows in self._buffers.values():
                rows.close()
            self._stack.close()


_Part = tuple[Callable[[], Any], Callable[[Any], Any]]


def _is_collector(part: Any) -> bool:
    # By an attribute, as the package of collectors needs an extra.
    return hasattr(part, "hidden_state") and not isinstance(part, torch.nn.Module)


def _part(name: str, part: Any, trust: bool) -> _Part:
    if isinstance(part, torch.Generator):
        return part.get_state, part.set_state
    if isinstance(part, np.random.Generator):
        bits = part.bit_generator
        return (lambda: bits.state), (lambda state: setattr(bits, "state", state))
    if isinstance(part, random.Random):
        return part.getstate, part.setstate
    if _is_collector(part):
        return partial(part.state_dict, environments=True, trust=trust), partial(part.load_state_dict, trust=trust)
    if hasattr(part, "state_dict") and hasattr(part, "load_state_dict"):
        return part.state_dict, part.load_state_dict
    raise TypeError(f"{name}: expected something with state_dict and load_state_dict, found {type(part).__name__}")


def _is_unused(path: Path) -> bool:
    """Return whether a directory has only the leftovers of a killed first ``save``."""
    names = [entry.name for entry in path.iterdir()] if path.is_dir() else ["file"]
    ours = (lock.FILE_NAME, f"{_MANIFEST}.partial")
    return all(
        name in ours or HEX_NAME.fullmatch(name) or _STATE.fullmatch(name.removesuffix(".partial")) for name in names
    )
