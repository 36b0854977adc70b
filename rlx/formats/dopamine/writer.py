"""The logs of Dopamine's replay buffer, ``replay_logs/$store$_observation_ckpt.0.gz`` and so on: the layout of the DQN
Replay Dataset, so that programs for that dataset read them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
    left_out,
    observation_fields,
    pieces,
    rounded_rewards,
    without_finals,
)
from rlx.formats.common.provenance import FILE_NAME, save_provenance
from rlx.formats.dopamine.layout import (
    ACTION,
    ADD_COUNT,
    FOLDER,
    OBSERVATION,
    REWARD,
    SMALL_DTYPES,
    TERMINAL,
    array_name,
    file_name,
)
from rlx.formats.dopamine.ring import STACK, RingLog
from rlx.progress import Progress
from rlx.schema import Schema

_CAPACITY = 1_000_000


@dataclass(frozen=True, slots=True)
class DopamineExporter:
    """Exporter to the directory of a run, ``Pong/1``, with ``replay_logs`` in it.

    Further fields of numbers are what Dopamine calls extra storage types.

    Args:
        capacity: rows of the ring, and so of every file; a million as in the DQN Replay Dataset, or where there are
            fewer rows, one more than there are.
    """

    capacity: int | None = None

    title = "Dopamine's layout"

    def losses(self, experience: Experience) -> Sequence[str]:
        """Return final observations, how episodes end that did not terminate, their numbers, and fields of its own."""
        schema, table = experience.schema, experience.trajectories
        _check(schema)
        losses = common_losses(experience, final=True, episodes=True)
        if cut := int((~table.terminated).sum()):
            losses.append(
                f"truncations: {cut:,} of {len(table):,} trajectories did not terminate, and end as if they had"
            )
        extras = _extras(schema)
        losses += rounded_rewards(schema) + without_finals(schema, list(extras))
        return losses + left_out([name for name in extra_fields(schema) if name not in extras])

    def owns(self, path: Path) -> bool:
        """Return whether a directory holds ``replay_logs`` and nothing else that rlx did not write."""
        return (path / FOLDER / file_name(ADD_COUNT, 0)).is_file() and {entry.name for entry in path.iterdir()} <= {
            FOLDER,
            FILE_NAME,
        }

    def write(self, experience: Experience, path: Path, destination: Path, progress: Progress) -> None:  # noqa: ARG002
        """Write the directory."""
        schema, table = experience.schema, experience.trajectories
        (observation,), (action,) = observation_fields(schema), action_fields(schema)
        folder = path / FOLDER
        folder.mkdir(parents=True)
        save_provenance(path, experience, self.losses(experience))
        rows = int(table.length.sum()) + (STACK - 1) * len(table)
        seen = schema[observation]
        columns = {
            OBSERVATION: (seen.dtype, seen.shape),
            **{array: (dtype, ()) for array, dtype in SMALL_DTYPES.items()},
            **{array: (schema[name].dtype, schema[name].shape) for name, array in _extras(schema).items()},
        }
        with RingLog(folder, self.capacity or min(_CAPACITY, rows + 1), columns) as log:
            for piece in pieces(experience.blocks(), schema):
                if piece.start == 0:
                    log.append({name: np.zeros((STACK - 1, *shape), dtype) for name, (dtype, shape) in columns.items()})
                log.append(
                    {
                        OBSERVATION: piece.rows(observation),
                        ACTION: _small(piece.rows(action), action),
                        REWARD: piece.rows("reward"),
                        TERMINAL: _ends(piece),
                        **{array: piece.rows(name) for name, array in _extras(schema).items()},
                    }
                )
                progress.advance("steps", piece.steps)


def _extras(schema: Schema) -> dict[str, str]:
    """Return name of the array of every extra field that has a place: numbers, under a name that is its own."""
    arrays: dict[str, str] = {}
    for name in extra_fields(schema):
        array = array_name(name)
        if not schema[name].is_text and array not in {OBSERVATION, ACTION, REWARD, TERMINAL, *arrays.values()}:
            arrays[name] = array
    return arrays


def _ends(piece: Piece) -> NDArray[np.uint8]:
    """Return [n] 1 where a trajectory ends."""
    ends = np.zeros(piece.steps, np.uint8)
    ends[-1] = piece.is_last
    return ends


def _small(actions: NDArray[np.generic], name: str) -> NDArray[np.generic]:
    if not np.array_equal(actions.astype(np.int32), actions):
        raise ExportError(f"Dopamine's layout holds actions of 32 bits, found larger ones in {name}")
    return actions


def _check(schema: Schema) -> None:
    """Raise ExportError unless there is one observation and one discrete action."""
    check_names(DopamineExporter.title, schema)
    observations, actions = observation_fields(schema), action_fields(schema)
    if len(observations) != 1:
        raise ExportError(f"Dopamine's layout holds one observation per step, found {', '.join(observations)}")
    if schema[observations[0]].is_text:
        raise ExportError(f"Dopamine's layout holds observations of numbers, found text in {observations[0]}")
    is_discrete = [schema[name].shape == () and schema[name].numpy_dtype.kind in "iu" for name in actions]
    if is_discrete != [True]:
        found = ", ".join(f"{name} {schema[name].dtype}{list(schema[name].shape)}" for name in actions)
        raise ExportError(
            f"Dopamine's layout holds one discrete action per step, found {found}",
            hint="--to minari holds actions of any kind",
        )


DATASETS = DopamineExporter()
