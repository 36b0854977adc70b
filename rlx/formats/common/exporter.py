"""The seam between whole datasets and the formats of other projects."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rlx.block import Block
from rlx.errors import ExportError
from rlx.progress import Progress
from rlx.schema import Role, Schema, is_action
from rlx.store.trajectories import Trajectories


class Experience(Protocol):
    """The data to export; it can be read any number of times."""

    @property
    def id(self) -> str:
        """Name of the dataset: ``Pong/5``."""

    @property
    def schema(self) -> Schema:
        """Schema of a step."""

    @property
    def notes(self) -> Mapping[str, Any]:
        """Notes for users that the data themselves do not show."""

    @property
    def fingerprint(self) -> str | None:
        """Checksum of the files that the data come from, and of the settings of the export; None if unknown."""

    @property
    def trajectories(self) -> Trajectories:
        """The table of all trajectories, in the order of the blocks."""

    def blocks(self) -> Iterator[Block]:
        """Yield all steps, in time order, every trajectory whole; at most 32 MiB a block."""


class DatasetExporter(Protocol):
    """Exporter of whole datasets in one format.

    Memory depends on the size of a block, not on that of a trajectory, a shard or the dataset. The same experience
    gives the same bytes.
    """

    @property
    def title(self) -> str:
        """The format in words, for messages: ``D4RL's HDF5``."""

    def losses(self, experience: Experience) -> Sequence[str]:
        """Return what the format cannot store, each in a few words that name it; known before writing.

        Raises:
            ExportError: it cannot hold the experience at all; names the field and what the format expects of it.
        """

    def owns(self, path: Path) -> bool:
        """Return whether what lies at a path is of this format, so that it may be replaced by another of it."""

    def write(self, experience: Experience, path: Path, destination: Path, progress: Progress) -> None:
        """Write a file or a directory, in full.

        Args:
            experience: whose ``losses`` were asked for before.
            path: where to write; nothing is there yet.
            destination: what it will be called once it is whole.
            progress: is advanced in ``steps``.

        Raises:
            OSError: no space is left; raised as the operating system reports it.
            MissingExtraError: the format needs a package that is not installed.
        """


def common_losses(
    experience: Experience,
    *,
    final: bool = False,
    unrecorded: bool = True,
    truncation: bool = False,
    episodes: bool = False,
    starts: bool = True,
) -> list[str]:
    """Return losses that several formats share, as far as this experience has them to lose.

    Args:
        experience: the data to export.
        final: whether the format has no place for final observations.
        unrecorded: whether it has none for that one was not recorded.
        truncation: whether it has none for truncations.
        episodes: whether it has none for the numbers of episodes.
        starts: whether it has none for where in its episode a trajectory starts.
    """
    table, losses = experience.trajectories, []
    if final and (recorded := int(table.final_recorded.sum())):
        losses.append(f"the final observation of {_of(recorded, len(table))}")
    if unrecorded and not final and (missing := int((~table.final_recorded).sum())):
        losses.append(f"that the final observation of {_of(missing, len(table))} was not recorded: it is zeros")
    if truncation and (truncated := int(table.truncated.sum())):
        losses.append(f"that {_of(truncated, len(table))} were truncated")
    if episodes and table.episode.tolist() != list(range(len(table))):
        losses.append("the source's numbers of the episodes")
    if starts and (late := int((~table.from_reset).sum())):
        losses.append(f"that {_of(late, len(table))} start in the middle of an episode")
    return losses


def has_finals(experience: Experience) -> bool:
    """Return whether the final observation of any trajectory was recorded."""
    return bool(experience.trajectories.final_recorded.any())


def extra_fields(schema: Schema) -> list[str]:
    """Return names of the fields beside observations, actions, reward and flags."""
    known = {"reward", "terminated", "truncated", *observation_fields(schema), *action_fields(schema)}
    return [name for name in schema if name not in known]


def observation_fields(schema: Schema) -> list[str]:
    """Return names of ``observation``, or of the parts it has."""
    return [name for name in schema.names(Role.OBSERVATION) if name.split("/")[0] == "observation"]


def action_fields(schema: Schema) -> list[str]:
    """Return names of ``action``, or of the parts it has."""
    return [name for name in schema.names(Role.STEP) if name.split("/")[0] == "action"]


def check_names(title: str, schema: Schema) -> None:
    """Raise ExportError where nothing is called ``observation``, or ``action``: some formats know no other names."""
    for kind, known, found in (
        ("observation", observation_fields(schema), schema.names(Role.OBSERVATION)),
        ("action", action_fields(schema), [name for name in schema if is_action(name)]),
    ):
        if not known:
            raise ExportError(
                f"{title} requires a field called {kind}, found {', '.join(found) or 'none'}",
                hint=f"rlx preprocess SRC DST --transform rename:{found[0]}={kind}" if found else None,
            )


def left_out(names: Sequence[str]) -> list[str]:
    """Return the loss of fields that a format has no place for."""
    return [f"the field{'s' if len(names) > 1 else ''} {', '.join(names)}"] if names else []


def without_finals(schema: Schema, names: Sequence[str]) -> list[str]:
    """Return the loss of a format that holds these fields with a row per step, of those that have one more per
    trajectory.
    """
    return [f"what {name} was at the end of each trajectory" for name in names if schema[name].role == Role.OBSERVATION]


def rounded_rewards(schema: Schema) -> list[str]:
    """Return the loss of a format that holds rewards as float32."""
    dtype = schema["reward"].dtype
    return (
        [] if np.result_type(dtype, np.float32) == np.float32 else [f"rewards of {dtype}: they are rounded to float32"]
    )


def _of(some: int, all: int) -> str:
    return f"{some:,} of {all:,} trajectories"
