"""Words for people: sizes, durations, commands, suggestions, and URLs without secrets."""

from __future__ import annotations

import difflib
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_MAX_FOUND = 20
_BARS = "▁▂▃▄▅▆▇█"
# An absolute path in quotes and another one, or the URL of a file, and the name that each ends in.
_QUOTED_PATH = re.compile(r"""(['"])(?:file://|~|[A-Za-z]:)?[/\\][^'"]*[/\\]([^'"/\\]+)\1""")
_PATH = re.compile(r"""(?<![\w./\\~])(?!//)(?:file://|~|[A-Za-z]:)?(?:[/\\][^/\\\s'",;]+)*[/\\]([^/\\\s'",;]+)""")


def size(num_bytes: float) -> str:
    """Return bytes in decimal units, three digits.

    Example:
        >>> size(999), size(12_345_678), size(3e12)
        ('999 B', '12.3 MB', '3.00 TB')
    """
    amount, unit = float(num_bytes), 0
    while amount >= 999.5 and unit < len(_UNITS) - 1:
        amount /= 1000
        unit += 1
    digits = 0 if unit == 0 or amount >= 99.95 else 1 if amount >= 9.995 else 2
    return f"{amount:.{digits}f} {_UNITS[unit]}"


def sizes(done: float, total: float) -> str:
    """Return some bytes of all, in the unit of all.

    Example:
        >>> sizes(1_200_000, 50_000_000_000), sizes(424_000, 566_000)
        ('0.0/50.0 GB', '424/566 kB')
    """
    amount, unit = size(total).split()
    decimals = len(amount.partition(".")[2])
    return f"{done / 1000 ** _UNITS.index(unit):.{decimals}f}/{amount} {unit}"


def duration(seconds: float) -> str:
    """Return a time in the two units that matter.

    Example:
        >>> duration(0.42), duration(75), duration(7380)
        ('0.4 s', '1 min 15 s', '2 h 3 min')
    """
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def missing(name: object, found: Iterable[str]) -> str:
    """Return that a name is missing, and the first names that were found instead, if any.

    Example:
        >>> missing("a.hdf5: rewards", ["actions", "rews"])
        'a.hdf5: rewards is missing, found actions, rews'
    """
    shown = first_of(found, _MAX_FOUND)
    return f"{name} is missing, found {shown}" if shown else f"{name} is missing"


def first_of(names: Iterable[str], most: int) -> str:
    """Return the first names of some.

    Example:
        >>> first_of(["a", "b", "c"], 2)
        'a, b, ...'
    """
    found = list(names)
    return ", ".join([*found[:most], *(["..."] if len(found) > most else [])])


def plural(count: int, noun: str) -> str:
    """Return a number of things.

    Example:
        >>> plural(1, "shard"), plural(12_000, "trajectory"), plural(2, "key"), plural(2, "batch")
        ('1 shard', '12,000 trajectories', '2 keys', '2 batches')
    """
    if count == 1:
        return f"1 {noun}"
    ends_in_ies = noun.endswith("y") and noun[-2:-1] not in "aeiou"
    if ends_in_ies:
        return f"{count:,} {noun[:-1]}ies"
    return f"{count:,} {noun}{'es' if noun.endswith('ch') else 's'}"


def number(value: float | None) -> str:
    """Return a measured number, four digits.

    Example:
        >>> number(-20.51234), number(9999.7), number(None)
        ('-20.51', '10,000', '-')
    """
    if value is None:
        return "-"
    if not math.isfinite(value) or (0 < abs(value) < 1e-4):
        return f"{value:.4g}"
    return f"{value:,.0f}" if abs(value) >= 1_000 or value == round(value) else f"{value:.4g}"


def shape(dimensions: Sequence[int]) -> str:
    """Return a shape.

    Example:
        >>> shape((84, 84)), shape(())
        ('84 x 84', '-')
    """
    return " x ".join(str(n) for n in dimensions) or "-"


def excerpt(text: str, characters: int) -> str:
    """Return a text on one line, cut to at most ``characters``; control characters become spaces.

    Example:
        >>> excerpt("pick up\\nthe cube", 20), excerpt("pick up the cube", 10)
        ('pick up the cube', 'pick up...')
    """
    line = "".join(character if character.isprintable() else " " for character in text[: characters + 1])
    return line if len(line) <= characters else line[: characters - 3] + "..."


