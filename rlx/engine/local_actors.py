"""Actors on this machine: in processes, each at the other end of a pipe, or within this process."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import ExitStack, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import SimpleQueue
from types import FrameType
from typing import Any, Generic, NoReturn, Self, TypeVar

import cloudpickle

from rlx.engine.actor import ActorDiedError, ProcessActor, ProcessActors, answered, made, settle, unpickled
from rlx.engine.shared_memory import Pulse, PulseWatch, open_pulse, pulse_file
from rlx.errors import WorkerLostError
from rlx.fork import on_fork
from rlx.traces import place_in

logger = logging.getLogger(__name__)
A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")
_END = b""  # No pickle is empty.
# Not multiprocessing's own way to start a process, which imports the user's script there once more, and at the end of
# this process waits for those left open.
_BOOT = "import sys; sys.path[:] = sys.argv[2:]; from rlx.engine.local_actors import serve; serve(sys.argv[1])"
_LOOK_S = 0.1
_LOOKS = 10
_MOST_DUMPED = 1 << 16
_CLOSE_S = 30.0  # For a function's ``close`` where the work is done, if steps have no limit.
_NOTHING = cloudpickle.dumps(None)
_GRACE_S = 5.0  # For a function's ``close``, before its process is killed.
_ORPHAN_GRACE_S = 0.5  # The same, of a process whose parent has ended.


class LocalActor(ProcessActor[T, R]):
    """One process; see ``Actor``.

    Args:
        made_of: pickled pair: a function that makes the actor's function, and its argument.
    """

    def __init__(self, made_of: bytes, step_timeout: float | None = None) -> None:
        super().__init__()
        self._pipe, theirs = Pipe()
        self._step_timeout = step_timeout
        self._watch: PulseWatch | None = None
        with theirs, ExitStack() as stack, ExitStack() as unless_started:
            unless_started.enter_context(self._pipe)
            self._dump = unless_started.enter_context(tempfile.TemporaryFile())
            fds = [theirs.fileno(), self._dump.fileno()]
            if step_timeout is not None:
                fds.append(stack.enter_context(pulse_file()).fileno())
                self._watch = PulseWatch(Pulse(fds[-1]), step_timeout)
            command = [sys.executable, "-c", _BOOT, ",".join(map(str, fds)), *sys.path]
            # A group of its own, so that Ctrl-C in a terminal does not reach it.
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=fds, process_group=0)
            unless_started.pop_all()  # they are closed with the process
        self._pending: deque[Future[R]] = deque()
        self._closing: Future[R] | None = None
        self._is_left = False
        self._outbox: SimpleQueue[bytes | None] = SimpleQueue()
        self._outbox.put(made_of)
        # Daemons: a process that ends without closing its actors waits for none.
        self._sender = threading.Thread(target=self._send, name="actor's sender", daemon=True)
        self._receiver = threading.Thread(target=self._receive, name="actor's receiver", daemon=True)
        self._sender.start()
        self._receiver.start()
        on_fork(self, LocalActor._leave)

    @property
    def has_ended(self) -> bool:
        """Whether its process has ended and everybody who waits for it knows."""
        return not self._receiver.is_alive()

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def close(self, *, at_once: bool = False) -> None:
        """End the process and wait until it has ended; warn of a ``close`` that fails or does not end."""
        self.end(at_once=at_once)
        if at_once and not self._is_left:
            self._receiver.join(_GRACE_S)
            self._process.kill()
        elif self._closing is not None and not self._is_left and self._receiver.is_alive():
            self._await_close(self._closing)
        self._receiver.join()

    def _await_close(self, closing: Future[R]) -> None:
        wait([future for future in list(self._pending) if future is not closing])
        try:
            # A watched process has a limit of its own.
            closing.result(_CLOSE_S if self._watch is None else None)
        except TimeoutError:
            logger.warning("closing an actor did not end within %g s%s: its process is killed", _CLOSE_S, self._place())
            self._process.kill()
        except Exception as exc:  # whatever a stranger's function raises: all work is done, and nothing is lost
            logger.warning("closing an actor failed: %s", exc)

    def end(self, *, at_once: bool) -> None:
        """Tell the process to end, without waiting."""
        if not self._is_left:
            super().end(at_once=at_once)

    def _queue(self, message: bytes, future: Future[R]) -> None:
        self._pending.append(future)
        self._outbox.put(message)

    def _queue_end(self) -> None:
        if self._death is None:
            self._closing = Future()
            self._queue(_END, self._closing)

    def _terminate(self) -> None:
        self._process.terminate()

    def _leave(self) -> None:
        """Close, in a fork, its copy of the pipe: by the end of the pipe the actor learns that its parent has ended."""
        self._lock = threading.Lock()
        self._is_left = True
        self._death = ActorDiedError("the actor belongs to the process that this one was forked from")
        self._pipe.close()

    def _send(self) -> None:
        _leave_signals()
        with suppress(OSError):  # the receiver sees the end of the process too
            while (message := self._outbox.get()) is not None:
                self._pipe.send_bytes(message)

    def _receive(self) -> None:
        _leave_signals()
        has_hung, place = False, ""
        with suppress(EOFError, OSError):
            while not (self._is_closed_there() or (has_hung := not self._comes())):
                self._settle(self._pipe.recv_bytes())
        if has_hung:
            place = self._place()
            self._process.kill()  # a stopped process obeys no other signal
        elif self._is_closed_there():
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)
        code = self._reap()
        if has_hung:
            death = ActorDiedError(f"an actor did not finish a step within {self._step_timeout:g} s{place}")
        else:
            ended = f"was ended by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
            death = ActorDiedError(f"an actor's process {ended}{place_in(self._dumped())}")
        with self._lock:
            self._death = death
            pending, self._pending = self._pending, deque()
        for future in pending:
            future.set_exception(death)
        self._outbox.put(None)
        self._sender.join()
        self._pipe.close()
        self._dump.close()

    def _is_closed_there(self) -> bool:
        return self._closing is not None and self._closing.done()

    def _place(self) -> str:
        """Ask a process that hangs where it is; return the place as the end of a message, or nothing."""
        with suppress(OSError, AttributeError):
            self._process.send_signal(signal.SIGUSR1)
            for _ in range(_LOOKS):
                if found := place_in(self._dumped()):
                    return found
                time.sleep(_LOOK_S)
        return ""

    def _dumped(self) -> str:
        with suppress(OSError, ValueError):
            self._dump.seek(0)
            return self._dump.read(_MOST_DUMPED).decode(errors="replace")
        return ""

    def _comes(self) -> bool:
        """Wait for an answer, or the end of the process; return whether it has not hung."""
        if self._watch is None:
            return True
        self._watch.restart()
        while not self._pipe.poll(_LOOK_S):
            if not self._pending:
                self._watch.restart()
            elif self._watch.has_hung(is_stopped=self._is_stopped()):
                return False
        return True

    def _is_stopped(self) -> bool:
        if not hasattr(os, "waitid"):
            return False
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return False

    def _settle(self, answer: bytes) -> None:
        # A separate function: locals of the loop would be kept until the next answer.
        with self._lock:
            future = self._pending.popleft()
        settle(future, answer)

    def _reap(self) -> int:
        """Return the exit code of the process, once it and what it had started are gone."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            return self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


