"""Places in a user's code: that failed, found in the frames of a traceback; or that gave a wrong value."""

import inspect
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

_HERE = str(Path(__file__).parent)
_LIBRARIES = tuple({*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")), _HERE})
# Of faulthandler, which writes the innermost frame first.
_HEAD = re.compile(r"^(?:Current thread|Stack)\b.*\(most recent call first\):$", re.MULTILINE)
# Attributes in which wrappers keep what they wrap, and others several of a kind.
_WRAPPED = ("env", "_env", "venv", "envs", "env_fns", "func", "_policy", "_function", "_module", "module")
_MAX_WRAPPERS = 50
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)


def in_words(error: BaseException, otherwise: str = "") -> str:
    """Return type and message of an error, and the place in the user's code that raised it.

    Args:
        error: the error.
        otherwise: the place if a library raised it, such as a wrapper: result of ``definition``.

    Example:
        >>> in_words(KeyError("speed"))
        "KeyError: 'speed'"
        >>> in_words(MemoryError())
        'MemoryError'
    """
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = [(frame.filename, frame.lineno or 0, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
    return said + (_at(reversed(frames)) or otherwise)


def place_in(dump: str) -> str:
    """Return the place in the user's code, among the frames that faulthandler wrote, as the end of a message.

    Example:
        >>> place_in('Current thread 0x0 (most recent call first):\\n  File "/home/me/env.py", line 7 in step\\n')
        ', at /home/me/env.py:7 in step'
    """
    head = _HEAD.search(dump)
    thread = "" if head is None else dump[head.end() :].partition("\n\n")[0]
    return _at((file, int(line), name) for file, line, name in _FRAME.findall(thread))


def definition(source: Any, *methods: str) -> str:
    """Return where a user's class defines one of these methods, or a function is defined, as the end of a message.

    Of wrappers, it is the outermost one outside of libraries. If all are in libraries, it is what they wrap.

    Example:
        >>> import gymnasium
        >>> definition(gymnasium.make("CartPole-v1"), "step").rpartition("/")[2].partition(":")[0]
        'cartpole.py'
        >>> definition(None, "step")
        ''
    """
    places = [place for layer in _layers(source) for place in _places(layer, methods)]
    if (found := _at(places)) or not places:
        return found
    file, line, name = next((place for place in reversed(places) if not place[0].startswith(_HERE)), ("", 0, ""))
    return f", at {file}:{line} in {name}" if file else ""


def _layers(source: Any) -> Iterator[Any]:
    for _ in range(_MAX_WRAPPERS):
        if source is None:
            return
        yield source
        held = next((one for name in _WRAPPED if (one := getattr(source, "__dict__", {}).get(name)) is not None), None)
        source = (held[0] if held else None) if isinstance(held, list | tuple) else held


def _places(layer: Any, methods: Iterable[str]) -> Iterator[tuple[str, int, str]]:
    """Yield where the code of a function, or of a class's method, is; and where the class is, if it is a subclass."""
    kind = type(layer)
    functions = [layer] if hasattr(layer, "__code__") else [getattr(kind, name, None) for name in methods]
    for function in functions:
        code = getattr(inspect.unwrap(function), "__code__", None) if function is not None else None
        if code is not None:
            yield code.co_filename, code.co_firstlineno, code.co_name
            break
    if functions != [layer] and kind.__module__ != "builtins":
        with suppress(OSError, TypeError):
            if (file := inspect.getsourcefile(kind) or _HERE) and not file.startswith(_LIBRARIES):
                yield file, inspect.getsourcelines(kind)[1], kind.__name__


def _at(frames: Iterable[tuple[str, int, str]]) -> str:
    """Return the first place outside of libraries; nothing if all are in them."""
    for file, line, name in frames:
        if file and not file.startswith((*_LIBRARIES, "<")):
            return f", at {file}:{line} in {name}"
    return ""
