"""One episode of a Minari dataset in blocks."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import h5py
import imagecodecs
import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import CorruptShardError
from rlx.formats.common.checks import check_field
from rlx.formats.common.hdf5 import file as hdf5_file
from rlx.formats.common.hdf5.text import TextRows, is_text
from rlx.formats.minari.fields import CUT, Leaf, is_jpeg
from rlx.schema import Field, Role, Schema


class Episode:
    """An episode whose fields are known to be there, of the right type and length; a context, which closes it.

    Raises:
        CorruptShardError: it lacks a field, or has one of another type or length than it should.
    """

    def __init__(self, file: h5py.File, number: int, schema: Schema, leaves: Mapping[str, Leaf]) -> None:
        group = hdf5_file.group(file, f"episode_{number}")
        self._number = number
        self._schema = schema
        self._leaves = leaves
        self._is_cut = hdf5_file.mark(group, CUT) is not None
        self._stack = ExitStack()
        self._datasets = {name: hdf5_file.dataset(group, leaf.path) for name, leaf in leaves.items()}
        self.steps = self._rows("reward")
        if (said := hdf5_file.attribute(group, "total_steps")) != self.steps:
            raise self._corrupt("reward", f"{said:,} rows as total_steps of the episode says", f"{self.steps:,}")
        for name, field in schema.fields.items():
            expected = self.steps + leaves[name].extra
            if self._rows(name) != expected:
                raise self._corrupt(name, f"{expected:,} rows", f"{self._rows(name):,}")
            self._check_type(name, field)
        self._texts = {
            name: self._stack.enter_context(TextRows(self._datasets[name]))
            for name, field in schema.fields.items()
            if field.is_text
        }

    def __enter__(self) -> "Episode":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def block(self, start: int, stop: int) -> Block:
        """Return the steps from ``start`` to ``stop``."""
        is_last = stop == self.steps
        data = {
            name: self._read(name, start, stop + (is_last and field.role == Role.OBSERVATION))
            for name, field in self._schema.fields.items()
        }
        for name in ("terminated", "truncated"):
            early = np.flatnonzero(data[name][: len(data[name]) - is_last])
            if len(early):
                raise self._corrupt(name, "it at the last step only", f"it at step {start + int(early[0]):,}")
        cut = is_last and not data["terminated"][-1] and (self._is_cut or not data["truncated"][-1])
        data["truncated"][-1] |= cut
        return Block(
            data,
            lengths=np.array([stop - start]),
            episodes=np.array([self._number]),
            from_reset=np.array([True]),
            final_recorded=np.array([True]),
            is_open=not is_last,
            cut=np.array([cut]),
        )

    def _rows(self, name: str) -> int:
        dataset = self._datasets[name]
        return int(dataset.shape[0]) if dataset.ndim else 0

    def _check_type(self, name: str, field: Field) -> None:
        dataset = self._datasets[name]
        if field.is_text:
            if not is_text(dataset) or dataset.shape[1:] != field.shape:
                raise self._corrupt(name, f"text{list(field.shape)}", f"{dataset.dtype}{list(dataset.shape[1:])}")
        elif is_jpeg(dataset, field):
            is_bytes = h5py.check_vlen_dtype(dataset.dtype) == np.uint8 or dataset.dtype == np.uint8
            if not is_bytes:
                raise self._corrupt(name, "JPEG pictures", str(dataset.dtype))
        elif dataset.dtype.name != field.dtype or dataset.shape[1:] != field.shape:
            found = f"{dataset.dtype.name}{list(dataset.shape[1:])}"
            raise self._corrupt(name, f"{field.dtype}{list(field.shape)}", found)

    def _read(self, name: str, start: int, stop: int) -> NDArray[Any]:
        dataset, field = self._datasets[name], self._schema[name]
        first = self._leaves[name].first
        start, stop = start + first, stop + first
        if field.is_text:
            return self._texts[name].read(start, stop)
        rows = hdf5_file.read(dataset, start, stop)
        check_field(name, field, rows, hdf5_file.place(dataset), start)
        if not is_jpeg(dataset, field):
            return rows
        pictures = np.empty((len(rows), *field.shape), np.uint8)
        for number, jpeg in enumerate(rows):
            pictures[number] = self._decode(name, jpeg, start + number, field.shape)
        return pictures

    def _decode(self, name: str, jpeg: NDArray[Any], row: int, shape: tuple[int, ...]) -> NDArray[Any]:
        try:
            picture: NDArray[Any] = imagecodecs.jpeg8_decode(jpeg.tobytes())
        except imagecodecs.Jpeg8Error as exc:
            raise self._corrupt(name, f"a JPEG picture at row {row:,}", str(exc)) from exc
        if picture.shape != shape:
            raise self._corrupt(name, f"a picture of {list(shape)} at row {row:,}", str(list(picture.shape)))
        return picture

    def _corrupt(self, name: str, expected: str, found: str) -> CorruptShardError:
        dataset = self._datasets[name]
        return CorruptShardError(f"{dataset.file.filename}: {dataset.name}: expected {expected}, found {found}")
