"""Runs at a path, in any format."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from rlx.errors import OptionError, SourceError, SourceNotFoundError
from rlx.files.disk import check_readable, listed, opened_file
from rlx.formats.common.fields import expecting
from rlx.formats.common.hdf5.file import holds, is_hdf5, names, opened
from rlx.formats.common.provenance import LocalRun, as_noted
from rlx.formats.common.unread import check_known
from rlx.formats.registry import formats, readable
from rlx.wording import command, did_you_mean, first_of

_SHOWN_NAMES = 20
_SHOWN_BYTES = 8


@dataclass(frozen=True, slots=True)
class FormatChoice:
    """A format and its options.

    Args:
        name: of the format; None to detect it.
        options: values by name, as text.

    Example:
        >>> FormatChoice.parse("torchrl:time_dim=0")
        FormatChoice(name='torchrl', options={'time_dim': '0'})
        >>> FormatChoice.parse("npz"), FormatChoice.parse(None).name
        (FormatChoice(name='npz', options={}), None)
    """

    name: str | None
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """Return the choice of ``FORMAT`` or ``FORMAT:option=value,...``; raises OptionError for other texts."""
        if text is None:
            return cls(None)
        name, _, rest = text.partition(":")
        options = {}
        for part in filter(None, rest.split(",")):
            option, is_given, value = part.partition("=")
            if not (option and is_given and value):
                raise OptionError(f"{text!r}: expected FORMAT:option=value, found {part!r}")
            options[option] = value
        return cls(name, options)

    def read(self, known: Mapping[str, type[int]] | Mapping[str, type[str]]) -> dict[str, int | str]:
        """Return the options in the types of ``known``; raises OptionError for unknown options and other values."""
        found: dict[str, int | str] = {}
        for option, value in self.options.items():
            if option not in known:
                expected = f"expected {', '.join(known)}" if known else "expected no options"
                raise OptionError(
                    f"`from_` {self.name} has no option {option!r}: {expected}", hint=did_you_mean(option, known)
                )
            try:
                found[option] = known[option](value)
            except ValueError as exc:
                raise OptionError(f"`from_` {self.name}: {option}={value}: expected a whole number") from exc
        return found


def find_runs(path: Path, layout: str | None = None) -> list[LocalRun]:
    """Return the runs at a path or a few levels below, of one layout or of any.

    Args:
        layout: name of a readable format, perhaps with options: ``torchrl:time_dim=0``; by default, all are tried.

    Raises:
        SourceError: the format is unknown, or a file is damaged.
        OptionError: the format does not have an option.
    """
    choice = FormatChoice.parse(layout)
    known = readable()
    if choice.name is not None and choice.name not in known:
        raise SourceError(f"unknown format {choice.name!r}: expected one of {', '.join(known)}")
    chosen = None if choice.name is None else known[choice.name]
    options = choice.read({} if chosen is None else chosen.options)
    if chosen is not None:
        return [*map(as_noted, chosen.find_runs(path) if chosen.reads == "runs" else [chosen.open(path, **options)])]
    recognised = [one for one in known.values() if one.recognises(path)]
    found = [run for one in recognised if one.reads == "runs" for run in one.find_runs(path)]
    found += [one.open(path) for one in recognised if one.reads == "dataset"]
    return [*map(as_noted, found)]


def find_run(directory: Path, id: str | None, layout: str | None = None) -> LocalRun:
    """Return the only run in a directory, or the one with this id; raises SourceNotFoundError for none and several."""
    runs = find_runs(directory, layout)
    name = FormatChoice.parse(layout).name
    if not runs and name is None:
        check_known(directory)
    if not runs and (resembled := name or _resembled(directory)) is not None and readable()[resembled].opens:
        runs = [as_noted(readable()[resembled].open(directory))]
    chosen = [run for run in runs if id is None or run.id == id]
    if len(chosen) == 1:
        return chosen[0]
    there = ", ".join(sorted({run.id for run in runs}))
    if not runs:
        raise _nothing_known(directory, name)
    if not chosen:
        raise SourceNotFoundError(f"no run {id} in {directory}; found {there}")
    first = min(chosen, key=lambda run: run.id)
    if [*map(_folder, chosen)].count(_folder(first)) == 1:
        hint = command("rlx", "convert", _folder(first), "DATASET")
    else:
        hint = command("rlx", "download", first.id, "--source", directory)
    raise SourceNotFoundError(f"{len(chosen)} runs in {directory}: {there}; expected one", hint=hint)


def _folder(run: LocalRun) -> Path:
    """Return the directory of a run's files, which may hold other runs too."""
    return (run.root / next(iter(run.files(run.shards()[0])))).parent


def _nothing_known(path: Path, layout: str | None) -> SourceNotFoundError:
    """Return the error for a path without a run; raises another if the path cannot be read."""
    if not path.exists():
        return SourceNotFoundError(f"{path} does not exist")
    if layout is not None:
        return SourceNotFoundError(f"no run found in {path}; {formats()[layout].layout}")
    hint = f"`from_` {'|'.join(readable())} gives a diagnosis"
    if not path.is_file():
        there = listed(path, "*")
        for entry in (*there, *listed(path, "*/*"))[:_SHOWN_NAMES]:
            if entry.is_file():
                check_readable(entry)  # which names pointers of Git LFS
        shown = first_of((entry.name for entry in there), _SHOWN_NAMES)
        return SourceNotFoundError(
            f"no run found in {path}: {f'found {shown}; ' if shown else ''}expected files such as "
            "Pong/run_5-00000-of-00050, Pong/5/replay_logs/add_count_ckpt.0.gz or data/main_data.hdf5",
            hint=hint,
        )
    if is_hdf5(path):
        expected = _hdf5_layouts()
        with expecting(expected), opened(path) as file:
            found = names(file)
            shown = first_of(found, _SHOWN_NAMES)
            return SourceNotFoundError(
                f"no run found in {path}: found {shown or 'no groups or datasets'}; {expected}", hint=hint
            )
    with opened_file(path) as file:
        head = file.read(_SHOWN_BYTES)
    return SourceNotFoundError(f"no run found in {path}: expected HDF5, Parquet or npz, found {head!r}", hint=hint)


def _resembled(path: Path) -> str | None:
    """Return the format of most marks at a path, whose error names the missing files; None without marks.

    A directory has the marks of formats that are directories only.
    """
    is_file = path.is_file()
    found = {
        name: sum(holds(path, (mark,)) if is_file else (path / mark).exists() for mark in one.marks)
        for name, one in readable().items()
        if is_file or not (one.is_hdf5 and one.reads == "dataset")
    }
    best = max(found, key=found.__getitem__)
    if found[best]:
        return best
    return "npz" if is_file and path.suffix == ".npz" else None


def _hdf5_layouts() -> str:
    layouts = [one.layout.removeprefix("expected ") for one in readable().values() if one.is_hdf5]
    return f"expected {'; or '.join(layouts)}"
