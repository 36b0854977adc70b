"""Arguments that several functions of ``rlx`` share: their choices, their checks, and their record in a lineage.

Messages put names of arguments between backticks; the command line shows them as its options. A lineage records only
the arguments that determine the data: the destination and the number of processes are left out, so that equal data
have equal manifests, and so are passwords and tokens.
"""

import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

from rlx.errors import OptionError
from rlx.files.urls import P, check_path
from rlx.formats.registry import readable
from rlx.progress import Progress
from rlx.store.codec import Codec, codec_of
from rlx.wording import did_you_mean, number_ranges, without_secrets, words_of

StrPath = str | os.PathLike[str]
StoreName = Literal["zarr", "memmap"]
EngineName = Literal["local", "ray"]
LayoutName = Literal["rlu", "dopamine"]
RewardDtype = Literal["float32", "float64"]
Autoreset = Literal["next-step", "same-step", "disabled"]
OnError = Literal["stop", "skip"]
SplitUnit = Literal["trajectory", "shard"]
FunctionUnit = Literal["block", "trajectory", "step"]
BatchFormat = Literal["npz", "pt", "h5", "zarr", "parquet", "jsonl"]
ExportFormat = Literal[
    "minari",
    "d4rl",
    "robomimic",
    "d3rlpy",
    "dopamine",
    "lerobot",
    "rlds",
    "torchrl",
    "parquet",
    "npz",
    "array_record",
    "lance",
    "hf_parquet",
    "mds",
]
ConvertFormat = Literal[StoreName, ExportFormat]
# Some formats take options, as in "torchrl:time_dim=0", so functions annotate the argument as text.
SourceFormat = Literal[
    "rlx",
    "rlu",
    "dopamine",
    "minari",
    "d4rl",
    "robomimic",
    "d3rlpy",
    "lerobot",
    "rlds",
    "torchrl",
    "buffer",
    "parquet",
    "npz",
    "array_record",
    "lance",
    "mds",
]


class WriteArguments(TypedDict, total=False):
    """Arguments of every function that writes the shards of a dataset, for the overloads of these functions."""

    codec: str | Codec | None
    engine: EngineName
    ray_address: str | None
    overwrite: bool
    progress: Progress | None


@dataclass(frozen=True, slots=True)
class Options:
    """How a dataset is written, as ``rlx.convert`` has it."""

    store: str = "zarr"
    codec: Codec | None = None
    shards: Sequence[int] | None = None
    jobs: int | None = None
    overwrite: bool = False
    keep_source: bool = False
    command: str = ""
    engine: str = "local"
    ray_address: str | None = None
    on_error: str | None = None

    def __post_init__(self) -> None:
        codec_of(self.store, self.codec)
        if self.ray_address is not None and self.engine != "ray":
            raise OptionError("`ray_address` requires `engine` ray")

    @property
    def skips(self) -> bool | None:
        """Whether episodes that cannot be read are left out; None if the function does not offer it."""
        return None if self.on_error is None else self.on_error == "skip"

    @property
    def effective_codec(self) -> Codec:
        """The codec asked for, or the store's own."""
        return codec_of(self.store, self.codec)


def check_choice(option: str, value: str | None, choices: Any, more: Callable[[], Iterable[str]] = tuple) -> None:
    """Raise OptionError if a value is not one of the choices.

    Args:
        option: name of the argument.
        value: its value; None, the default, is always accepted.
        choices: a ``Literal`` type.
        more: returns names that other packages add.

    Example:
        >>> check_choice("store", "zar", StoreName)
        Traceback (most recent call last):
        ...
        rlx.errors.OptionError: `store` 'zar' is unknown: expected zarr, memmap
    """
    names = get_args(choices)
    if value is not None and value not in names and value not in (names := tuple(dict.fromkeys((*names, *more())))):
        hint = did_you_mean(str(value), names)
        raise OptionError(f"`{option}` {value!r} is unknown: expected {', '.join(names)}", hint=hint)


def check_source_format(format: str | None) -> None:
    """Raise OptionError if rlx cannot read a format of this name; its reader checks the options."""
    check_choice("from_", format.partition(":")[0] if isinstance(format, str) else format, SourceFormat, readable)


def check_exclusive(first: tuple[str, object], second: tuple[str, object]) -> None:
    """Raise OptionError if both of two arguments are given.

    Args:
        first: name and value.
        second: name and value.
    """
    if first[1] is not None and second[1] is not None:
        raise OptionError(f"`{first[0]}` and `{second[0]}` are mutually exclusive")


def paths(name: str, given: P | Iterable[P]) -> list[P]:
    """Return one path, id or URL, or several, as a list.

    Raises:
        OptionError: one is neither a text nor a path.

    Example:
        >>> paths("dataset", "Pong/5"), paths("dataset", ["Pong/5", Path("train")])
        (['Pong/5'], ['Pong/5', PosixPath('train')])
    """
    if isinstance(given, str | os.PathLike) or not isinstance(given, Iterable):
        return [check_path(name, given)]
    return [check_path(name, one) for one in given]


def chosen_codec(codec: str | Codec | None) -> Codec | None:
    """Return the codec of an argument; None for the default.

    Raises:
        CodecError: the name or a setting is unknown, or a value is out of range.
        OptionError: it is neither a text nor a codec.
    """
    if codec is not None and not isinstance(codec, str | Codec):
        raise OptionError(f"`codec` {codec!r}: expected a text such as zstd:level=19")
    return Codec.parse(codec) if isinstance(codec, str) else codec


def shard_numbers(shards: Iterable[int] | None) -> tuple[int, ...] | None:
    """Return shard numbers in ascending order, without duplicates; None for all shards.

    Example:
        >>> shard_numbers([4, 0, 0])
        (0, 4)
    """
    return None if shards is None else tuple(sorted(set(numbers("shards", shards, int, "[0, 1]"))))


def numbers(option: str, values: Iterable[float], kind: Callable[[float], Any], example: str) -> list[Any]:
    """Return the values as numbers of a kind; raise OptionError if one is not a number."""
    try:
        return [kind(value) for value in values]
    except (TypeError, ValueError):
        raise OptionError(f"`{option}` {values!r}: expected numbers such as {example}") from None


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
    words = words_of(command)
    option = [] if words[1:2] in (["convert"], ["preprocess"]) else ["-o"]
    return shlex.join([*words, *option, str(path)])
