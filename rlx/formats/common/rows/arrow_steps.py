"""Steps as batches of Arrow's columns by TED path, for formats that write them.

The observation after a step is in the next row; only at the end of a trajectory is it in the row itself, as
``next/observation``, which is null in other rows.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.formats.common.exporter import Experience, Piece, small_pieces
from rlx.formats.common.pictures import Arranged, encode
from rlx.formats.common.rows.ted_fields import CUT, EPISODE, FROM_RESET, INDEX, TRAJECTORY, ted_paths
from rlx.schema import Field, Role
from rlx.store.arrow import arrow_type, from_rows, pyarrow

# The columns beside those of the fields.
LOCATIONS = (INDEX, TRAJECTORY, EPISODE, FROM_RESET, CUT)


def step_batches(experience: Experience, pictures: Mapping[str, Arranged] | None = None) -> Iterator[tuple[Any, Piece]]:
    """Yield a record batch of each piece of a trajectory, of at most a MiB of steps, and the piece.

    Args:
        experience: what to write.
        pictures: the observations that become files of pictures, in a struct of ``bytes`` and ``path``, by name.
    """
    index, cut = 0, experience.trajectories.cut
    for piece in small_pieces(experience.blocks(), experience.schema):
        yield _batch(experience, piece, index, pictures or {}, cut=bool(cut[piece.trajectory])), piece
        index += piece.steps


def picture_type() -> Any:
    """Return the type of a column of pictures."""
    arrow, _ = pyarrow()
    return arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])


def _batch(experience: Experience, piece: Piece, index: int, pictures: Mapping[str, Arranged], *, cut: bool) -> Any:
    arrow, _ = pyarrow()
    schema, count = experience.schema, piece.steps
    columns = {path: _column(piece.rows(name), pictures.get(name)) for name, path in ted_paths(schema).items()}
    for name in schema.names(Role.OBSERVATION):
        recorded = piece.next(name)[count - 1 :] if piece.is_last and piece.final_recorded else piece.data[name][:0]
        kind = picture_type() if name in pictures else _type(schema[name])
        nulls = arrow.nulls(count - len(recorded), kind)
        columns[f"next/{name}"] = arrow.concat_arrays([nulls, _column(recorded, pictures.get(name))])
    constants: dict[str, int | bool] = {
        TRAJECTORY: piece.trajectory,
        EPISODE: piece.episode,
        FROM_RESET: piece.from_reset,
        CUT: cut,
    }
    columns[INDEX] = from_rows(np.arange(index, index + count))
    columns |= {path: from_rows(np.full(count, value)) for path, value in constants.items()}
    return arrow.RecordBatch.from_pydict(columns)


def _column(rows: NDArray[np.generic], arranged: Arranged | None) -> Any:
    if arranged is None:
        return from_rows(rows)
    arrow, _ = pyarrow()
    files = arrow.array(list(encode(arranged.arrange(rows))), arrow.binary())
    return arrow.StructArray.from_arrays([files, arrow.nulls(len(rows), arrow.string())], fields=list(picture_type()))


def _type(field: Field) -> Any:
    return arrow_type(field.dtype, field.shape)
