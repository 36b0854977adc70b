"""Entry point of ``rlx``: handles Ctrl-C and other signals before slow imports.

This module has no top-level imports: Ctrl-C during them would print a traceback.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sys
    from types import FrameType

_INTERRUPTED = 130
_SIGINT = 2
# Sent by batch systems, a closing terminal and Ctrl-\.
_ENDING = ("SIGTERM", "SIGHUP", "SIGQUIT")
_AGAIN_S = 0.01
_INSIST_S = 0.2  # far longer than the main thread takes to notice a signal
# Where an exception does harm: HDF5 calls methods of Disk, and then crashes or leaves the file half closed; a Condition
# would stay locked for ever, and with it the threads that share it.
_NOT_IN = ("Disk.", "Condition._", "Condition.notify")


def main() -> None:
    """Run the command, and exit with its code, or with 128 + N if signal N interrupted it."""
    received: list[int] = []
    code: object = 0
    try:
        _raise_as_ctrl_c(received)
        from rlx_cli.app import main as run

        if received:  # while a module was imported that let no exception through
            raise KeyboardInterrupt  # noqa: TRY301
        run()
    except SystemExit as exc:
        code = exc.code
    except BaseException as exc:  # while modules were imported, or the result was printed
        # Python 3.11 turns an exception in __set_name__ into a RuntimeError.
        if not isinstance(exc, KeyboardInterrupt) and not isinstance(exc.__cause__, KeyboardInterrupt):
            raise
        import os

        os.write(2, b"error: interrupted\n")
        code = _INTERRUPTED
    _let_it_end()
    if code == _INTERRUPTED and received:
        code = 128 + received[0]
    raise SystemExit(code)


def _raise_as_ctrl_c(received: list[int]) -> None:
    """Make terminating signals raise KeyboardInterrupt, and record their numbers."""
    import _signal  # type: ignore[import-not-found]  # the part in C: the other may be interrupted
    import _thread
    import sys

    main_thread = _thread.get_ident()

    def interrupt(number: int, frame: "FrameType | None") -> None:
        received.append(number)
        if frame is not None and frame.f_code.co_qualname.startswith(_NOT_IN):
            repeat(number)
        else:
            raise KeyboardInterrupt

    def repeat(number: int) -> None:
        import time

        def again() -> None:
            time.sleep(_AGAIN_S)
            # To the main thread: one that waits for a lock does not notice a signal that another thread has received.
            _signal.pthread_kill(main_thread, number)

        _thread.start_new_thread(again, ())  # threading's own threads begin with a Condition

    def repeat_ignored(unraisable: "sys.UnraisableHookArgs") -> None:
        """Send again what was raised where Python does not let it through, such as in a finalizer."""
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            repeat(received[-1] if received else _SIGINT)
        else:
            sys.__unraisablehook__(unraisable)

    def insist(wakeups: int) -> None:
        """Send a signal again that the main thread does not notice: it came as the thread began to wait for a lock."""
        import os
        import time

        noticed = 0
        while number := os.read(wakeups, 1):
            time.sleep(_INSIST_S)
            if len(received) == noticed and number[0] in handled:
                _signal.pthread_kill(main_thread, number[0])
            noticed = len(received)

    sys.unraisablehook = repeat_ignored
    import os
    import signal  # last: Ctrl-C may interrupt its own imports

    handled = set[int]()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    _thread.start_new_thread(insist, (reader,))
    for name in ("SIGINT", *_ENDING):
        number = getattr(signal, name, None)  # Windows lacks two of them
        # nohup ignores SIGHUP.
        if number is not None and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            handled.add(number)
            signal.signal(number, interrupt)


def _let_it_end() -> None:
    """Ignore one more signal, so that the process can clean up; a second one ends it at once."""
    import signal

    def ignore_once(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)

    for name in ("SIGINT", *_ENDING):
        number = getattr(signal, name, None)
        if number is not None and callable(signal.getsignal(number)):
            signal.signal(number, ignore_once)
