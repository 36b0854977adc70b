import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from rlx.buffer.ensemble import ReplayBufferEnsemble
from rlx.buffer.replay_buffer import ReplayBuffer
from rlx.buffer.sampler.slices import SliceSampler, SliceSamplerWithoutReplacement
from rlx.buffer.sampler.steps import SamplerWithoutReplacement
from rlx.buffer.transform.batches import FrameStack
from rlx.datasets.atari_dqn import AtariDQNExperienceReplay
from rlx.errors import (
    DatasetExistsError,
    DatasetNotFoundError,
    PartialError,
    SamplingError,
    SchemaMismatchError,
    SliceTooLongError,
    SourceNotFoundError,
)
from tests.conftest import SAMPLE_RUN

SOURCE = str(SAMPLE_RUN)
STEPS = 2491


@pytest.fixture
def root(pong: Path, tmp_path: Path) -> Path:
    """A directory with Pong/5 in it."""
    (tmp_path / "root/Pong").mkdir(parents=True)
    pong.rename(tmp_path / "root/Pong/5")
    return tmp_path / "root"


@pytest.fixture
def data(root: Path) -> AtariDQNExperienceReplay:
    return AtariDQNExperienceReplay("Pong/5", batch_size=128, root=root, seed=1)


def test_available_datasets() -> None:
    available = AtariDQNExperienceReplay.available_datasets
    assert len(available) == len(set(available)) == 46 * 5
    assert {"Pong/5", "Krull/2", "Asterix/5"} <= set(available)


def test_it_is_downloaded_once(home: Path) -> None:
    first = AtariDQNExperienceReplay("Pong/5", batch_size=8, source=SOURCE)
    assert (first.data_path, first.data_path_root, first.dataset_id) == (home / "Pong/5", home, "Pong/5")
    assert len(first) == STEPS
    written = (home / "Pong/5/rlx.json").stat().st_mtime_ns
    again = AtariDQNExperienceReplay("Pong/5", batch_size=8, source="/there/is/nothing")
    assert len(again) == STEPS
    assert (home / "Pong/5/rlx.json").stat().st_mtime_ns == written


def test_force_fetches_it_anew(root: Path) -> None:
    before = (root / "Pong/5/rlx.json").stat().st_mtime_ns
    AtariDQNExperienceReplay("Pong/5", root=root, download="force", source=SOURCE)
    assert (root / "Pong/5/rlx.json").stat().st_mtime_ns != before


def test_only_the_first_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AtariDQNExperienceReplay, "_max_runs", 2)
    data = AtariDQNExperienceReplay("Pong/5", root=tmp_path, source=SOURCE)
    assert data.dataset.shard_names == ["00000", "00001"]
    monkeypatch.setattr(AtariDQNExperienceReplay, "_max_runs", None)
    assert len(AtariDQNExperienceReplay("Pong/5", root=tmp_path, source="/nothing")) == len(data)


def test_what_failed_is_fetched_the_next_time(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(SAMPLE_RUN, source)
    damaged = source / "Pong/run_5-00001-of-00050"
    content = damaged.read_bytes()
    damaged.write_bytes(content[:1000])
    with pytest.raises(PartialError, match="shards failed: 00001"):
        AtariDQNExperienceReplay("Pong/5", root=tmp_path / "root", source=str(source))
    damaged.write_bytes(content)
    assert len(AtariDQNExperienceReplay("Pong/5", root=tmp_path / "root", source=str(source))) == STEPS


@pytest.mark.parametrize("id", ["Pong", "Pong/x", "../Pong/5", "Pnog/5"])
def test_no_such_dataset(id: str, tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError):
        AtariDQNExperienceReplay(id, root=tmp_path, source=SOURCE)


def test_without_download_it_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="no dataset Pong/5 in"):
        AtariDQNExperienceReplay("Pong/5", root=tmp_path, download=False)


