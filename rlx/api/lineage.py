"""Commands as recorded in the lineage of a dataset: only the arguments that determine the data.

The destination and the number of processes are left out, so that equal data have equal manifests; so are passwords
and tokens.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlx.quantities import number_ranges
from rlx.secrets_in_urls import without_secrets


def command_line(verb: str, arguments: Sequence[str], options: Mapping[str, object]) -> str:
    """Return a command line, quoted for a shell.

    Args:
        verb: the command's name.
        arguments: positional arguments.
        options: by long name; None is omitted, True is a flag, a tuple is shard numbers.

    Example:
        >>> command_line("download", ["Pong/5"], {"source": "https://me:secret@host/base?token=1", "shards": None})
        'rlx download Pong/5 --source https://host/base'
        >>> command_line("convert", ["my data"], {"shards": (0, 1, 2, 9)})
        "rlx convert 'my data' --shards 0-2,9"
        >>> command_line("doctor", ["train"], {"against": ["https://me:secret@host/test"], "fix": True})
        'rlx doctor train --against https://host/test --fix'
        >>> command_line("collect", ["CartPole-v1"], {"workers": 2, "async": True})
        'rlx collect CartPole-v1 --workers 2 --async'
    """
    words = ["rlx", verb, *map(without_secrets, arguments)]
    for name, option in options.items():
        if option is True:
            words.append(f"--{name}")
        elif isinstance(option, list):
            words += [word for value in option for word in (f"--{name}", without_secrets(str(value)))]
        elif option is not None:
            value = number_ranges(option) if isinstance(option, tuple) else str(option)
            words += [f"--{name}", without_secrets(value)]
    return shlex.join(words)


def with_destination(command: str, path: Path) -> str:
    """Return a command of a lineage with the destination appended.

    Example:
        >>> with_destination("rlx convert sample --to memmap", Path("copy"))
        'rlx convert sample --to memmap copy'
        >>> with_destination("rlx download Pong/5", Path("my pong"))
        "rlx download Pong/5 -o 'my pong'"
    """
    words = _words(command)
    option = [] if words[1:2] in (["convert"], ["preprocess"]) else ["-o"]
    return shlex.join([*words, *option, str(path)])


def pasteable(command: str) -> str:
    """Return an untrusted command of a lineage, quoted so that it is safe to paste into a shell.

    Example:
        >>> pasteable("rlx download Pong/5; rm -rf ~")
        "rlx download 'Pong/5;' rm -rf '~'"
    """
    return shlex.join(_words(command))


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # an unclosed quote
        return command.split()
