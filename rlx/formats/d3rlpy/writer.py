"""The HDF5 that d3rlpy 2 dumps and loads (version 2.1): four datasets per episode."""

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from rlx.errors import ExportError
from rlx.formats.common.exporter import (
    Experience,
    Piece,
    check_names,
    common_losses,
    extra_fields,
    float32,
    observation_fields,
    only_action,
    renamed,
    rounded_rewards,
    unflagged_ends,
    without_finals,
)
from rlx.formats.common.hdf5.episodes import INFOS, extra_columns
from rlx.formats.common.hdf5.file import holds
from rlx.formats.common.hdf5.output import Column, PieceWriter, created, write_episodes
from rlx.formats.common.pictures import Arranged, channels_first
from rlx.formats.common.provenance import provenance
from rlx.formats.d3rlpy import COLUMNS, KEYS, VERSION
from rlx.progress import Progress
from rlx.schema import Field, Schema

# A name like an episode's dataset, or a group named like a dataset.
_RESERVED = re.compile(rf"({INFOS}|({'|'.join(COLUMNS)})(_\d+)*)(/|$)|({'|'.join(KEYS)})/|.*_\d+/")


class D3rlpyExporter:
    """Exporter of as many observations as actions; several observations become a tuple.

    Further fields become datasets of each episode, which d3rlpy ignores.
    """

    title = "d3rlpy"

    def taken(self, schema: Schema) -> Collection[str]:
        """Return the fields with a name that means something else in d3rlpy, or a group like an episode's dataset."""
        return [name for name in extra_fields(schema) if _RESERVED.match(name)]

    def losses(self, experience: Experience) -> Sequence[str]:
        """Return lost final observations, outcomes of last steps, numbers of episodes, exact rewards, and names."""
        schema, table = experience.schema, experience.trajectories
        check_names(self.title, schema)
        action = _action(schema)
        if texts := [name for name in observation_fields(schema) if schema[name].is_text]:
            raise ExportError(f"d3rlpy holds observations of numbers, found text in {', '.join(texts)}")
        extras = extra_columns(schema)
        losses = common_losses(experience, final=True, episodes=True, both=True)
        losses += without_finals(schema, [extra.name for extra in extras if not extra.is_after])
        if cut := int((~table.terminated).sum()):
            losses.append(
                f"the outcome of the last step of {cut:,} of {len(table):,} trajectories, which did not terminate: "
                "d3rlpy makes no transitions of them"
            )
        losses += unflagged_ends(experience)
        losses += rounded_rewards(schema)
        names = observation_fields(schema)
        losses += renamed([*(names if len(names) == 1 else []), action])
        for name in names:
            losses += _arranged(schema[name]).loss(name, schema[name])
        if len(names) > 1:
            losses.append(f"names of observations: {', '.join(names)} become a tuple in this order")
        if schema[action].numpy_dtype.kind == "f":
            losses += _arranged(schema[action]).loss(action, schema[action])
        return losses

    def owns(self, path: Path) -> bool:
        """Return whether a file is a dump of d3rlpy 2."""
        return holds(path, KEYS)

    def write(self, experience: Experience, path: Path, destination: Path, progress: Progress) -> None:  # noqa: ARG002
        """Write the file."""
        schema, table = experience.schema, experience.trajectories
        datasets = _datasets(schema)

        def begin(piece: Piece) -> PieceWriter:
            number = piece.trajectory
            output.file.create_dataset(f"terminated_{number}", data=bool(table.terminated[number]))
            return output.writer(datasets, schema, int(table.length[number]), number)

        with created(path) as output:
            output.sign(provenance(experience, self.losses(experience)))
            output.file.create_dataset("columns", data=list(COLUMNS))
            output.file.create_dataset("num_episodes", data=len(table))
            output.file.create_dataset("version", data=VERSION)
            write_episodes(experience, begin, progress)


def _datasets(schema: Schema) -> list[Column]:
    """Return the datasets of an episode."""
    names, action = observation_fields(schema), _action(schema)
    places = [f"_{place}" for place in range(len(names))] if len(names) > 1 else [""]
    return [
        *(
            Column("observations_{}" + place, name, arranged=_arranged(schema[name]))
            for place, name in zip(places, names, strict=True)
        ),
        Column("actions_{}", action, arranged=_arranged(schema[action])),
        Column("rewards_{}", "reward", arranged=Arranged((1,), _rewards), dtype="float32"),
        *(extra for extra in extra_columns(schema, "{}_{{}}") if not extra.is_after),
    ]


def _arranged(field: Field) -> Arranged:
    """Return pictures with their channels first; a number as a vector of one."""
    return Arranged((1,), _columns) if field.shape == () else channels_first(field)


def _columns(rows: NDArray[Any]) -> NDArray[Any]:
    return rows[:, None]


def _rewards(rows: NDArray[Any]) -> NDArray[Any]:
    return _columns(float32(rows, D3rlpyExporter.title, "rewards"))


def _action(schema: Schema) -> str:
    return only_action(schema, "d3rlpy holds one discrete action or one vector of floats", discrete=True, floats=True)


DATASETS = D3rlpyExporter()
