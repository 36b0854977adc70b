"""D4RL's HDF5: all steps in one array per field, ``terminals`` and ``timeouts`` where an episode ends."""

from collections.abc import Collection, Sequence
from pathlib import Path

from rlx.formats.common.exporter import (
    Experience,
    action_fields,
    check_names,
    check_single,
    common_losses,
    extra_fields,
    has_finals,
    observation_fields,
    renamed,
)
from rlx.formats.common.hdf5.episodes import INFOS, extra_columns
from rlx.formats.common.hdf5.file import holds
from rlx.formats.common.hdf5.output import Column, created, write_episodes
from rlx.formats.common.provenance import provenance
from rlx.formats.d4rl import KEYS, KNOWN, METADATA, NEXT, TABLE, TABLE_COLUMNS, TIMEOUTS
from rlx.progress import Progress
from rlx.schema import Schema

_TAKEN = KNOWN | {METADATA.rstrip("/"), INFOS}


class D4RLExporter:
    """Exporter of observations, actions, rewards, terminals, timeouts and next_observations, N rows each.

    ``next_observations``, which readers do not need, is written if any final observation was recorded. Further fields
    have N rows too. The table of trajectories is under ``metadata``, which D4RL ignores.
    """

    title = "D4RL's HDF5"

    def taken(self, schema: Schema) -> Collection[str]:
        """Return the fields with a name that means something else in D4RL."""
        return [name for name in extra_fields(schema) if name.split("/")[0] in _TAKEN]

    def losses(self, experience: Experience) -> Sequence[str]:
        """Return lost final observations and names."""
        schema = experience.schema
        check_names(self.title, schema)
        check_single("D4RL", "observation", observation_fields(schema), schema)
        check_single("D4RL", "action", action_fields(schema), schema)
        losses = common_losses(experience, final=not has_finals(experience), unrecorded=False, starts=False)
        return losses + renamed((*observation_fields(schema), *action_fields(schema)))

    def owns(self, path: Path) -> bool:
        """Return whether a file has the datasets of D4RL."""
        return holds(path, KEYS)

    def write(self, experience: Experience, path: Path, destination: Path, progress: Progress) -> None:  # noqa: ARG002
        """Write the file."""
        schema, steps = experience.schema, int(experience.trajectories.length.sum())
        (observation,), (action,) = observation_fields(schema), action_fields(schema)
        columns = [
            Column("observations", observation),
            Column("actions", action),
            Column("rewards", "reward"),
            Column("terminals", "terminated"),
            Column(TIMEOUTS, "truncated"),
            *([Column(NEXT, observation, is_after=True)] if has_finals(experience) else []),
            *extra_columns(schema),
        ]
        with created(path) as output:
            output.sign(provenance(experience, self.losses(experience)))
            write = output.writer(columns, schema, steps)
            for name in TABLE_COLUMNS:
                output.file.create_dataset(TABLE + name, data=experience.trajectories.columns()[name])
            write_episodes(experience, lambda _: write, progress)


DATASETS = D4RLExporter()
