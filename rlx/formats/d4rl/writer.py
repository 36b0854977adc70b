"""D4RL's HDF5: all steps in a row, ``terminals`` and ``timeouts`` where an episode ends."""

from collections.abc import Sequence
from pathlib import Path

from rlx.errors import ExportError
from rlx.formats.common.exporter import (
    Experience,
    action_fields,
    check_names,
    common_losses,
    has_finals,
    left_out,
    observation_fields,
    pieces,
    renamed,
)
from rlx.formats.common.hdf5.episodes import ExtraColumn, extra_columns, without_room
from rlx.formats.common.hdf5.file import holds
from rlx.formats.common.hdf5.output import created
from rlx.formats.common.provenance import provenance
from rlx.formats.d4rl import KEYS, KNOWN, METADATA, NEXT, TABLE, TABLE_COLUMNS, TIMEOUTS
from rlx.progress import Progress
from rlx.schema import Schema

_TAKEN = KNOWN | {METADATA.rstrip("/"), "next"}


class D4RLExporter:
    """Exporter of observations, actions, rewards, terminals, timeouts and next_observations, N rows each.

    The last, which a reader can do without, is there where any final observation was recorded. Further fields have N
    rows too. What rlx knows of the trajectories stands under ``metadata``, which D4RL passes over.
    """

    title = "D4RL's HDF5"

    def losses(self, experience: Experience) -> Sequence[str]:
        """Return final observations, if none was recorded, and fields whose names mean something else in D4RL."""
        schema = experience.schema
        _check(experience)
        losses = common_losses(experience, final=not has_finals(experience), unrecorded=False, starts=False)
        losses += renamed((*observation_fields(schema), *action_fields(schema)))
        return losses + left_out(without_room(schema, _extras(schema)))

    def owns(self, path: Path) -> bool:
        """Return whether a file has the datasets that every file of D4RL has."""
        return holds(path, KEYS)

    def write(self, experience: Experience, path: Path, destination: Path, progress: Progress) -> None:  # noqa: ARG002
        """Write the file."""
        schema, steps = experience.schema, int(experience.trajectories.length.sum())
        (observation,), (action,) = observation_fields(schema), action_fields(schema)
        columns = {
            "observations": observation,
            "actions": action,
            "rewards": "reward",
            "terminals": "terminated",
            TIMEOUTS: "truncated",
            **({NEXT: observation} if has_finals(experience) else {}),
        }
        with created(path) as output:
            output.sign(provenance(experience, self.losses(experience)))
            rows = {column: output.field(column, steps, schema[name]) for column, name in columns.items()}
            extras = [(extra, output.field(extra.path, steps, schema[extra.name])) for extra in _extras(schema)]
            for name in TABLE_COLUMNS:
                output.file.create_dataset(TABLE + name, data=experience.trajectories.columns()[name])
            for piece in pieces(experience.blocks(), schema):
                for column, name in columns.items():
                    rows[column].append(piece.next(name) if column == NEXT else piece.rows(name))
                for extra, column_rows in extras:
                    column_rows.append(extra.rows(piece))
                progress.advance("steps", piece.steps)


def _extras(schema: Schema) -> list[ExtraColumn]:
    return extra_columns(schema, _TAKEN)


def _check(experience: Experience) -> None:
    check_names(D4RLExporter.title, experience.schema)
    for kind, names in (
        ("observation", observation_fields(experience.schema)),
        ("action", action_fields(experience.schema)),
    ):
        if len(names) != 1:
            raise ExportError(
                f"D4RL holds one {kind} per step, found {', '.join(names)}", hint="`to` minari holds any number"
            )
        if experience.schema[names[0]].is_text:
            raise ExportError(f"D4RL holds {kind}s of numbers, found text in {names[0]}", hint="`to` npz holds text")


DATASETS = D4RLExporter()