class LocalActors(ProcessActors[LocalActor[Any, Any]]):
    """Actors in processes of this machine.

    They start afresh, not as a fork; Ctrl-C does not reach them, nor what they start; and they end when this process
    does, however it does.

    Args:
        step_timeout: seconds that a step in an actor may take (see ``rlx.engine.shared_memory.begin_step``); then its
            process is killed. No limit by default.

    Example:
        >>> with LocalActors() as actors:
        ...     actor = actors.start(lambda first: lambda task: first + task, 40)
        ...     actor.call(2).result()
        42
    """

    shares_memory = True

    def __init__(self, step_timeout: float | None = None) -> None:
        super().__init__()
        self._step_timeout = step_timeout

    def start(self, make: Callable[[A], Callable[[T], R]], argument: A) -> LocalActor[T, R]:
        """Return an actor for the function that ``make(argument)`` returns in its process, without waiting for it."""
        actor: LocalActor[T, R] = LocalActor(cloudpickle.dumps((make, argument)), self._step_timeout)
        self._running().append(actor)
        return actor


def serve(fds: str) -> None:
    """Become an actor: answer requests from a pipe until it is closed.

    Args:
        fds: file descriptors joined by a comma: of the pipe, of the file for faulthandler and, where the actor is
            watched, of the file of its pulse.
    """
    fd, dump, *pulse = map(int, fds.split(","))
    if pulse:
        open_pulse(*pulse)
    faulthandler.enable(dump)  # the last word of a process that a signal ends
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, dump, all_threads=False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _exit)
    pipe: Connection[bytes, bytes] = Connection(fd)
    tasks: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, tasks), name="actor's listener", daemon=True).start()
    function = made(lambda: unpickled(tasks.get()))
    owner, is_asked = os.getpid(), False
    try:
        try:
            while (task := tasks.get()) != _END:
                answer = answered(function, task)
                if os.getpid() != owner:  # a fork that the function made and did not end: it answers nothing
                    os._exit(1)
                try:
                    pipe.send_bytes(answer)
                except OSError:  # the function has closed it, or the other process has ended
                    sys.exit(1)
            is_asked = True
        finally:
            # An ending process must not raise SystemExit where Python can only print it.
            signal.signal(signal.SIGTERM, _stay)
    finally:
        close = getattr(function, "close", None)
        answer = answered(lambda _: close() if callable(close) else None, _NOTHING)
        if is_asked:
            with suppress(OSError):  # nobody waits
                pipe.send_bytes(answer)


