"""Writes files in RL Unplugged's layout, for the sample run, the tests and the benchmarks."""

import gzip
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import imagecodecs
import numpy as np
from numpy.typing import NDArray

from rlx.formats.common.record_files import masked

_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Episode:
    """One record: T rows, the last of which is filler where ``terminated``."""

    checkpoint: int
    number: int
    observations: NDArray[np.uint8]
    actions: NDArray[np.int64]
    rewards: NDArray[np.float32]
    terminated: bool

    def features(self) -> dict[str, tuple[int, Sequence[Any]]]:
        """What the record holds: kind of list and values, by name."""
        discounts = np.ones(len(self.actions), np.float32)
        discounts[-1] = not self.terminated
        total = [float(self.rewards.sum())]
        return {
            "actions": (_INT64_LIST, self.actions.tolist()),
            "checkpoint_idx": (_INT64_LIST, [self.checkpoint]),
            "clipped_episode_return": (_FLOAT_LIST, total),
            "clipped_rewards": (_FLOAT_LIST, self.rewards.tolist()),
            "discounts": (_FLOAT_LIST, discounts.tolist()),
            "episode_idx": (_INT64_LIST, [self.number]),
            "episode_return": (_FLOAT_LIST, total),
            "observations": (_BYTES_LIST, [imagecodecs.png_encode(frame) for frame in self.observations]),
            "unclipped_rewards": (_FLOAT_LIST, self.rewards.tolist()),
        }


def write_shard(path: Path, examples: Iterable[bytes]) -> None:
    """Writes a gzipped TFRecord file, the same bytes for the same examples at any time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stream = b"".join(tf_record(example) for example in examples)
    path.write_bytes(gzip.compress(stream, mtime=0))


def tf_record(data: bytes) -> bytes:
    """One record as it stands in a TFRecord file."""
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def tf_example(features: Mapping[str, tuple[int, Sequence[Any]]], *, packed: bool = True) -> bytes:
    """``tf.train.Example`` as protobuf bytes, its numbers packed or one by one."""
    entries = (
        message(1, message(1, name.encode()) + message(2, message(kind, _values(kind, values, packed))))
        for name, (kind, values) in features.items()
    )
    return message(1, b"".join(entries))


def message(number: int, content: bytes) -> bytes:
    """One length-delimited field of a protobuf message."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    """An integer as protobuf writes it, negative ones in two's complement."""
    value &= (1 << 64) - 1
    groups = bytearray()
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*groups, value))


def _values(kind: int, values: Sequence[Any], packed: bool) -> bytes:
    if kind == _BYTES_LIST:
        return b"".join(message(1, value) for value in values)
    numbers = [varint(value) if kind == _INT64_LIST else struct.pack("<f", value) for value in values]
    if packed:
        return message(1, b"".join(numbers))
    tag = varint(1 << 3 | (0 if kind == _INT64_LIST else 5))
    return b"".join(tag + number for number in numbers)


def _checksum(data: bytes) -> bytes:
    return struct.pack("<I", masked(google_crc32c.value(data)))