def test_examples_of_torchrls_page(data: AtariDQNExperienceReplay, root: Path) -> None:
    batch = next(iter(data))
    assert batch.batch_size == (128,)
    assert (batch["observation"].shape, batch["observation"].dtype) == ((128, 84, 84), torch.uint8)
    assert batch["next", "reward"].shape == batch["next", "done"].shape == batch["done"].shape == (128, 1)
    assert torch.equal(batch["observation"], data.dataset[batch["index"]]["observation"])

    sliced = AtariDQNExperienceReplay("Pong/5", batch_size=128, slice_len=64, root=root)
    batch = next(iter(sliced))
    index = batch.get("index").reshape(2, 64)
    assert (index.diff(dim=1) == 1).all()

    other = AtariDQNExperienceReplay("Pong/5", batch_size=128, slice_len=64, num_procs=4, root=root)
    ensemble = ReplayBufferEnsemble(sliced, other, batch_size=128, sample_from_all=True)
    sample = ensemble.sample()
    assert sample.batch_size == (2, 64)
    assert sample[1]["index", "buffer_ids"].tolist() == [1] * 64


def test_the_same_seed_gives_the_same_batches(root: Path) -> None:
    one, other = (AtariDQNExperienceReplay("Pong/5", 64, root=root, slice_len=8, seed=7) for _ in range(2))
    assert torch.equal(one.sample()["index"], other.sample()["index"])


def test_without_replacement(root: Path) -> None:
    data = AtariDQNExperienceReplay("Pong/5", 100, root=root, replacement=False)
    assert isinstance(data.sampler, SamplerWithoutReplacement)
    assert torch.cat([batch["index"] for batch in data]).sort().values.tolist() == list(range(STEPS))
    slices = AtariDQNExperienceReplay("Pong/5", 100, root=root, replacement=False, slice_len=50)
    assert isinstance(slices.sampler, SliceSamplerWithoutReplacement)


def test_a_sampler_overrides_the_rest(root: Path) -> None:
    sampler = SliceSampler(slice_len=10)
    data = AtariDQNExperienceReplay("Pong/5", 100, root=root, sampler=sampler, slice_len=20)
    assert data.sampler is sampler


def test_prefetch_and_transforms(root: Path) -> None:
    data = AtariDQNExperienceReplay(
        "Pong/5", 16, root=root, prefetch=2, transform=FrameStack(4), collate_fn=TensorDict.clone
    )
    assert data.sample()["observation"].shape == (16, 4, 84, 84)
    data.shutdown()


def test_episodes(data: AtariDQNExperienceReplay) -> None:
    assert data.episodes.dtype == torch.int64
    starts = data.dataset.trajectories.start
    assert data.episodes.shape == (STEPS,)
    assert (np.flatnonzero(np.diff(data.episodes.numpy())) + 1).tolist() == starts[1:].tolist()


def test_it_cannot_be_written(data: AtariDQNExperienceReplay) -> None:
    with pytest.raises(TypeError, match="read-only"):
        data.extend(data[:2])


def test_a_checkpoint_goes_on_mid_epoch(root: Path, tmp_path: Path) -> None:
    data = AtariDQNExperienceReplay("Pong/5", 100, root=root, replacement=False, seed=3)
    for _ in range(5):
        data.sample()
    data.dumps(tmp_path / "state")
    expected = [data.sample()["index"] for _ in range(3)]
    assert sum(file.stat().st_size for file in (tmp_path / "state").rglob("*") if file.is_file()) < 20_000
    again = AtariDQNExperienceReplay("Pong/5", 100, root=root, replacement=False, seed=99)
    again.loads(tmp_path / "state")
    assert all(torch.equal(again.sample()["index"], one) for one in expected)


