"""The layout of ``TensorDict.memmap`` and TorchRL's storages: a directory of TED steps, one raw file per leaf."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.files import lock
from rlx.files.disk import check_case
from rlx.formats.common.batches import tree
from rlx.formats.common.exporter import Experience, Piece, common_losses, pieces
from rlx.formats.common.provenance import save_provenance
from rlx.formats.common.rows.ted_fields import LOCATIONS, locations, ted_paths
from rlx.formats.torchrl.leaves import METADATA, SUFFIX, TEXT_CLASSES
from rlx.progress import Progress
from rlx.schema import SCALAR_COLUMNS, Field, Role, Schema

_CLASS = "<class 'tensordict._td.TensorDict'>"
_FLAGS = ("done", "terminated", "truncated")
_FLAG = Field("bool", (1,), Role.NEXT)
_STACK = {
    "_type": f"<class 'tensordict.tensorclass.{TEXT_CLASSES[0]}'>",
    "_format_version": 1,
    "_class": f"tensordict:{TEXT_CLASSES[0]}",
}


def _is_reserved(part: str) -> bool:
    return part in ("shape", "device", "_type") or part.endswith((SUFFIX, ".json"))


class TorchRLExporter:
    """Exporter of a TensorDict [S] as memory maps: ``TensorStorage(TensorDict.load_memmap(path))`` holds it.

    The observation after each step is stored in full, as in TED, so observations are stored twice. Texts are non-tensor
    data. ``trajectories`` has the metadata of the trajectory of each step.
    """

    title = "TorchRL's memmap"

    def taken(self, schema: Schema) -> Collection[str]:
        """Return the fields with a part that is an entry of the metadata, or named like a file of the layout."""
        return [name for name in schema if any(map(_is_reserved, name.split("/")))]

    def losses(self, experience: Experience) -> Sequence[str]:
        """Return lost marks of unrecorded final observations."""
        return common_losses(experience, starts=False)

    def owns(self, path: Path) -> bool:
        """Return whether a directory is a TensorDict of steps."""
        return (path / METADATA).is_file() and (path / "next" / METADATA).is_file()

    def write(self, experience: Experience, path: Path, destination: Path, progress: Progress) -> None:  # noqa: ARG002
        """Write the directory."""
        steps, leaves = int(experience.trajectories.length.sum()), _leaves(experience.schema)
        check_case(leaves, path.with_name(lock.FILE_NAME))
        _save_metadata(path, tree(leaves), steps)
        save_provenance(path, experience, self.losses(experience))
        with ExitStack() as stack:
            files: dict[str, _NumberFile | _TextFile] = {}
            for leaf, field in leaves.items():
                files[leaf] = _TextFile(path / leaf) if field.is_text else _NumberFile(path / leaf)
                stack.callback(files[leaf].close)
            for piece in pieces(experience.blocks(), experience.schema):
                for leaf, rows in _rows(experience, piece):
                    files[leaf].write(rows)
                progress.advance("steps", piece.steps)


class _NumberFile:
    def __init__(self, leaf: Path) -> None:
        self._file = leaf.with_name(leaf.name + SUFFIX).open("xb")

    def close(self) -> None:
        self._file.close()

    def write(self, rows: NDArray[Any]) -> None:
        """Add rows [n, ...]."""
        self._file.write(rows.tobytes())


class _TextFile:
    """The texts of a leaf as tensordict stores a ``NonTensorStack``: a list in a JSON file."""

    def __init__(self, leaf: Path) -> None:
        leaf.mkdir(parents=True)
        self._file = (leaf / METADATA).open("x", encoding="utf-8")
        described = json.dumps({**_STACK, "stack_dim": 0, "device": None})
        self._file.write(described[:-1] + ', "data": [')
        self._separator = ""

    def close(self) -> None:
        with self._file:
            self._file.write("]}")

    def write(self, rows: NDArray[Any]) -> None:
        """Add rows [n, ...]."""
        for row in rows.tolist():
            self._file.write(self._separator + json.dumps(row))
            self._separator = ", "


def _leaves(schema: Schema) -> dict[str, Field]:
    leaves = {path: _leaf(schema[name], name) for name, path in ted_paths(schema).items()}
    leaves |= {f"next/{name}": schema[name] for name in schema.names(Role.OBSERVATION)}
    leaves |= dict.fromkeys(_FLAGS, _FLAG) | {"next/done": _FLAG}
    return {**leaves, **LOCATIONS}


def _leaf(field: Field, name: str) -> Field:
    return Field(field.dtype, (1,), field.role) if name in SCALAR_COLUMNS else field


def _rows(experience: Experience, piece: Piece) -> Iterator[tuple[str, NDArray[Any]]]:
    schema = experience.schema
    for name, path in ted_paths(schema).items():
        yield path, piece.rows(name)
    for name in schema.names(Role.OBSERVATION):
        yield f"next/{name}", piece.next(name)
    never = np.zeros(piece.steps, bool)
    yield from ((name, never) for name in _FLAGS)
    yield "next/done", np.logical_or(piece.data["terminated"], piece.data["truncated"])
    yield from locations(experience, piece).items()


def _save_metadata(directory: Path, node: Mapping[str, Any], steps: int) -> None:
    """Create a directory, and those below it, with the metadata of their leaves."""
    directory.mkdir()
    described: dict[str, Any] = {}
    for name, value in node.items():
        if isinstance(value, Field) and value.is_text:
            described[name] = {"type": TEXT_CLASSES[0]}
        elif isinstance(value, Field):
            shape = [steps, *value.shape]
            described[name] = {"device": "cpu", "shape": shape, "dtype": f"torch.{value.dtype}", "is_nested": False}
        else:
            described[name] = {"type": "TensorDict"}
            _save_metadata(directory / name, value, steps)
    described |= {"shape": [steps], "device": "cpu", "_type": _CLASS}
    (directory / METADATA).write_text(json.dumps(described), encoding="utf-8")


DATASETS = TorchRLExporter()
