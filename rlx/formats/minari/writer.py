"""A dataset of Minari (HDF5): a directory that ``minari.load_dataset`` opens, in every version from 0.5.0.

Versions before 0.5.4 treat all that looks like pictures as JPEG. So pictures are written with their channels first,
which no version treats as pictures, and stay lossless.
"""

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import ExportError
from rlx.formats.common.exporter import (
    Experience,
    Piece,
    action_fields,
    check_names,
    common_losses,
    extra_fields,
    observation_fields,
)
from rlx.formats.common.hdf5.output import Hdf5Output, PieceWriter, created, write_episodes
from rlx.formats.common.pictures import Arranged, as_it_is, channels_first
from rlx.formats.common.provenance import KEY, provenance
from rlx.formats.minari.layout import (
    CUT,
    GROUPS,
    INFOS,
    MAIN_DATA,
    METADATA,
    NUMBER,
    STEPS,
    Space,
    is_image,
    nested,
    space_of,
    text_space,
)
from rlx.progress import Progress
from rlx.schema import Field, Role, Schema

# The first version of this layout: readers accept versions up to their own.
_VERSION = "0.5.0"
_MAIN_DATA = Path("data") / MAIN_DATA
_METADATA = Path("data") / METADATA
_NAMESPACE = "namespace_metadata.json"
_NAME = re.compile(r"[-_\w]+-v\d+")
_NAMESPACE_NAME = re.compile(r"[-_\w]+")
_MEGABYTE = 1e6
_SCALARS = {group: field for group, field in GROUPS.items() if field not in ("observation", "action")}


@dataclass(frozen=True, slots=True)
class _Leaf:
    """One dataset of an episode: the field that fills it, and the arrangement of its rows."""

    name: str
    field: Field
    arranged: Arranged
    is_info: bool = False

    @property
    def extra_row(self) -> bool:
        """Whether an episode has one row more of it than steps, as of observations and infos."""
        return self.is_info or self.field.role == Role.OBSERVATION

    def rows(self, piece: Piece) -> NDArray[Any]:
        """Return the rows that a piece adds; the extra row of an info is zeros, except for observations."""
        if self.field.role == Role.OBSERVATION:
            return self.arranged.arrange(piece.stored(self.name))
        rows = [self.arranged.arrange(piece.rows(self.name))]
        if self.is_info and self.field.role == Role.NEXT and piece.start == 0:
            rows.insert(0, self.field.zeros(1))
        if self.is_info and self.field.role == Role.STEP and piece.is_last:
            rows.append(self.field.zeros(1))
        return np.concatenate(rows)


class _Texts:
    """The texts of one dataset so far: the longest, and the characters in them."""

    def __init__(self) -> None:
        self.longest = 0
        self.characters: set[str] = set()

    def add(self, rows: NDArray[Any]) -> None:
        for text in set(rows.flat):
            self.longest = max(self.longest, len(text))
            self.characters.update(text)


class MinariExporter:
    """Exporter to ``data/main_data.hdf5`` and ``data/metadata.json``."""

    title = "Minari"

    def taken(self, schema: Schema) -> Collection[str]:
        """Return the fields that would be the same info as another."""
        held = {leaf.name for leaf in _leaves(schema).values()}
        return [name for name in extra_fields(schema) if name not in held]

    def losses(self, experience: Experience) -> Sequence[str]:
        """Return lost marks of unrecorded final observations, numbers and starts of episodes, and shapes."""
        schema = experience.schema
        check_names(self.title, schema)
        leaves = _leaves(schema)
        for name in (*observation_fields(schema), *action_fields(schema)):
            if schema[name].is_text and schema[name].shape:
                raise ExportError(f"Minari holds one text per step, found {name} {list(schema[name].shape)}")
        losses = common_losses(experience, episodes=True)
        for role, missing in ((Role.NEXT, "resets"), (Role.STEP, "final observations")):
            if padded := [leaf.name for leaf in leaves.values() if leaf.is_info and leaf.field.role == role]:
                losses.append(f"that {', '.join(padded)} have no values for {missing}: zeros are written")
        return losses + [loss for leaf in leaves.values() for loss in leaf.arranged.loss(leaf.name, leaf.field)]

    def owns(self, path: Path) -> bool:
        """Return whether a directory is a Minari dataset."""
        return (path / _METADATA).is_file() and {entry.name for entry in path.iterdir()} == {"data"}

    def write(self, experience: Experience, path: Path, destination: Path, progress: Progress) -> None:
        """Write the dataset; its id follows from the destination."""
        dataset_id, namespaces = _placed(destination)
        (path / "data").mkdir(parents=True)
        leaves = _leaves(experience.schema)
        texts = {path: _Texts() for path, leaf in leaves.items() if leaf.field.is_text}
        with created(path / _MAIN_DATA, track_order=True) as output:
            write_episodes(experience, lambda piece: _begun(output, piece, experience, leaves, texts), progress)
        metadata = self._metadata(experience, leaves, texts, dataset_id, (path / _MAIN_DATA).stat().st_size)
        (path / _METADATA).write_text(json.dumps(metadata))
        for directory in namespaces:
            if not (directory / _NAMESPACE).exists():
                (directory / _NAMESPACE).write_text("{}")

    def _metadata(
        self,
        experience: Experience,
        leaves: Mapping[str, _Leaf],
        texts: Mapping[str, _Texts],
        dataset_id: str,
        size: int,
    ) -> dict[str, Any]:
        spaces = {group: _space(group, leaves, texts) for group in ("observations", "actions")}
        table, said = experience.trajectories, provenance(experience, self.losses(experience))
        described = experience.notes.get("minari")
        return {
            "description": f"{experience.id}, exported by rlx {said['rlx']}",
            **(described if isinstance(described, dict) else {}),
            "total_episodes": len(table),
            "total_steps": int(table.length.sum()),
            "data_format": "hdf5",
            "jpeg_encoding": False,
            "observation_space": json.dumps(spaces["observations"]),
            "action_space": json.dumps(spaces["actions"]),
            **_environment(experience.notes),
            "dataset_id": dataset_id,
            "minari_version": _VERSION,
            "dataset_size": round(size / _MEGABYTE, 1),
            KEY: {**said, "infos": _own_infos(leaves)},
        }


