import gzip
import hashlib
import json
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rlx.errors import CorruptShardError, SourceNotFoundError
from rlx.formats.common.source import MAX_BLOCK_STEPS, Layout, SkimmedSource
from rlx.formats.rl_unplugged import GAMES, GAMES_MISSING, num_shards, reader, shard_file
from rlx.formats.rl_unplugged.reader import RLUnplugged, RLUnpluggedLayout, decode_frames, find_runs
from rlx.store.codec import DEFAULT
from rlx.store.dictionary import REFERENCE_ROWS, SAMPLES, reference_frames
from rlx.store.writer import ShardFormat, train_dictionaries
from rlx.testing.source import SourceContract, merge, read, same
from rlx.verbs.inputs import open_source
from scripts.make_sample import SAMPLE_RUN
from scripts.rlu_writer import tf_example, write_shard
from tests.rlu_files import make_episode, write_run

SHARED = Path(__file__).parents[3] / "../shared/data/rl_unplugged"


class TestSample(SourceContract):
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        shutil.copytree(SAMPLE_RUN, tmp_path / "run")
        return tmp_path / "run"

    @pytest.fixture
    def source(self, root: Path) -> RLUnplugged:
        return find_runs(root)[0]


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("long")
    write_run(path, "Gravitar", 1, {0: [3, MAX_BLOCK_STEPS, 1], 48: [2 * MAX_BLOCK_STEPS + 1]})
    return path


class TestLongEpisodes(SourceContract):
    @pytest.fixture
    def root(self, long_run: Path, tmp_path: Path) -> Path:
        return shutil.copytree(long_run, tmp_path, dirs_exist_ok=True)

    @pytest.fixture
    def source(self, root: Path) -> RLUnplugged:
        return RLUnplugged(root, "Gravitar", 1, present=(0, 48))


def test_games() -> None:
    assert (len(GAMES), len(GAMES_MISSING), len({*GAMES, *GAMES_MISSING})) == (46, 14, 60)
    assert [game for game in GAMES if num_shards(game) == 49] == ["Carnival", "Gravitar", "StarGunner"]
    assert shard_file("Gravitar", 2, 48) == "Gravitar/run_2-00048-of-00049"


@pytest.mark.parametrize("lengths", [[5, 1, 0, 7], [MAX_BLOCK_STEPS + 3, 0, 2 * MAX_BLOCK_STEPS, 9], [0], []])
def test_a_dictionary_needs_few_frames(lengths: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, "Pong", 5, {3: lengths})
    source = RLUnplugged(tmp_path, "Pong", 5)
    shards = ShardFormat(source.schema, "zarr", DEFAULT)
    expected = train_dictionaries(source.blocks(3, Counter()), shards)
    decoded: list[int] = []

    def counted(pngs: Sequence[memoryview], *, first: int) -> NDArray[np.uint8]:
        decoded.append(len(pngs))
        return decode_frames(pngs, first=first)

    monkeypatch.setattr(reader, "decode_frames", counted)
    assert isinstance(source, SkimmedSource)
    assert train_dictionaries(source.skim(3), shards) == expected
    assert sum(decoded) <= reference_frames(REFERENCE_ROWS, 84 * 84, DEFAULT.level) + SAMPLES


def test_a_damaged_frame_is_named_when_it_is_decoded(tmp_path: Path) -> None:
    source = RLUnplugged(tmp_path, "Pong", 5)
    episode = make_episode(3).features()
    kind, pngs = episode["observations"]
    example = tf_example({**episode, "observations": (kind, [*pngs[:2], b"x", *pngs[3:]])})
    (tmp_path / "Pong").mkdir()
    write_shard(tmp_path / shard_file("Pong", 5, 0), [example])
    (skimmed,) = source.skim(0)
    assert skimmed.data["observation"][1].shape == (84, 84)
    with pytest.raises(CorruptShardError, match=r"record 0: frame 2: expected a PNG .* expected RL Unplugged's layout"):
        skimmed.data["observation"][2]


@pytest.mark.parametrize("packed", [True, False])
def test_rows(tmp_path: Path, packed: bool) -> None:
    lengths = [5, 1, 0, MAX_BLOCK_STEPS + 3, 7]
    written = write_run(tmp_path, "Pong", 5, {3: lengths}, packed=packed)[3]
    source = RLUnplugged(tmp_path, "Pong", 5)
    dropped: Counter[str] = Counter()
    found = merge(source.blocks(3, dropped), source.schema)
    assert dropped == {"terminal_filler": 3, "cut": 1, "single_row_episode": 1}
    assert [trajectory.steps for trajectory in found] == [5, 1, MAX_BLOCK_STEPS + 3, 7]
    for trajectory, episode in zip(found, [e for e in written if len(e.actions) > 1], strict=True):
        assert trajectory.episode == 3 * 10**10 + episode.number
        assert trajectory.from_reset
        assert trajectory.final_recorded
        assert np.array_equal(trajectory["observation"], episode.observations)
        assert np.array_equal(trajectory["action"], episode.actions[:-1])
        assert np.array_equal(trajectory["reward"], episode.rewards[:-1])
        assert trajectory["terminated"][-1] == episode.terminated
        assert trajectory["truncated"][-1] != episode.terminated
        assert trajectory.cut != episode.terminated


