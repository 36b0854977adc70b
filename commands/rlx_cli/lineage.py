"""The command as the lineage of a dataset tells it: what decides the data, and nothing else.

Where the dataset is put and by how many processes is left out, so that the same data have the same manifest, and
so are passwords and tokens.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit


def command_line(verb: str, arguments: Sequence[str], options: Mapping[str, object]) -> str:
    """A command that a shell would take.

    Args:
        verb: the command's name.
        arguments: what it is applied to.
        options: by their long names; those that are None were not given; True is a flag; tuples are shard numbers.

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
    from rlx.pipeline.ingest import number_ranges

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
    """A command of a lineage that writes to a path.

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
    """A command of a lineage, which may be anybody's, as words that no shell takes for anything else.

    Example:
        >>> pasteable("rlx download Pong/5; rm -rf ~")
        "rlx download 'Pong/5;' rm -rf '~'"
    """
    return shlex.join(_words(command))


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # a quote that nobody closes
        return command.split()


def without_secrets(text: str) -> str:
    """A URL without what may be secret in it; anything else as it is."""
    if "://" not in text:
        return text
    parts = urlsplit(text)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