def _space(group: str, leaves: Mapping[str, _Leaf], texts: Mapping[str, _Texts]) -> Space:
    spaces = {}
    for path, leaf in leaves.items():
        if path.partition("/")[0] == group:
            space = space_of(leaf.field, leaf.arranged.shape)
            if path in texts:
                space = text_space(space, texts[path].longest, texts[path].characters)
            spaces[path.partition("/")[2]] = space
    return nested(spaces)


def _own_infos(leaves: Mapping[str, _Leaf]) -> dict[str, str]:
    """Return the names of fields that are infos under other names, or with one row fewer, by path."""
    infos = {path: leaf for path, leaf in leaves.items() if leaf.is_info}
    return {
        path: leaf.name
        for path, leaf in infos.items()
        if leaf.field.role != Role.OBSERVATION or leaf.name != path.replace(INFOS, "info", 1)
    }


def _begun(
    output: Hdf5Output, piece: Piece, experience: Experience, leaves: Mapping[str, _Leaf], texts: Mapping[str, _Texts]
) -> PieceWriter:
    """Create the group of an episode; return the function that adds a piece to it."""
    number, table = piece.trajectory, experience.trajectories
    steps = int(table.length[number])
    group = output.file.create_group(f"episode_{number}", track_order=True)
    group.attrs[NUMBER] = number
    group.attrs[STEPS] = steps
    if table.cut[number]:
        group.attrs[CUT] = True
    datasets = {
        path: output.rows(
            f"{group.name}/{path}", steps + leaf.extra_row, leaf.arranged.shape, leaf.field.dtype, growing=True
        )
        for path, leaf in leaves.items()
    }

    def write(piece: Piece) -> None:
        for path, leaf in leaves.items():
            rows = leaf.rows(piece)
            datasets[path].append(rows)
            if path in texts:
                texts[path].add(rows)

    return write


def _leaves(schema: Schema) -> dict[str, _Leaf]:
    fields = {name.replace("observation", "observations", 1): name for name in observation_fields(schema)}
    fields |= {name.replace("action", "actions", 1): name for name in action_fields(schema)}
    leaves = {path: _leaf(name, schema[name]) for path, name in fields.items()}
    leaves |= {path: _Leaf(name, schema[name], as_it_is(schema[name])) for path, name in _SCALARS.items()}
    taken: set[str] = set()
    # The infos of the environment keep their names; see ``taken`` for other fields of the same names.
    for name in sorted(extra_fields(schema), key=lambda name: not name.startswith("info/")):
        path = name.replace("info", INFOS, 1) if name.startswith("info/") else f"{INFOS}/{name}"
        if not any(_is_within(path, other) or _is_within(other, path) for other in taken):
            leaves[path] = _Leaf(name, schema[name], as_it_is(schema[name]), is_info=True)
            taken.add(path)
    return leaves


def _is_within(path: str, other: str) -> bool:
    return path == other or path.startswith(f"{other}/")


def _leaf(name: str, field: Field) -> _Leaf:
    arranged = as_it_is(field)
    if is_image(space_of(field, arranged.shape)):
        arranged = channels_first(field)
    if is_image(space_of(field, arranged.shape)):
        arranged = Arranged((1, *field.shape), lambda rows: rows[:, None])
    return _Leaf(name, field, arranged)


def _placed(destination: Path) -> tuple[str, list[Path]]:
    """Return Minari's name of a dataset at this path, and the directories above it that are namespaces.

    Namespaces are the directories below Minari's own, and elsewhere those with ``namespace_metadata.json``.
    """
    place = destination.absolute()
    # Unlike Path.expanduser, this does not fail where the user has no home directory.
    root = Path(os.path.expanduser(os.environ.get("MINARI_DATASETS_PATH") or "~/.minari/datasets")).absolute()
    namespaces: list[Path] = []
    for directory in place.parents:
        is_below = directory != root and directory.is_relative_to(root)
        if not is_below and not (directory / _NAMESPACE).is_file():
            break
        namespaces.insert(0, directory)
    if not _NAME.fullmatch(place.name):
        raise ExportError(
            f"{destination}: Minari wants a name that ends in a version",
            hint=f"give {destination.name}-v0 as the destination",
        )
    names = [directory.name for directory in namespaces]
    if bad := [name for name in names if not _NAMESPACE_NAME.fullmatch(name)]:
        raise ExportError(f"{destination}: Minari cannot call a namespace {bad[0]!r}")
    return "/".join([*names, place.name]), namespaces


def _environment(notes: Mapping[str, Any]) -> dict[str, str]:
    """Return the spec from which Minari recreates the environment, if known.

    gymnasium does not know environments with rlx's settings, such as DQN's preprocessing.
    """
    spec = notes.get("env_spec")
    if not isinstance(spec, str) and "environment_settings" not in notes:
        spec = _gymnasium_spec(notes.get("environment"))
    return {"env_spec": spec} if isinstance(spec, str) else {}


def _gymnasium_spec(environment: Any) -> str | None:
    try:
        import gymnasium  # an extra
    except ImportError:
        return None
    try:
        return gymnasium.spec(environment).to_json() if isinstance(environment, str) else None
    except (gymnasium.error.Error, TypeError):
        return None


DATASETS = MinariExporter()