def test_long_episodes_come_in_open_blocks(tmp_path: Path) -> None:
    write_run(tmp_path, "Pong", 1, {0: [2 * MAX_BLOCK_STEPS + 1]})
    blocks = list(RLUnplugged(tmp_path, "Pong", 1).blocks(0, Counter()))
    assert [(block.steps, block.is_open) for block in blocks] == [
        (MAX_BLOCK_STEPS, True),
        (MAX_BLOCK_STEPS, True),
        (1, False),
    ]


def expected_files() -> list[str]:
    path = SHARED / "expected.json"
    return sorted(json.loads(path.read_text())) if path.exists() else ["absent"]


@pytest.mark.parametrize("name", expected_files())
def test_files_written_by_tensorflow(name: str) -> None:
    if name == "absent":
        pytest.skip("no directory shared/ beside the clone")
    game, file = name.split("/")
    run, shard = int(file[4]), int(file[6:11])
    source = next(source for source in find_runs(SHARED) if source.id == f"{game}/{run}")
    assert source.files(shard) == (name,)
    expected = json.loads((SHARED / "expected.json").read_text())[name]
    found = read(source, shard)
    assert len(found) == len(expected)
    for trajectory, episode in zip(found, expected, strict=True):
        assert trajectory.episode % 10**10 == episode["episode"]
        assert trajectory.steps == episode["steps"]
        assert bool(trajectory["terminated"][-1]) == episode["terminated"]
        assert hashlib.sha256(trajectory["observation"].tobytes()).hexdigest() == episode["obs_sha256"]
        assert trajectory["reward"].sum() == episode["clipped_return"]
        assert hashlib.sha256(trajectory["action"].astype("<i8").tobytes()).hexdigest() == episode["action_sha256"]
        assert hashlib.sha256(trajectory["reward"].astype("<f4").tobytes()).hexdigest() == episode["reward_sha256"]


def test_sample_holds_the_episodes_that_were_played() -> None:
    (source,) = find_runs(SAMPLE_RUN)
    found = {shard: read(source, shard) for shard in source.shards()}
    assert source.id == "Pong/5"
    assert {shard: [trajectory.steps for trajectory in found[shard]] for shard in found} == {
        0: [871],
        1: [300, 200, 100],
        2: [870, 150],
    }
    ended = [found[0][0], found[2][0]]
    assert all(trajectory["terminated"][-1] and trajectory["reward"].min() == -1 for trajectory in ended)
    assert all(trajectory["truncated"][-1] for trajectory in (*found[1], found[2][1]))


Features = dict[str, tuple[int, Sequence[Any]]]


def without(name: str) -> Features:
    return {key: value for key, value in make_episode(4).features().items() if key != name}


def changed(name: str, kind: int, values: Sequence[Any]) -> Features:
    return {**make_episode(4).features(), name: (kind, values)}


def test_unclipped_rewards_serve_where_the_clipped_are_missing(tmp_path: Path) -> None:
    write_shard(tmp_path / shard_file("Pong", 1, 0), [tf_example(without("clipped_rewards"))])
    assert read(RLUnplugged(tmp_path, "Pong", 1), 0)[0]["reward"].tolist() == [-1, 0, 1, -1]


@pytest.mark.parametrize(
    ("features", "problem"),
    [
        pytest.param(without("observations"), "observations: expected at least one", id="no observations"),
        pytest.param(changed("observations", 1, []), "observations: expected at least one", id="no row"),
        pytest.param(changed("observations", 3, [1] * 5), "observations: expected", id="numbers for pictures"),
        pytest.param(changed("observations", 1, [b"x"] * 5), "frame 0: expected a PNG", id="no pictures"),
        pytest.param(without("actions"), "actions: expected a list of int64, found none", id="no actions"),
        pytest.param(changed("actions", 3, [1] * 4), "actions: expected 5 values, found 4", id="short actions"),
        pytest.param(changed("actions", 2, [1.0] * 5), "actions: expected a list of int64", id="float actions"),
        pytest.param(
            changed("discounts", 2, [1, 0, 1, 1, 0]),
            "discounts: expected numbers from 0 to 1",
            id="early end",
        ),
        pytest.param(changed("discounts", 2, [1, 1, 1, 1, np.nan]), "discounts", id="nan discount"),
        pytest.param(changed("clipped_rewards", 2, [np.inf] * 5), "expected finite", id="infinite reward"),
        pytest.param(changed("checkpoint_idx", 3, [-1]), "checkpoint_idx, episode_idx", id="negative checkpoint"),
        pytest.param(without("episode_idx"), "episode_idx: expected", id="no episode"),
    ],
)
def test_malformed_episodes(tmp_path: Path, features: Features, problem: str) -> None:
    good = tf_example(make_episode(2).features())
    name = shard_file("Pong", 1, 0)
    write_shard(tmp_path / name, [good, tf_example(features)])
    with pytest.raises(CorruptShardError, match=f"{name} is corrupt: record 1: .*{problem}"):
        read(RLUnplugged(tmp_path, "Pong", 1), 0)


