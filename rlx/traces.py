"""Places in a user's code that failed, found in the frames of a traceback."""

import re
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path

_LIBRARIES = tuple(
    {*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")), str(Path(__file__).parent)}
)
# Of faulthandler, which writes the innermost frame first.
_HEAD = re.compile(r"^(?:Current thread|Stack)\b.*\(most recent call first\):$", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)


def in_words(error: BaseException) -> str:
    """Return type and message of an error, and the place in the user's code that raised it.

    Example:
        >>> in_words(KeyError("speed"))
        "KeyError: 'speed'"
        >>> in_words(MemoryError())
        'MemoryError'
    """
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = [(frame.filename, frame.lineno or 0, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
    return said + _at(reversed(frames))


def place_in(dump: str) -> str:
    """Return the place in the user's code, among the frames that faulthandler wrote, as the end of a message.

    Example:
        >>> place_in('Current thread 0x0 (most recent call first):\\n  File "/home/me/env.py", line 7 in step\\n')
        ', at /home/me/env.py:7 in step'
    """
    head = _HEAD.search(dump)
    thread = "" if head is None else dump[head.end() :].partition("\n\n")[0]
    return _at((file, int(line), name) for file, line, name in _FRAME.findall(thread))


def _at(frames: Iterable[tuple[str, int, str]]) -> str:
    """Return the innermost place outside of libraries; nothing if all are in them."""
    for file, line, name in frames:
        if not file.startswith((*_LIBRARIES, "<")):
            return f", at {file}:{line} in {name}"
    return ""