def _listen(pipe: Connection[bytes, bytes], tasks: SimpleQueue[bytes]) -> None:
    """Receive tasks, so that no sender waits, and notice the end of the other process, even while this one works."""
    with suppress(EOFError, OSError):
        while True:
            tasks.put(pipe.recv_bytes())
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
    time.sleep(_ORPHAN_GRACE_S)
    os.killpg(os.getpid(), signal.SIGKILL)  # with its children, which nothing else would end


def _exit(signum: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
    signal.signal(signal.SIGTERM, _stay)  # do not disturb a close in progress
    raise SystemExit(1)


def _stay(signum: int, frame: FrameType | None) -> None:
    """Do nothing. Of a signal that was on its way as SIG_IGN took over, Python prints an error."""


def _leave_signals() -> None:
    """Leave signals to the main thread: where it waits for a lock, it does not notice one that this thread receives."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


class InlineActors:
    """Actors within this process, for one worker: ``call`` returns when the work is done.

    Example:
        >>> with InlineActors() as actors:
        ...     actors.start(lambda first: lambda task: first + task, 40).call(2).result()
        42
    """

    shares_memory = False  # nothing is sent

    def __init__(self) -> None:
        self._actors: list[InlineActor[Any, Any]] = []

    def start(self, make: Callable[[A], Callable[[T], R]], argument: A) -> InlineActor[T, R]:
        """Return an actor whose function is ``make(argument)``; what that raises is raised here."""
        actor = InlineActor(make(argument))
        self._actors.append(actor)
        return actor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for actor in self._actors:
            actor.close()


class InlineActor(Generic[T, R]):
    """One function; see ``Actor``."""

    def __init__(self, function: Callable[[T], R]) -> None:
        self._function = function
        self._is_closed = False

    def call(self, task: T) -> Future[R]:
        """Return the future, done, of the function's answer."""
        future: Future[R] = Future()
        try:
            future.set_result(self._function(task))
        except SystemExit as exc:  # elsewhere it ends the worker's process; this process is the user's and stays alive
            future.set_exception(WorkerLostError(f"a worker in this process called sys.exit({exc.code!r})"))
        except Exception as exc:  # the caller gets it from the future, as from another process
            future.set_exception(exc)
        return future

    def close(self, *, at_once: bool = False) -> None:  # noqa: ARG002  (nothing runs)
        """Call the function's ``close``, if it has one."""
        if not self._is_closed and callable(close := getattr(self._function, "close", None)):
            self._is_closed = True
            try:
                close()
            except Exception as exc:  # whatever a stranger's function raises: all work is done, and nothing is lost
                logger.warning("closing an actor failed: %s", exc)
