"""robomimic's HDF5: one group per demonstration, with observations and next observations in groups of their own."""

import json
from collections.abc import Collection, Sequence
from pathlib import Path

import h5py

from rlx.errors import ExportError
from rlx.formats.common.exporter import (
    Experience,
    Piece,
    check_names,
    common_losses,
    extra_fields,
    has_finals,
    observation_fields,
    only_action,
    renamed,
)
from rlx.formats.common.hdf5.episodes import INFOS, extra_columns
from rlx.formats.common.hdf5.output import Column, PieceWriter, created, write_episodes
from rlx.formats.common.pictures import Arranged, channels_last
from rlx.formats.common.provenance import provenance
from rlx.formats.robomimic import ACTIONS, DONES, KNOWN, NEXT, OBS, RECORDED, REWARDS, STEPS
from rlx.progress import Progress
from rlx.schema import Schema

_TAKEN = KNOWN | {INFOS}
_GYM = 2  # robomimic's EnvType of environments that gym makes


class RobomimicExporter:
    """Exporter to ``data/demo_<i>``: actions, rewards, dones, ``obs`` and ``next_obs``.

    ``next_obs``, which readers do not need, is written if any final observation was recorded. Actions are written
    unchanged; robomimic expects them in [-1, 1]. Further fields are datasets beside these, and data of trajectories are
    attributes: robomimic ignores both.
    """

    title = "robomimic's HDF5"

    def taken(self, schema: Schema) -> Collection[str]:
        """Return the fields with a name that means something else in robomimic."""
        return [name for name in extra_fields(schema) if name.split("/")[0] in _TAKEN]

    def losses(self, experience: Experience) -> Sequence[str]:
        """Return lost final observations, names, and shapes of pictures."""
        schema = experience.schema
        check_names(self.title, schema)
        keys = _keys(schema)
        losses = common_losses(experience, final=not has_finals(experience), unrecorded=False, starts=False)
        losses += renamed([_action(schema)])
        losses += [f"the name {name}: it becomes {key}" for name, key in keys.items() if name.count("/") > 1]
        return losses + [loss for name in keys for loss in channels_last(schema[name]).loss(name, schema[name])]

    def owns(self, path: Path) -> bool:
        """Return whether a file has demonstrations of robomimic."""
        try:
            with h5py.File(path, "r") as file:
                return "data" in file and "env_args" in file["data"].attrs
        except OSError:
            return False

    def write(self, experience: Experience, path: Path, destination: Path, progress: Progress) -> None:  # noqa: ARG002
        """Write the file."""
        datasets, table = _datasets(experience), experience.trajectories.columns()

        def begin(piece: Piece) -> PieceWriter:
            number = piece.trajectory
            steps = int(table["length"][number])
            attributes = output.file.create_group(f"data/demo_{number}").attrs
            attributes[STEPS] = steps
            for name in RECORDED:
                attributes[name] = table[name][number]
            return output.writer(datasets, experience.schema, steps, number)

        with created(path) as output:
            output.sign(provenance(experience, self.losses(experience)))
            data = output.file.create_group("data")
            data.attrs["total"] = int(table["length"].sum())
            name = str(experience.notes.get("environment", experience.id))
            data.attrs["env_args"] = json.dumps({"env_name": name, "env_type": _GYM, "env_kwargs": {}})
            write_episodes(experience, begin, progress)


def _datasets(experience: Experience) -> list[Column]:
    """Return the datasets of a demonstration."""
    schema, action = experience.schema, _action(experience.schema)
    demo = "data/demo_{}/"
    return [
        *(
            Column(f"{demo}{kind}/{key}", name, kind == NEXT, channels_last(schema[name]))
            for kind in ((OBS, NEXT) if has_finals(experience) else (OBS,))
            for name, key in _keys(schema).items()
        ),
        # A number is a vector of one.
        Column(demo + ACTIONS, action, arranged=Arranged(schema[action].shape or (1,), lambda rows: rows)),
        Column(demo + REWARDS, "reward"),
        *extra_columns(schema, "data/demo_{{}}/{}"),
        Column(demo + DONES, "terminated", dtype="int64"),
    ]


def _keys(schema: Schema) -> dict[str, str]:
    """Return robomimic's names of observations, by name: ``observation/arm/angle`` is ``arm_angle``."""
    keys = {name: name.removeprefix("observation/").replace("/", "_") for name in observation_fields(schema)}
    if len(set(keys.values())) < len(keys):
        raise ExportError(f"robomimic would call two observations the same: {', '.join(sorted(keys))}")
    return keys


def _action(schema: Schema) -> str:
    return only_action(schema, "robomimic holds one action of floats", floats=True)


DATASETS = RobomimicExporter()