def test_damage_is_always_noticed(tmp_path: Path) -> None:
    rng = random.Random(11)
    write_run(tmp_path, "Pong", 1, {0: [3, 2]})
    source = RLUnplugged(tmp_path, "Pong", 1)
    path = tmp_path / shard_file("Pong", 1, 0)
    whole, whole_stream, good = path.read_bytes(), gzip.decompress(path.read_bytes()), read(source, 0)
    noticed = 0
    for case in range(600):
        # Damage inside the gzip as well as to it: there only the records' own checksums are left.
        damaged = bytearray(whole if case % 2 else whole_stream)
        if case % 3:
            bit = rng.randrange(len(damaged) * 8)
            damaged[bit // 8] ^= 1 << (bit % 8)
        else:
            damaged = damaged[: rng.randrange(len(damaged))]
        path.write_bytes(damaged if case % 2 else gzip.compress(damaged, 1))
        try:
            read_again = read(source, 0)
        except CorruptShardError:
            noticed += 1
        else:
            # A flip in the gzip header's time, or a cut between two records.
            assert same(read_again, good[: len(read_again)])
    assert noticed > 500


def test_layout_knows_the_names_beforehand(tmp_path: Path) -> None:
    layout: Layout = RLUnpluggedLayout("Carnival", 3)
    source = layout.source(tmp_path)
    assert layout.index_files() == ()
    assert list(source.shards()) == list(range(49))
    assert source.files(7) == ("Carnival/run_3-00007-of-00049",)
    with pytest.raises(SourceNotFoundError, match="run_3-00007-of-00049 does not exist"):
        read(source, 7)
    with pytest.raises(SourceNotFoundError, match="Carnival/3 has no shard 49, expected 0 to 48"):
        source.files(49)


@pytest.mark.parametrize(
    ("game", "message", "hint"),
    [
        ("Pongg", "no game 'Pongg', expected one of its 46", "did you mean Pong?"),
        ("mspacman", "no game 'mspacman'", "did you mean MsPacman?"),
        ("../../etc", "no game", "rlx list --remote"),
        ("Skiing", "lacks Skiing; of the 60 games it left out AirRaid.*Venture", "rlx collect ALE/Skiing-v5"),
    ],
)
def test_unknown_games(game: str, message: str, hint: str) -> None:
    with pytest.raises(SourceNotFoundError, match=message) as caught:
        RLUnpluggedLayout(game, 1)
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize("run", [0, 6, -1])
def test_unknown_runs(run: int) -> None:
    with pytest.raises(SourceNotFoundError, match=f"Pong has no run {run}, expected 1 to 5"):
        RLUnplugged(Path(), "Pong", run)


def test_find_runs(tmp_path: Path) -> None:
    root = tmp_path / "atari_episodes_ordered"
    write_run(root, "Pong", 5, {2: [1], 0: [1]})
    write_run(root, "Pong", 1, {49: [1]})
    write_run(root, "Alien", 2, {0: [1]})
    for other in (
        "run_5-00001-of-00049",
        "run_6-00001-of-00050",
        "run_5-00001-of-00050.partial",
        "notes.txt",
    ):
        (root / "Pong" / other).write_bytes(b"")
    expected = [
        RLUnplugged(root, "Alien", 2, (0,)),
        RLUnplugged(root, "Pong", 1, (49,)),
        RLUnplugged(root, "Pong", 5, (0, 2)),
    ]
    assert find_runs(root) == expected
    assert find_runs(tmp_path) == expected
    assert find_runs(root / "Pong") == expected[1:]
    assert find_runs(tmp_path / "absent") == []


def test_a_feature_that_others_added_is_named_before_reading(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    features = {**make_episode(3).features(), "q_values": (2, [0.5] * 4)}
    write_shard(tmp_path / shard_file("Pong", 1, 0), [tf_example(features)])
    (source,) = find_runs(tmp_path)
    assert source.notes["not_taken"] == {"q_values": "not a feature of RL Unplugged"}
    open_source(tmp_path / "Pong", None)
    assert "1 entry left out: q_values (not a feature of RL Unplugged)" in caplog.text
