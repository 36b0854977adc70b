"""What ``TensorDict.memmap`` writes and TorchRL's storages read: a directory of TED steps, a raw file a leaf."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.export.dataset_exporter import Experience, common_losses
from rlx.export.pieces import Piece, pieces
from rlx.export.protocol import tree
from rlx.export.provenance import save_provenance
from rlx.export.ted_columns import TRAJECTORY, ted_paths
from rlx.progress import Progress
from rlx.schema import SCALAR_COLUMNS, Field, Role, Schema

_METADATA = "meta.json"
_CLASS = "<class 'tensordict._td.TensorDict'>"
_FLAGS = ("done", "terminated", "truncated")
_FLAG = Field("bool", (1,), Role.NEXT)


class TorchRLExporter:
    """Writes a TensorDict [S] as memory maps: ``TensorStorage(TensorDict.load_memmap(path))`` holds it.

    What was seen after each step is there in full, as TED has it; so observations are stored twice.
    """

    title = "TorchRL's memmap"

    def losses(self, experience: Experience) -> Sequence[str]:
        """Which final observations were recorded, numbers of episodes, and which start in mid-episode."""
        return common_losses(experience, episodes=True)

    def owns(self, path: Path) -> bool:
        """Whether a directory is a TensorDict of steps."""
        return (path / _METADATA).is_file() and (path / "next" / _METADATA).is_file()

    def write(self, experience: Experience, path: Path, destination: Path, progress: Progress) -> None:  # noqa: ARG002
        """Writes the directory."""
        steps, leaves = int(experience.trajectories.length.sum()), _leaves(experience.schema)
        _save_metadata(path, tree(leaves), steps)
        save_provenance(path, experience, self.losses(experience))
        with ExitStack() as stack:
            files = {leaf: stack.enter_context((path / f"{leaf}.memmap").open("xb")) for leaf in leaves}
            for piece in pieces(experience.blocks(), experience.schema):
                for leaf, rows in _rows(experience.schema, piece):
                    files[leaf].write(rows.tobytes())
                progress.advance("steps", piece.steps)


def _leaves(schema: Schema) -> dict[str, Field]:
    """Every leaf by its TED path."""
    leaves = {path: _leaf(schema[name], name) for name, path in ted_paths(schema).items()}
    leaves |= {f"next/{name}": schema[name] for name in schema.names(Role.OBSERVATION)}
    leaves |= dict.fromkeys(_FLAGS, _FLAG) | {"next/done": _FLAG}
    return leaves | {TRAJECTORY: Field("int64", (), Role.STEP)}


def _leaf(field: Field, name: str) -> Field:
    return Field(field.dtype, (1,), field.role) if name in SCALAR_COLUMNS else field


def _rows(schema: Schema, piece: Piece) -> Iterator[tuple[str, NDArray[np.generic]]]:
    """What a piece adds to every leaf."""
    for name, path in ted_paths(schema).items():
        yield path, piece.rows(name)
    for name in schema.names(Role.OBSERVATION):
        yield f"next/{name}", piece.next(name)
    never = np.zeros(piece.steps, bool)
    yield from ((name, never) for name in _FLAGS)
    yield "next/done", np.logical_or(piece.data["terminated"], piece.data["truncated"])
    yield TRAJECTORY, np.full(piece.steps, piece.trajectory)


def _save_metadata(directory: Path, node: Mapping[str, Any], steps: int) -> None:
    """Makes a directory, and those below it, with what says which leaves are there."""
    directory.mkdir()
    described: dict[str, Any] = {}
    for name, value in node.items():
        if isinstance(value, Field):
            shape = [steps, *value.shape]
            described[name] = {"device": "cpu", "shape": shape, "dtype": f"torch.{value.dtype}", "is_nested": False}
        else:
            described[name] = {"type": "TensorDict"}
            _save_metadata(directory / name, value, steps)
    described |= {"shape": [steps], "device": "cpu", "_type": _CLASS}
    (directory / _METADATA).write_text(json.dumps(described), encoding="utf-8")
