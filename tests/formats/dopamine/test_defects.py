"""What TorchRL's AtariDQNExperienceReplay gets wrong of these files, by the numbers of the peer list: not so here."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from rlx.errors import CorruptShardError, SourceNotFoundError
from rlx.formats.dopamine.reader import Dopamine
from rlx.testing.source import Trajectory, merge, read
from tests.dopamine_files import PADDING, Episode, Ring, frame, remove_suffix

LENGTHS = (30, 41, 17, 60, 20, 33)


@pytest.fixture
def ring(tmp_path: Path) -> Ring:
    ring = Ring(tmp_path, 64)
    ring.run(Episode(length) for length in LENGTHS)
    return ring


@pytest.fixture
def source(ring: Ring) -> Dopamine:
    return Dopamine(ring.folder, ".", "Pong/1")


def read_run(source: Dopamine) -> list[Trajectory]:
    return [one for shard in source.shards() for one in read(source, shard)]


def rows_of(trajectory: Trajectory) -> list[int]:
    """Rows of the run that its observations came from, but for the final one."""
    flat = trajectory["observation"][: trajectory.steps].reshape(trajectory.steps, -1)
    return [int(number) - 1 for number in np.ascontiguousarray(flat).view("<u4").ravel()]


def test_c3_the_terminal_step_belongs_to_the_episode_it_ends(source: Dopamine) -> None:
    found = read_run(source)
    assert [one.steps for one in found] == list(LENGTHS)
    assert [np.flatnonzero(one["terminated"]).tolist() for one in found] == [[n - 1] for n in LENGTHS]
    assert [one.episode for one in found] == list(range(len(LENGTHS)))


def test_c4_padding_is_no_step(ring: Ring, source: Dopamine) -> None:
    dropped: Counter[str] = Counter()
    found = [one for shard in source.shards() for one in merge(source.blocks(shard, dropped), source.schema)]
    assert all(one["observation"][: one.steps].any(axis=(1, 2)).all() for one in found)
    assert dropped["padding"] == ring.journal.count(PADDING) == 3 * len(LENGTHS)


def test_c5_the_last_slot_is_the_row_between_two_files(ring: Ring, source: Dopamine) -> None:
    """Slot 63 of the first file was never written; of the others it comes before slot 0, not after slot 62."""
    rows = [row for one in read_run(source) for row in rows_of(one)]
    assert rows == [row for row, what in enumerate(ring.journal) if what != PADDING]
    assert {63, 127, 191} <= set(rows)


def test_c6_nothing_leaks_into_the_final_observation(source: Dopamine) -> None:
    for one in read_run(source):
        assert not one.final_recorded
        assert not one["observation"][-1].any()


def test_c7_an_episode_across_files_is_one_trajectory_in_order(source: Dopamine) -> None:
    across = read(source, 0)[-1]
    rows = rows_of(across)
    assert rows[0] < 63 < rows[-1]
    assert rows == list(range(rows[0], rows[0] + LENGTHS[1]))


def test_c8_a_missing_suffix_shifts_nothing(ring: Ring, source: Dopamine) -> None:
    whole = {shard: read(source, shard) for shard in source.shards()}
    remove_suffix(ring.folder, 1)
    left = Dopamine(ring.folder, ".", "Pong/1")
    assert left.shards() == [0, 2, 3]
    assert left.notes["missing_source_files"] == [1]
    for shard in left.shards():
        for one in read(left, shard):
            rows = rows_of(one)
            assert rows == list(range(rows[0], rows[-1] + 1))
            assert np.array_equal(one["observation"][0], frame(rows[0], (2, 2)))
    assert [one.steps for one in read(left, 2)][-1] == whole[2][-1].steps


def test_r4_a_missing_observation_file_is_named(ring: Ring, source: Dopamine) -> None:
    (ring.folder / "$store$_observation_ckpt.1.gz").unlink()
    with pytest.raises(SourceNotFoundError, match=r"\$store\$_observation_ckpt\.1\.gz is missing"):
        read(source, 1)


def test_r4_a_truncated_gz_is_named(ring: Ring, source: Dopamine) -> None:
    path = ring.folder / "$store$_observation_ckpt.0.gz"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptShardError, match=r"\$store\$_observation_ckpt\.0\.gz is corrupt"):
        read(source, 0)