def test_a_checkpoint_of_another_dataset_is_refused(
    data: AtariDQNExperienceReplay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data.dumps(tmp_path / "state")
    monkeypatch.setattr(AtariDQNExperienceReplay, "_max_runs", 2)
    shorter = AtariDQNExperienceReplay("Pong/5", root=tmp_path / "shorter", source=SOURCE)
    with pytest.raises(SchemaMismatchError, match=r"2,491 steps, the storage has room for 1,471"):
        shorter.loads(tmp_path / "state")


def small(batch: TensorDictBase) -> TensorDictBase:
    """A preprocessing function: every third pixel, and the reward doubled."""
    return TensorDict(
        {
            "observation": batch["observation"][..., ::3, ::3],
            "next": {"reward": batch["next", "reward"] * 2, "done": batch["next", "done"]},
            "noise": torch.rand(batch.batch_size),
        },
        batch.batch_size,
    )


HOW: dict[str, dict[str, Any]] = {
    "in this process": {},
    "chunks of 100": {"chunksize": 100},
    "step by step": {"chunksize": 0},
    "three chunks": {"num_chunks": 3},
    "two workers": {"num_workers": 2, "chunksize": 500, "mp_start_method": "fork"},
    "replaced workers, which are spawned": {"num_workers": 1, "num_chunks": 2, "max_tasks_per_child": 1},
}


@pytest.mark.parametrize("name", HOW)
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_preprocess(name: str, data: AtariDQNExperienceReplay, tmp_path: Path) -> None:
    storage = data.preprocess(small, dest=tmp_path / "small", num_frames=1500, **HOW[name])
    batch = storage.get(np.arange(1500))
    stored = data.dataset[:1500]
    assert torch.equal(batch["observation"], stored["observation"][:, ::3, ::3])
    assert torch.equal(batch["next", "reward"], stored["next", "reward"] * 2)
    assert sorted(map(str, batch.keys())) == ["next", "noise", "observation"]
    buffer = ReplayBuffer(storage=storage, batch_size=32)
    assert len(buffer) == 1500
    assert buffer.sample()["observation"].shape == (32, 28, 28)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("small")] == ["small"]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_preprocess_with_a_generator_does_not_depend_on_the_workers(
    data: AtariDQNExperienceReplay, tmp_path: Path
) -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    noise = [
        data.preprocess(
            small,
            dest=tmp_path / str(workers),
            num_frames=500,
            chunksize=100,
            num_workers=workers,
            mp_start_method="fork",
            generator=torch.Generator().manual_seed(1),
        ).get(np.arange(500))["noise"]
        for workers in (0, 2)
    ]
    assert torch.equal(noise[0], noise[1])
    assert len(noise[0].unique()) > 490
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_preprocess_with_a_pool_and_a_bar(
    data: AtariDQNExperienceReplay, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with torch.multiprocessing.get_context("fork").Pool(1) as pool:
        storage = data.preprocess(
            lambda batch: batch.select("action"),
            dest=tmp_path / "out",
            num_frames=300,
            chunksize=100,
            pool=pool,
            pbar=True,
        )
    assert len(storage) == 300
    out, err = capfd.readouterr()
    assert out == ""
    assert "preprocess" in err


def test_preprocess_that_changes_the_number_of_steps(data: AtariDQNExperienceReplay, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"gave \[512\] for 1024 steps: expected as many"):
        data.preprocess(lambda batch: batch[::2], dest=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.partial").exists()


def test_preprocess_whose_chunks_differ(data: AtariDQNExperienceReplay, tmp_path: Path) -> None:
    def fn(batch: TensorDictBase) -> TensorDictBase:
        return batch.select("action") if batch["index"][0] == 0 else batch.select("action", "index")

    with pytest.raises(SchemaMismatchError, match=r"index is torch\.int64"):
        data.preprocess(fn, dest=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_preprocess_into_a_full_directory(data: AtariDQNExperienceReplay, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    with pytest.raises(DatasetExistsError, match="is not empty"):
        data.preprocess(small, dest=tmp_path)
    with pytest.raises(ValueError, match="dim 1: expected 0"):
        data.preprocess(small, 1, dest=tmp_path / "out")
    with pytest.raises(ValueError, match="exclude each other"):
        data.preprocess(small, dest=tmp_path / "out", chunksize=1, num_chunks=1)


# The defects of TorchRL 0.14.1 that are about this class and not about the steps it gives.


def test_torchrl_c9_strict_len_and_strict_length_are_one(root: Path) -> None:
    """TorchRL ignores ``strict_len`` and does not know ``strict_length``, which its page documents."""
    for name in ("strict_len", "strict_length"):
        with pytest.raises(SliceTooLongError):
            AtariDQNExperienceReplay("Pong/5", 2000, root=root, slice_len=1000, **{name: True}).sample()  # type: ignore[arg-type]
        data = AtariDQNExperienceReplay("Pong/5", 2000, root=root, slice_len=1000, **{name: False})  # type: ignore[arg-type]
        assert 0 < len(data.sample()) < 2000


def test_torchrl_c10_preprocess_writes_to_dest(data: AtariDQNExperienceReplay, tmp_path: Path) -> None:
    """TorchRL never uses ``dest``, leaks ``_indices`` into the result, and refuses ``num_workers=0``."""
    dest = tmp_path / "below/dest"
    data.preprocess(small, num_workers=0, dest=dest, num_frames=200)
    reopened = TensorDict.load_memmap(dest)
    assert reopened.batch_size == (200,)
    assert sorted(map(str, reopened.keys())) == ["next", "noise", "observation"]


def test_torchrl_c11_delete(data: AtariDQNExperienceReplay, root: Path) -> None:
    """TorchRL's ``delete`` raises a TypeError."""
    data.delete()
    assert not (root / "Pong/5").exists()
    with pytest.raises(DatasetNotFoundError):
        AtariDQNExperienceReplay("Pong/5", root=root, download=False)


def test_torchrl_c12_slices_of_a_copy(root: Path, tmp_path: Path) -> None:
    """TorchRL's preprocessed copy has no ``episodes``, so that slices fail."""
    shutil.copytree(root / "Pong/5", tmp_path / "copy/Pong/5")
    data = AtariDQNExperienceReplay("Pong/5", 64, root=tmp_path / "copy", download=False, num_slices=4)
    assert len(data.episodes) == STEPS
    assert len(data.sample()) == 64


def test_torchrl_c13_frame_stacks_need_one_line(root: Path) -> None:
    """TorchRL has single frames, and CatFrames on flat slices mixes trajectories."""
    data = AtariDQNExperienceReplay("Pong/5", 64, root=root, transform=FrameStack(4))
    batch = data.sample()
    first = data.dataset.trajectories.start[data.episodes[batch["index"]].numpy()]
    for back in range(4):
        wanted = np.maximum(batch["index"].numpy() - back, first)
        assert torch.equal(batch["observation"][:, 3 - back], data.dataset[wanted]["observation"])


def test_torchrl_c14_what_is_known_of_the_data_is_in_one_place(data: AtariDQNExperienceReplay) -> None:
    """TorchRL puts a list of dicts, one a step and mixed across files, into every batch."""
    assert "metadata" not in data.sample().keys()  # noqa: SIM118
    assert data.dataset.manifest.notes["rewards"] == "clipped to [-1, 1]"


def test_torchrl_c15_any_index(data: AtariDQNExperienceReplay) -> None:
    """TorchRL mis-handles negative integers, masks and numpy arrays."""
    mask = np.zeros(STEPS, bool)
    mask[[3, 2000]] = True
    for index in (mask, torch.from_numpy(mask), [3, 2000], [3, 2000 - STEPS], np.array([3, 2000])):
        assert data[index]["index"].tolist() == [3, 2000]
    assert data[-1]["index"] == STEPS - 1
    assert data[10:13]["index"].tolist() == [10, 11, 12]


def test_torchrl_r1_a_failure_deletes_nothing(root: Path) -> None:
    """TorchRL removes the whole dataset when a file fails, and before it starts."""
    with pytest.raises(SourceNotFoundError):
        AtariDQNExperienceReplay("Pong/5", root=root, download="force", source="/there/is/nothing")
    assert len(AtariDQNExperienceReplay("Pong/5", root=root, download=False)) == STEPS


def test_bad_batches(root: Path) -> None:
    with pytest.raises(SamplingError):
        AtariDQNExperienceReplay("Pong/5", 100, root=root, slice_len=64).sample()
    with pytest.raises(TypeError, match="either num_slices or slice_len"):
        AtariDQNExperienceReplay("Pong/5", 100, root=root, slice_len=10, num_slices=10).sample()
