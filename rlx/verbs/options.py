"""Declarations of arguments: what checks, lineage and command line know of an argument of a verb.

They stand in the verb's signature, beside name, type and default: ``seed: Annotated[int, Option("Random seed.",
least=0)] = 0``. ``rlx_cli.signature`` makes the options of the command of them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from inspect import Parameter, signature
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from rlx.formats.registry import readable
from rlx.numbers import check_real, check_whole
from rlx.store.codec import Codec
from rlx.verbs.arguments import EngineName, OnError, SourceFormat, StoreName, StrPath, check_choice, command_line, paths


@dataclass(frozen=True, slots=True, repr=False)
class Argument:
    """A positional argument of a command.

    Args:
        help: its line of ``--help``.
        metavar: name of its value there; ``DIR``, ``FILE`` and ``DST`` are paths of this machine.
        default: its default in words, where the value says too little; False to show none.
        completes: returns the texts that a shell completes.
        more: returns choices beside those of its ``Literal``, which other packages add.
        least: the smallest number.
        most: the largest number.
        is_list: whether the command takes several values; the function may take one.
        recorded: whether it determines the data, so that a lineage has it where it is not the default; or ``always``.
    """

    help: str
    metavar: str | None = None
    default: str | bool | None = None
    completes: Callable[[], Iterable[str]] | None = None
    more: Callable[[], Iterable[str]] | None = None
    least: float | None = None
    most: float | None = None
    is_list: bool = False
    recorded: bool | Literal["always"] = True

    def __repr__(self) -> str:
        return repr(self.help)  # in the signature that ``help()`` shows


@dataclass(frozen=True, slots=True, repr=False)
class Option(Argument):
    """An option of a command.

    Args:
        short: its short name, such as ``-o``.
        off: the flag that turns it off, such as ``async``.
    """

    short: str | None = None
    off: str | None = None


def dataset_names() -> Iterable[str]:
    """Return ids of the datasets below ``$RLX_HOME``; a shell adds paths."""
    from rlx.home import dataset_ids  # help needs none

    return dataset_ids()


def transform_names() -> Iterable[str]:
    """Return the names of transforms."""
    from rlx.transform.registry import TRANSFORMS

    return TRANSFORMS


STORE = Option("Store of the new dataset.")
CODEC = Option(
    "Codec: zstd-dict, zstd, lz4 or none; with options, zstd:level=N,chunk=N.",
    metavar="CODEC",
    default="zstd-dict for zarr, none for memmap",
)
SOURCE = Option("Base URL or directory of the runs.", metavar="URL|DIR", default="RL Unplugged's bucket")
# Transfers wait for the network and not for a core: enough to hide how long a server takes to answer.
JOBS = 8
DatasetArgument = Annotated[
    StrPath,
    Argument(
        "Path of a dataset, or its id below $RLX_HOME, such as Pong/5.", metavar="DATASET", completes=dataset_names
    ),
]
ANY_DATASET = Argument(
    "Path of a dataset, its id below $RLX_HOME, or its URL.", metavar="DATASET", completes=dataset_names
)
AnyDatasetArgument = Annotated[StrPath, ANY_DATASET]
StoreOption = Annotated[StoreName, STORE]
CodecOption = Annotated[str | Codec | None, CODEC]
EngineOption = Annotated[EngineName, Option("Where workers run: this machine, or a Ray cluster.", recorded=False)]
RayAddressOption = Annotated[
    str | None,
    Option(
        "Address of the Ray cluster: HOST:PORT, ray://HOST:PORT or auto.",
        metavar="URL",
        default="$RAY_ADDRESS, or a new local cluster",
        recorded=False,
    ),
]
FromOption = Annotated[
    str | None,
    Option(
        f"Format of the files: {', '.join(get_args(SourceFormat))}; with options, torchrl:time_dim=0.",
        metavar="FORMAT",
        default="auto-detected",
        completes=lambda: dict.fromkeys((*get_args(SourceFormat), *readable())),
    ),
]
OnErrorOption = Annotated[
    OnError, Option("At an episode that cannot be read: stop, or skip it, name it and take the others.")
]
ShardsOption = Annotated[
    Iterable[int] | None, Option("Shards to process, such as 0-4,49.", metavar="LIST", default=False)
]
JobsOption = Annotated[
    int | None, Option("Worker processes.", least=1, most=2**12, default="one per core", recorded=False)
]
TransfersOption = Annotated[int | None, Option("Concurrent transfers.", least=1, most=2**12, default=str(JOBS))]
OverwriteOption = Annotated[
    bool, Option("Start afresh; an existing dataset stays until the new one is complete.", recorded=False)
]


@cache
def declared(verb: Callable[..., object]) -> Mapping[str, tuple[Parameter, Argument]]:
    """Return the declared parameters of a function by name; the others are only of the library."""
    return {
        name: (parameter, declaration)
        for name, parameter in signature(verb).parameters.items()
        for declaration in getattr(parameter.annotation, "__metadata__", ())
    }


def kinds(annotation: Any) -> Iterator[Any]:
    """Yield the alternatives of an annotation except None: types, ``Literal`` types and forward references.

    Example:
        >>> list(kinds(Annotated[int | None, Option("Number of steps.")]))
        [<class 'int'>]
    """
    if get_origin(annotation) is Annotated:
        yield from kinds(annotation.__origin__)
    elif get_origin(annotation) in (Union, UnionType):
        for one in get_args(annotation):
            yield from kinds(one)
    elif annotation is not NoneType:
        yield annotation


def check(verb: Callable[..., object], given: Mapping[str, Any]) -> None:
    """Check arguments against their declarations.

    Args:
        verb: the function.
        given: values by name: the ``locals()`` of the function, as it begins.

    Raises:
        OptionError: a value is not one of the choices, or a number is out of range.
    """
    for name, (parameter, declaration) in declared(verb).items():
        value, alternatives = given[name], list(kinds(parameter.annotation))
        if value is None and parameter.default is None:
            continue
        for choices in alternatives:
            if get_origin(choices) is Literal:
                check_choice(name, value, choices, declaration.more or tuple)
        if declaration.least is not None:
            checked = check_real if float in alternatives else check_whole
            checked(f"`{name}`", value, declaration.least, declaration.most)


def recorded(verb: Callable[..., object], given: Mapping[str, Any], **instead: Any) -> str:
    """Return the command of a lineage: the arguments that determine the data, less those that are the default.

    Args:
        verb: the function.
        given: values by name, as of ``check``.
        instead: values to record instead of those.
    """
    words: list[str] = []
    options: dict[str, object] = {}
    for name, (parameter, declaration) in declared(verb).items():
        value = instead.get(name, given[name])
        if not declaration.recorded:
            continue
        if not isinstance(declaration, Option):
            words += map(str, paths(name, value)) if declaration.is_list else [str(value)]
        elif value is False and declaration.off is not None:
            options[declaration.off] = True
        elif declaration.recorded == "always" or value != parameter.default:
            options[long_name(name)] = value
    return command_line(verb.__name__, words, options)


def long_name(name: str) -> str:
    """Return the option of an argument.

    Example:
        >>> long_name("from_"), long_name("slice_len")
        ('from', 'slice-len')
    """
    return name.rstrip("_").replace("_", "-")
