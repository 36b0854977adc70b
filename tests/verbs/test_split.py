"""``split``: every trajectory in exactly one part, whole shards linked."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlx
from rlx.errors import CorruptDatasetError, DatasetError, DatasetExistsError, OptionError
from rlx.manifest import FileRecord, Manifest
from rlx.store.codec import Codec
from rlx.store.dataset import Dataset
from rlx.store.verification import verify
from rlx.testing.source import same
from rlx.verbs.assembly import By, Division
from rlx.verbs.report import Report
from tests.factories import LARGE, make_block, write_dataset
from tests.verbs.datasets import shard_trees, trajectories, tree


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    shards = [[make_block([2 + n % 3 for n in range(5)], first_episode=5 * shard, schema=LARGE)] for shard in range(4)]
    return write_dataset(tmp_path / "set", shards, schema=LARGE).path


def shared_out(
    dataset: Path, names: str, division: Division, *, part: int | None = None, jobs: int = 1, overwrite: bool = False
) -> list[Report]:
    destinations = [dataset.parent / name for name in names]
    return rlx.split(
        dataset,
        division.fractions,
        by=division.by.value,
        seed=division.seed,
        part=part,
        output=destinations,
        jobs=jobs,
        overwrite=overwrite,
    )


def episodes(dataset: Path) -> list[int]:
    numbers: list[int] = Dataset(dataset).trajectories.episode.tolist()
    return numbers


class TestDivision:
    @given(
        st.integers(1, 300),
        st.lists(st.integers(1, 20), min_size=1, max_size=5),
        st.integers(0, 9),
        st.integers(0, 2**32),
    )
    def test_each_in_one_part_as_large_as_asked_for(self, count: int, weights: list[int], rest: int, seed: int) -> None:
        total = sum(weights) + rest
        division = Division([weight / total for weight in weights], seed=seed)
        try:
            parts = division.parts(count)
        except DatasetError:
            assert count * min(weights) / total < 1
            return
        sizes = np.bincount(parts + 1, minlength=len(weights) + 1)
        wanted = count * np.array([rest, *weights]) / total
        assert sizes.sum() == count
        assert (np.abs(sizes - wanted) <= 1).all()
        assert rest > 0 or sizes[0] == 0
        assert np.array_equal(parts, division.parts(count))

    def test_another_seed_is_another_choice(self) -> None:
        choices = {tuple(Division([0.5, 0.5], seed=seed).parts(20).tolist()) for seed in range(5)}
        assert len(choices) == 5

    @pytest.mark.parametrize(
        ("fractions", "problem"),
        [
            ([0.9, 0.2], "fractions 0.9,0.2 add up to 1.1, expected at most 1"),
            ([0.9, 0.0], "expected numbers above 0, at most 1"),
            ([-0.1], "expected numbers above 0, at most 1"),
            ([float("nan")], "expected numbers above 0, at most 1"),
            ([1.5], "expected numbers above 0, at most 1"),
            ([], "expected numbers above 0, at most 1"),
        ],
    )
    def test_what_is_no_division_is_named(self, fractions: list[float], problem: str) -> None:
        with pytest.raises(OptionError, match=problem):
            Division(fractions)

    @pytest.mark.parametrize(("by", "problem"), [(By.TRAJECTORY, "0.01 of 20 trajectories"), (By.SHARD, "4 shards")])
    def test_a_part_without_any_is_named(self, dataset: Path, by: By, problem: str) -> None:
        with pytest.raises(DatasetError, match=f"part 2 would be empty: .*{problem}"):
            shared_out(dataset, "ab", Division([0.9, 0.01], by))
        assert not (dataset.parent / "a").exists()


class TestWhatComesOut:
    @pytest.mark.parametrize(("by", "jobs"), [(By.TRAJECTORY, 1), (By.TRAJECTORY, 2), (By.SHARD, 1)])
    def test_every_trajectory_in_exactly_one_part(self, dataset: Path, by: By, jobs: int) -> None:
        before = tree(dataset)
        reports = shared_out(dataset, "abc", Division([0.5, 0.25, 0.25], by), jobs=jobs)
        parts = [report.dataset for report in reports]
        assert sorted(number for part in parts for number in episodes(part)) == list(range(20))
        for part in parts:
            wanted = [one for one in trajectories(dataset) if one.episode in episodes(part)]
            assert same(trajectories(part), wanted)
            assert verify(part).ok
        assert [report.trajectories for report in reports] == [10, 5, 5]
        assert [report.steps_written for report in reports] == [report.steps for report in reports]
        assert tree(dataset) == before

    def test_whole_shards_are_linked(self, dataset: Path) -> None:
        parts = [report.dataset for report in shared_out(dataset, "ab", Division([0.75, 0.25], By.SHARD))]
        there = {path.stat().st_ino for path in dataset.rglob("*") if path.is_file()}
        for part in parts:
            assert {path.stat().st_ino for path in (part / "shards").rglob("*") if path.is_file()} <= there
        shards = shard_trees(parts[0]) | shard_trees(parts[1])
        assert shards == shard_trees(dataset)

    def test_the_rest_is_left_out(self, dataset: Path) -> None:
        (report,) = shared_out(dataset, "a", Division([0.3], seed=4))
        chosen = Division([0.3], seed=4).parts(20)
        assert episodes(report.dataset) == np.flatnonzero(chosen == 0).tolist()

    def test_one_part_alone_is_the_same(self, dataset: Path) -> None:
        division = Division([0.5, 0.5], seed=1)
        parts = shared_out(dataset, "ab", division)
        (alone,) = shared_out(dataset, "c", division, part=2)
        assert tree(alone.dataset) == tree(parts[1].dataset)

    def test_lineage(self, dataset: Path) -> None:
        reports = shared_out(dataset, "ab", Division([0.5, 0.5], seed=3))
        listed = Manifest.load(reports[1].dataset)
        assert (listed.id, listed.codec, listed.store) == ("Test/1-2", Codec.parse("zstd-dict").to_json(), "zarr")
        made = listed.lineage[-1]
        assert made["command"] == f"rlx split {dataset} --fractions 0.5,0.5 --seed 3 --part 2"
        assert made["parents"] == [{"id": "Test/1", "crc32c": FileRecord.of(dataset / "rlx.json").crc32c}]
        assert made["split"] == {"fractions": [0.5, 0.5], "by": "trajectory", "seed": 3, "part": 2}

    def test_shards_keep_their_numbers(self, tmp_path: Path) -> None:
        blocks = [[make_block([3, 3], first_episode=2 * shard, schema=LARGE)] for shard in range(3)]
        write_dataset(tmp_path / "set", [blocks[0], [], *blocks[1:]], schema=LARGE)
        (report,) = shared_out(tmp_path / "set", "a", Division([1.0]))
        assert [shard.name for shard in Manifest.load(report.dataset).shards] == ["00000", "00002", "00003"]


class TestResume:
    def test_again_there_is_nothing_to_do(self, dataset: Path) -> None:
        division = Division([0.5, 0.5])
        shared_out(dataset, "ab", division)
        before = tree(dataset.parent / "a")
        assert [report.steps_written for report in shared_out(dataset, "ab", division)] == [0, 0]
        assert tree(dataset.parent / "a") == before

    def test_otherwise_it_is_refused(self, dataset: Path) -> None:
        shared_out(dataset, "ab", Division([0.5, 0.5]))
        with pytest.raises(DatasetExistsError, match=r"its split is .*'seed': 0.*expected .*'seed': 1"):
            shared_out(dataset, "ab", Division([0.5, 0.5], seed=1))
        shared_out(dataset, "ab", Division([0.5, 0.5], seed=1), overwrite=True)
        assert sorted(episodes(dataset.parent / "a") + episodes(dataset.parent / "b")) == list(range(20))

    def test_a_damaged_shard_leaves_the_others(self, dataset: Path) -> None:
        damaged = dataset / "shards/00002/reward/c/0"
        damaged.write_bytes(bytes([damaged.read_bytes()[0] ^ 1]) + damaged.read_bytes()[1:])
        with pytest.raises(CorruptDatasetError, match="00002"):
            shared_out(dataset, "a", Division([0.5]))
        assert [shard.name for shard in Manifest.load(dataset.parent / "a").shards] == ["00000", "00001"]


class TestPlaces:
    @pytest.mark.parametrize(
        "names", [["set", "a"], ["a", "a"], ["a", "a/b"], ["a/b", "a"], ["set/x", "a"], [".", "a"]]
    )
    def test_that_would_overwrite_something(self, dataset: Path, names: list[str]) -> None:
        before = tree(dataset)
        destinations = [dataset.parent / name for name in names]
        with pytest.raises(DatasetExistsError):
            rlx.split(dataset, [0.5, 0.5], output=destinations, overwrite=True)
        assert tree(dataset) == before
        assert not (dataset.parent / "a").exists()

    def test_one_directory_under_two_names(self, dataset: Path) -> None:
        there = dataset.parent / "there"
        there.mkdir()
        (dataset.parent / "link").symlink_to(there)
        (dataset.parent / "dangling").symlink_to(dataset.parent / "a")
        for one, other in (("there", "link"), ("./there", "there"), ("link/a", "there/a"), ("a", "dangling")):
            destinations = [f"{dataset.parent}/{one}", f"{dataset.parent}/{other}"]
            with pytest.raises(DatasetExistsError, match="is given twice"):
                rlx.split(dataset, [0.5, 0.5], output=destinations, overwrite=True)
        assert not list(there.iterdir())
        assert not (dataset.parent / "a").exists()
        with pytest.raises(DatasetExistsError, match="there is given twice: expected a directory for each part"):
            rlx.split(dataset, [0.5, 0.5], output=[there, there])

    def test_names_that_differ_in_case(self, dataset: Path) -> None:
        if (dataset.parent / "SET").exists():
            pytest.skip("the file system ignores case")
        reports = rlx.split(dataset, [0.5, 0.5], output=[dataset.parent / "a", dataset.parent / "A"])
        assert [report.dataset.name for report in reports] == ["a", "A"]

    def test_too_few(self, dataset: Path) -> None:
        with pytest.raises(OptionError, match="found 2 directories for 3 parts"):
            shared_out(dataset, "ab", Division([0.5, 0.2, 0.3]))
        with pytest.raises(OptionError, match="`part` 3: expected 1 to 2"):
            shared_out(dataset, "a", Division([0.5, 0.5]), part=3)
