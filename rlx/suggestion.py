"""Suggestions for names that were mistyped: the one rule by which all errors suggest."""

import difflib
import shlex
from collections.abc import Iterable

RESUME = "run the same command again to resume"
_CUTOFF = 0.6
_MOST = 3
_MARGIN = 0.1


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Return the known names most like one that is unknown, best first; capitals do not matter.

    Example:
        >>> nearest("mspacman", ["MsPacman", "Pong", "Qbert"])
        ['MsPacman']
    """
    by_lower: dict[str, str] = {}
    for known in names:
        by_lower.setdefault(known.lower(), known)
    wanted = name.lower()
    found = difflib.get_close_matches(wanted, by_lower, _MOST, _CUTOFF)
    likeness = [difflib.SequenceMatcher(None, match, wanted).ratio() for match in found]
    # Of a name that is much more like it than the others, these would only distract.
    return [by_lower[match] for match, ratio in zip(found, likeness, strict=True) if ratio > likeness[0] - _MARGIN]


def did_you_mean(name: str, names: Iterable[str]) -> str | None:
    """Return the question that suggests known names; None if none is like it.

    Example:
        >>> did_you_mean("resise", ["resize", "crop"])
        'did you mean resize?'
    """
    near = nearest(name, names)
    return f"did you mean {' or '.join(near)}?" if near else None


def command(*words: object) -> str:
    """Return a command as a hint shows it, ready to be pasted.

    Example:
        >>> command("rlx", "repair", "my data; rm -rf ~")
        "rlx repair 'my data; rm -rf ~'"
    """
    return shlex.join(map(str, words))
