"""Reading steps at any indices, across shards, every observation decoded once: numpy in, numpy out."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptDatasetError
from rlx.store.array import ArrayReader, Rows
from rlx.store.chunk_codec import ZstdChunks
from rlx.store.raw_file import RawFileReader
from rlx.store.sharding import ShardFileReader
from rlx.store.shards import Shards
from rlx.store.trajectories import Trajectories

Indices = NDArray[np.int64]


class StepReader:
    """Reads the fields of steps.

    Attributes:
        trajectories: the table of the whole dataset.
        start: [N] first step of each trajectory.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self.trajectories: Trajectories = shards.trajectories()
        self.start: Indices = self.trajectories.start
        self._last = self.start + self.trajectories.length - 1
        self._flags = {"terminated": self.trajectories.terminated, "truncated": self.trajectories.truncated}

    def trajectory_of(self, steps: Indices) -> Indices:
        """[n] which trajectory each of these steps belongs to."""
        return np.searchsorted(self.start, steps, side="right") - 1

    def read(self, name: str, steps: Indices, trajectory: Indices) -> Rows:
        """[n, *shape] of a field that has a row a step, in the order asked for.

        Args:
            name: a field of role ``step`` or ``next``.
            steps: [n] indices in range.
            trajectory: [n] the trajectory of each.
        """
        if name in self._flags:
            # Only the last step of a trajectory can carry a flag, so the table knows; no shard is touched.
            flags: Rows = self._flags[name][trajectory] & (self._last[trajectory] == steps)
            return flags
        return self._gather(name, steps, self._shards.of_steps(steps), self._shards.first_step)

    def read_observations(self, name: str, steps: Indices, trajectory: Indices) -> tuple[Rows, Rows]:
        """[n, *shape] of an observation at each step and of the one that followed it.

        An observation that is both, as within a slice, is decoded once. For consecutive steps of one trajectory the two
        results are views of the same rows.
        """
        rows = steps + trajectory
        follows = np.empty(len(rows), bool)  # whether the next observation is the observation of the next index
        follows[-1:] = False
        np.equal(rows[1:], rows[:-1] + 1, out=follows[:-1])
        extra = np.flatnonzero(~follows)
        wanted = np.concatenate([rows, rows[extra] + 1])
        shard = self._shards.of_steps(steps)
        read = self._gather(name, wanted, np.concatenate([shard, shard[extra]]), self._shards.first_row)
        n = len(rows)
        if len(extra) == n:
            return read[:n], read[n:]
        if len(extra) == 1:
            return read[:n], read[1:]
        position = np.arange(1, n + 1)
        position[extra] = np.arange(n, n + len(extra))
        return read[:n], read.take(position, axis=0)

    def _gather(self, name: str, rows: Indices, shard: Indices, first: Indices) -> Rows:
        """Rows of one field, given by their place in the dataset and the shard they are in."""
        if not len(rows):
            field = self._shards.schema[name]
            return np.empty((0, *field.shape), field.dtype)
        lowest, highest = int(shard.min()), int(shard.max())
        if lowest == highest:
            return self._shards[lowest].arrays[name].read(rows - first[lowest])
        return self._gather_across(name, rows - first[shard], shard)

    def _gather_across(self, name: str, local: Indices, shard: Indices) -> Rows:
        arrays = {number: self._shards[number].arrays[name] for number in np.unique(shard).tolist()}
        readers = list(arrays.values())
        field = self._shards.schema[name]
        pairs = zip(shard.tolist(), local.tolist(), strict=True)
        if field.shape == () and all(isinstance(reader, RawFileReader) for reader in readers):
            # An item at a time beats a numpy call a shard, of which a batch touches nearly as many as it has steps.
            items = {number: reader.item for number, reader in arrays.items() if isinstance(reader, RawFileReader)}
            return np.array([items[number](row) for number, row in pairs], field.dtype)
        if codec := _common_codec(readers):
            frames = {number: reader.frame for number, reader in arrays.items() if isinstance(reader, ShardFileReader)}
            return self._decode(codec, [frames[number](row) for number, row in pairs], name)
        result = np.empty((len(local), *field.shape), field.dtype)
        for number, reader in arrays.items():
            here = shard == number
            result[here] = reader.read(local[here])
        return result

    def _decode(self, codec: ZstdChunks, frames: list[memoryview], name: str) -> Rows:
        field = self._shards.schema[name]
        try:
            decoded = codec.decode(frames)
        except CorruptDatasetError as exc:
            dataset = self._shards.dataset
            raise CorruptDatasetError(f"{dataset}: {name}: {exc}", hint=f"rlx verify {dataset}") from exc
        return decoded.reshape(-1).view(np.dtype(field.dtype).newbyteorder("<")).reshape(-1, *field.shape)


def _common_codec(readers: Sequence[ArrayReader]) -> ZstdChunks | None:
    """The codec of all these readers, if it is one and the same and decodes single rows."""
    first = readers[0]
    if not isinstance(first, ShardFileReader) or not isinstance(first.codec, ZstdChunks):
        return None
    shared = all(
        isinstance(reader, ShardFileReader) and reader.chunk == 1 and reader.codec is first.codec for reader in readers
    )
    return first.codec if shared else None
