"""Sources with a bit flipped or an end cut off, through ``convert``: a named error or the very same data."""

import gzip
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rlx.errors import SourceError
from rlx.store.codec import Codec
from rlx.testing.source import Trajectory, same
from tests.verbs.datasets import check_listed, converted, trajectories, write_dopamine, write_rlu

CASES = 50
FAST = Codec.parse("lz4")
Damage = Callable[[bytes, random.Random], bytes]


def flip(content: bytes, dice: random.Random) -> bytes:
    place = dice.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << dice.randrange(8)]) + content[place + 1 :]


def cut(content: bytes, dice: random.Random) -> bytes:
    return content[: dice.randrange(len(content))]


def inside_gzip(damage: Damage) -> Damage:
    """What a checksum of gzip does not see."""
    return lambda content, dice: gzip.compress(damage(gzip.decompress(content), dice), mtime=0)


DAMAGES: list[Damage] = [flip, cut, inside_gzip(cut), flip]


@pytest.mark.parametrize("layout", ["rlu", "dopamine"])
def test_damaged_sources(layout: str, tmp_path: Path) -> None:
    dice = random.Random(layout)
    write = write_rlu if layout == "rlu" else write_dopamine
    files = write(tmp_path / "files")
    whole = trajectories(converted(files, tmp_path / "undisturbed", codec=FAST).dataset)
    paths = sorted(path for path in files.rglob("*") if path.is_file())
    failed = 0
    for case in range(CASES):
        path, damage = dice.choice(paths), DAMAGES[case % len(DAMAGES)]
        content = path.read_bytes()
        path.write_bytes(damage(content, dice))
        failed += is_refused(files, tmp_path / f"{case}", whole)
        path.write_bytes(content)
    assert failed > CASES // 2


def is_refused(files: Path, destination: Path, whole: Sequence[Trajectory]) -> bool:
    """Whether a damage was noticed; fails if it was not and the data are others."""
    try:
        report = converted(files, destination, codec=FAST)
    except SourceError:
        assert not destination.exists()
        return True
    names = check_listed(destination)
    assert not set(names) & set(report.failed_shards)
    assert all(isinstance(error, SourceError) for error in report.failures.values())
    found = trajectories(destination) if names else []
    assert all(any(same([one], [other]) for other in whole) for one in found)
    assert report.failures or len(found) == len(whole)
    return bool(report.failures)
