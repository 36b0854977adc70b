"""robomimic's HDF5: a group a demonstration, with observations and next observations in groups of their own."""

import json
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np

from rlx.errors import ExportError
from rlx.formats.common.exporter import (
    Experience,
    Piece,
    check_names,
    common_losses,
    has_finals,
    left_out,
    observation_fields,
    only_action,
    renamed,
)
from rlx.formats.common.hdf5.episodes import extra_columns, without_room
from rlx.formats.common.hdf5.output import Hdf5Output, created, write_episodes
from rlx.formats.common.pictures import channels_last
from rlx.formats.common.provenance import provenance
from rlx.formats.robomimic import ACTIONS, DONES, KNOWN, NEXT, OBS, RECORDED, REWARDS, STEPS
from rlx.progress import Progress
from rlx.schema import Schema

_TAKEN = KNOWN | {"next"}
_GYM = 2  # robomimic's EnvType of environments that gym makes


class RobomimicExporter:
    """Exporter to ``data/demo_<i>``: actions, rewards, dones, ``obs`` and ``next_obs``.

    ``next_obs``, which a reader can do without, is there where any final observation was recorded. Actions are written
    as they are; robomimic wants them between -1 and 1. Further fields are beside these, and what rlx knows of
    a trajectory in attributes: robomimic passes over both.
    """

    title = "robomimic's HDF5"

    def losses(self, experience: Experience) -> Sequence[str]:
        """Return final observations, if none was recorded, pictures as they were, and names that robomimic does not
        hold.
        """
        schema = experience.schema
        check_names(self.title, schema)
        keys = _keys(schema)
        losses = common_losses(experience, final=not has_finals(experience), unrecorded=False, starts=False)
        losses += left_out(without_room(schema, extra_columns(schema, _TAKEN)))
        losses += renamed([_action(schema)])
        losses += [f"the name {name}: it becomes {key}" for name, key in keys.items() if name.count("/") > 1]
        return losses + [loss for name in keys for loss in channels_last(schema[name]).loss(name, schema[name])]

    def owns(self, path: Path) -> bool:
        """Return whether a file has demonstrations in it."""
        try:
            with h5py.File(path, "r") as file:
                return "data" in file and "env_args" in file["data"].attrs
        except OSError:
            return False

    def write(self, experience: Experience, path: Path, destination: Path, progress: Progress) -> None:  # noqa: ARG002
        """Write the file."""
        with created(path) as output:
            output.sign(provenance(experience, self.losses(experience)))
            data = output.file.create_group("data")
            data.attrs["total"] = int(experience.trajectories.length.sum())
            name = str(experience.notes.get("environment", experience.id))
            data.attrs["env_args"] = json.dumps({"env_name": name, "env_type": _GYM, "env_kwargs": {}})
            write_episodes(experience, lambda piece: _Demo(output, piece.trajectory, experience), progress)


class _Demo:
    def __init__(self, output: Hdf5Output, number: int, experience: Experience) -> None:
        schema, steps = experience.schema, int(experience.trajectories.length[number])
        group = output.file.create_group(f"data/demo_{number}")
        group.attrs[STEPS] = steps
        self._observations = [
            (
                name,
                arranged := channels_last(schema[name]),
                output.rows(f"{group.name}/{kind}/{key}", steps, arranged.shape, schema[name].dtype),
                kind == NEXT,
            )
            for kind in ((OBS, NEXT) if has_finals(experience) else (OBS,))
            for name, key in _keys(schema).items()
        ]
        table = experience.trajectories.columns()
        for name in RECORDED:
            group.attrs[name] = table[name][number]
        columns = {ACTIONS: _action(schema), REWARDS: "reward"}
        self._extras = [
            (extra, output.field(f"{group.name}/{extra.path}", steps, schema[extra.name]))
            for extra in extra_columns(schema, _TAKEN)
        ]
        self._columns = [
            (name, output.rows(f"{group.name}/{column}", steps, schema[name].shape or _row(name), schema[name].dtype))
            for column, name in columns.items()
        ]
        self._dones = output.rows(f"{group.name}/{DONES}", steps, (), np.int64)

    def append(self, piece: Piece) -> None:
        for name, arranged, rows, is_next in self._observations:
            rows.append(arranged.arrange(piece.next(name) if is_next else piece.rows(name)))
        for name, column in self._columns:
            column.append(piece.rows(name))
        for extra, column in self._extras:
            column.append(extra.rows(piece))
        self._dones.append(piece.rows("terminated"))


def _row(name: str) -> tuple[int, ...]:
    """Return the shape of a number: of a reward none, of an action that of a vector of one."""
    return () if name == "reward" else (1,)


def _keys(schema: Schema) -> dict[str, str]:
    """Return robomimic's names of the observations, by their names: ``observation/arm/angle`` is ``arm_angle``."""
    keys = {name: name.removeprefix("observation/").replace("/", "_") for name in observation_fields(schema)}
    if len(set(keys.values())) < len(keys):
        raise ExportError(f"robomimic would call two observations the same: {', '.join(sorted(keys))}")
    return keys


def _action(schema: Schema) -> str:
    return only_action(schema, "robomimic holds one action of floats", floats=True)


DATASETS = RobomimicExporter()