def sparkline(values: Sequence[float], columns: int = 50) -> str:
    """Return numbers as a row of bars, eight heights from the least to the greatest.

    Args:
        values: finite numbers, in order; more than fit are averaged in equal shares.

    Example:
        >>> sparkline([-21, -20, -14, 3, 18, 20])
        '▁▁▂▅██'
    """
    bars = min(len(values), columns)
    edges = [index * len(values) // bars for index in range(bars + 1)] if bars else []
    shares = [values[start:stop] for start, stop in pairwise(edges)]
    means = [math.fsum(share) / len(share) for share in shares]
    least, most = min(means, default=0), max(means, default=0)
    span = most - least or 1
    return "".join(_BARS[min(int((mean - least) / span * len(_BARS)), len(_BARS) - 1)] for mean in means)


def number_ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as ``--shards`` takes them.

    Example:
        >>> number_ranges([0, 1, 2, 7])
        '0-2,7'
    """
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


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


def note_in_words(note: object) -> str:
    """Return a note of a manifest as text.

    Example:
        >>> note_in_words({"id": "CartPole-v1", "max_episode_steps": 500, "wrapped": False})
        'id: CartPole-v1, max episode steps: 500, wrapped: false'
    """
    if isinstance(note, Mapping):
        return ", ".join(f"{str(key).replace('_', ' ')}: {note_in_words(value)}" for key, value in note.items())
    if isinstance(note, list):
        return ", ".join(map(note_in_words, note))
    return str(note).lower() if isinstance(note, bool) or note is None else str(note)


def command(*words: object) -> str:
    """Return a command as a hint shows it, ready to be pasted.

    Example:
        >>> command("rlx", "repair", "my data; rm -rf ~")
        "rlx repair 'my data; rm -rf ~'"
    """
    return shlex.join(map(str, words))


def pasteable(command: str) -> str:
    """Return an untrusted command of a lineage, quoted so that it is safe to paste into a shell.

    Example:
        >>> pasteable("rlx download Pong/5; rm -rf ~")
        "rlx download 'Pong/5;' rm -rf '~'"
    """
    return shlex.join(words_of(command))


def words_of(command: str) -> list[str]:
    """Return the words of a command as a shell splits it; at white space if a quote is not closed."""
    try:
        return shlex.split(command)
    except ValueError:  # an unclosed quote
        return command.split()


# Who is named may hold a slash that should have been quoted: then what follows the first colon is no port.
_WHO = r"(?:[^/\s@:]*:(?!\d*(?:[/?#\s'\"]|$))[^\s'\"]*@|[^/\s'\"]*@)?"
_URL = re.compile(rf"(?<=\w)://{_WHO}([^\s?#'\"<>]*)(?:[?#][^\s'\"<>]*)?")
# Of a URL without its host, as libraries quote it.
_SIGNED = re.compile(
    r"([?&](?:x-(?:amz|goog|ms)-[\w-]+|[\w.-]*(?:token|signature|sig|secret|password|credential|key))=)[^&\s'\"]+", re.I
)
HIDDEN = "***"


def without_secrets(text: str) -> str:
    """Return a text in whose URLs nobody is named and nothing is signed.

    Example:
        >>> without_secrets("https://me:secret@host/set?token=secret is no directory")
        'https://host/set is no directory'
        >>> without_secrets("https://me:a/b@host/set"), without_secrets("s3://bucket/a@b")
        ('https://host/set', 's3://bucket/a@b')
        >>> without_secrets("no answer to /set?page=1&X-Amz-Signature=secret")
        'no answer to /set?page=1&X-Amz-Signature=***'
    """
    if "://" in text:
        text = _URL.sub(r"://\1", text)
    return _SIGNED.sub(rf"\1{HIDDEN}", text) if "=" in text else text


class QuotedError(Exception):
    """An error of another library, without the secrets in what it says."""


def harmless(exc: BaseException) -> BaseException:
    """Return an exception that may be shown as the cause of another: itself, unless it quotes secrets."""
    shown = without_secrets(str(exc))
    return exc if shown == str(exc) else QuotedError(f"{type(exc).__name__}: {shown}")


def without_paths(text: str) -> str:
    """Return a text for other machines: of an absolute path only the name that it ends in.

    Example:
        >>> without_paths("rlx collect --policy /home/me/agent.py:act 's3://a/b' '/my data/x'")
        "rlx collect --policy agent.py:act 's3://a/b' 'x'"
    """
    return _PATH.sub(r"\1", _QUOTED_PATH.sub(r"\1\2\1", text))
