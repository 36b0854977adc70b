import gzip
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any, get_args

import h5py
import numpy as np
import pytest
import torch
from tensordict import TensorDict

import rlx
from rlx.formats.registry import readable
from rlx.verbs.arguments import ConvertFormat, SourceFormat
from rlx.verbs.export import EXPORT_FORMATS
from rlx_cli.report import InterruptedWorkError, resumable
from tests.conftest import SAMPLE_RUN, Cli
from tests.factories import collected
from tests.minari_files import IMAGE, write_dataset

KEYS = [
    "dataset",
    "id",
    "store",
    "shards",
    "steps",
    "trajectories",
    "bytes",
    "seconds",
    "steps_per_second",
    "skipped_shards",
    "failed_shards",
    "not_taken",
]


def test_a_directory_for_people(cli: Cli, tmp_path: Path) -> None:
    result = cli("convert", SAMPLE_RUN, tmp_path / "pong", "--jobs", 1)
    assert (result.code, result.err) == (0, "")
    first, second = result.out.splitlines()
    assert first.startswith("Pong/5: 2,491 steps in 6 trajectories, 3 shards, ")
    assert second == str(tmp_path / "pong")


def test_a_directory_for_scripts(cli: Cli, tmp_path: Path) -> None:
    result = cli("convert", SAMPLE_RUN, tmp_path / "pong", "--from", "rlu", "--jobs", 1, "--json")
    assert (result.code, result.err) == (0, "")
    said = json.loads(result.out)
    assert list(said) == KEYS
    assert (said["id"], said["store"], said["shards"], said["steps"]) == ("Pong/5", "zarr", 3, 2491)
    assert said["steps_per_second"] > 0
    (made,) = rlx.open(tmp_path / "pong").manifest.lineage
    assert made["command"] == f"rlx convert {SAMPLE_RUN} --from rlu"


@pytest.mark.parametrize(
    ("arguments", "store", "codec"),
    [
        (("--to", "memmap"), "memmap", "none"),
        (("--codec", "zstd:level=5,chunk=4"), "zarr", "zstd:level=5,chunk=4"),
        (("--codec", "lz4"), "zarr", "lz4:level=1,chunk=8"),
        (("--codec", "none"), "zarr", "none"),
    ],
)
def test_a_dataset_into_any_store_and_codec(
    cli: Cli, pong: Path, tmp_path: Path, arguments: tuple[str, ...], store: str, codec: str
) -> None:
    assert cli("convert", pong, tmp_path / "copy", *arguments, "--shards", "0,2", "--jobs", 1).code == 0
    said = json.loads(cli("inspect", tmp_path / "copy", "--json").out)
    assert (said["store"], said["codec"], said["steps"]) == (store, codec, 871 + 1020)
    assert [made["command"] for made in said["lineage"]] == [
        "rlx convert sample",
        " ".join(["rlx convert", str(pong), *arguments, "--shards 0,2"]).replace("lz4", "lz4:level=1,chunk=8"),
    ]
    before, after = (rlx.open(path)[[0, 870]] for path in (pong, tmp_path / "copy"))
    assert (before == after).all()


def test_again_is_nothing_to_do_and_overwrite_is_afresh(cli: Cli, pong: Path, tmp_path: Path) -> None:
    arguments = ("convert", pong, tmp_path / "copy", "--jobs", 1, "--json")
    assert json.loads(cli(*arguments).out)["skipped_shards"] == 0
    assert json.loads(cli(*arguments).out)["skipped_shards"] == 3
    assert json.loads(cli(*arguments, "--overwrite").out)["skipped_shards"] == 0
    result = cli(*arguments, "--to", "memmap")
    assert result.code == 1
    assert "hint: --overwrite starts afresh; or choose another directory\n" in result.err


def test_a_damaged_file_fails_alone(cli: Cli, tmp_path: Path) -> None:
    source = shutil.copytree(SAMPLE_RUN, tmp_path / "source")
    damaged = source / "Pong/run_5-00001-of-00050"
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-1000])
    arguments = ("convert", source, tmp_path / "pong", "--jobs", 1, "--json")
    result = cli(*arguments)
    assert result.code == 6
    said = json.loads(result.out)
    assert (said["shards"], said["failed_shards"]) == (2, ["00001"])
    assert said["error"]["type"] == "PartialError"
    assert result.err.splitlines()[1:] == [
        "error: Pong/5: 1 shard failed: 00001",
        "hint: run the same command again to resume; --on-error skip leaves out what cannot be read, names it, and "
        "takes the other episodes",
    ]
    assert result.err.startswith(f"warning: shard 1 failed: {damaged} is corrupt")
    damaged.write_bytes(whole)
    result = cli(*arguments)
    assert result.code == 0
    assert (json.loads(result.out)["skipped_shards"], json.loads(result.out)["failed_shards"]) == (2, [])
    assert len(rlx.open(tmp_path / "pong")) == 2491


def test_where_nothing_is_whole_the_cause_is_the_error(cli: Cli, tmp_path: Path) -> None:
    source = shutil.copytree(SAMPLE_RUN, tmp_path / "source")
    for file in (source / "Pong").iterdir():
        file.write_bytes(b"no gzip")
    result = cli("convert", source, tmp_path / "pong", "--jobs", 1, "--json")
    assert result.code == 3
    assert json.loads(result.out)["error"]["type"] == "CorruptShardError"
    assert not (tmp_path / "pong").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--codec", "brotli"), 2, "error: codec 'brotli' is unknown: expected one of zstd-dict, zstd, lz4, none"),
        (("--codec", "zstd:level=99"), 2, "error: codec zstd: level 99: expected 0 to 22"),
        (("--to", "memmap", "--codec", "zstd"), 2, "error: "),
        (("--to", "hdf6"), 2, "error: --to 'hdf6' is unknown: expected zarr, memmap, "),
        (("--from", "minari9"), 2, "error: --from 'minari9' is unknown: expected rlx, rlu, "),
        (("--shards", "2-1"), 2, "error: invalid value for '--shards': '2-1'"),
        (("--shards", "x"), 2, "error: invalid value for '--shards': 'x'"),
        (("--jobs", "0"), 2, "error: invalid value for '--jobs': "),
        (("--shards", "7"), 5, "error: Pong/5 has no shard 7: expected one of 0-2\nhint: --shards 0-2\n"),
    ],
)
def test_what_cannot_be(cli: Cli, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str) -> None:
    result = cli("convert", SAMPLE_RUN, tmp_path / "pong", *arguments)
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith(message)
    assert not (tmp_path / "pong/rlx.json").exists()


def test_an_empty_directory(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = cli("convert", tmp_path / "empty", tmp_path / "pong")
    assert result.code == 5
    assert result.err.startswith(f"error: no run found in {tmp_path}/empty: expected files such as")


def test_several_processes_make_the_same(cli: Cli, pong: Path, tmp_path: Path) -> None:
    assert cli("convert", SAMPLE_RUN, tmp_path / "copy", "--jobs", 2).code == 0
    before, after = (rlx.open(path) for path in (pong, tmp_path / "copy"))
    assert before.manifest.shards == after.manifest.shards
    assert np.array_equal(before.trajectories.returns, after.trajectories.returns)


def test_the_options_name_every_format() -> None:
    assert sorted(get_args(SourceFormat)) == sorted(["rlx", *readable()])
    assert sorted(get_args(ConvertFormat)) == sorted(["zarr", "memmap", *EXPORT_FORMATS])


EXPORT_KEYS = [
    "dataset",
    "id",
    "format",
    "shards",
    "steps",
    "trajectories",
    "bytes",
    "seconds",
    "steps_per_second",
    "skipped_shards",
    "losses",
    "names",
    "not_taken",
]
LOSS = "the source's episode numbers"


def test_an_export_for_people(cli: Cli, pong: Path, tmp_path: Path) -> None:
    result = cli("convert", pong, tmp_path / "replay", "--to", "dopamine")
    assert result.code == 0
    assert f"warning: Dopamine's layout cannot hold {LOSS}\n" in result.err
    first, second = result.out.splitlines()
    assert first.startswith("Pong/5: 2,491 steps in 6 trajectories, ")
    assert second == str(tmp_path / "replay")


def test_an_export_for_scripts_and_back(cli: Cli, pong: Path, tmp_path: Path) -> None:
    file = tmp_path / "pong.hdf5"
    result = cli("convert", pong, file, "--to", "d4rl", "--shards", "0,2", "--json")
    said = json.loads(result.out)
    assert (result.code, list(said)) == (0, EXPORT_KEYS)
    assert (said["dataset"], said["format"], said["steps"], said["shards"]) == (str(file), "d4rl", 871 + 1020, 2)
    assert (said["bytes"], said["losses"]) == (file.stat().st_size, [])
    assert cli("convert", file, tmp_path / "back", "--jobs", 1).code == 0
    before, after = rlx.open(pong), rlx.open(tmp_path / "back")
    assert "lost" not in after.manifest.notes
    assert after.trajectories.episode.tolist() == [before.trajectories.episode.tolist()[place] for place in (0, 4, 5)]
    for there, here in ((0, 0), (870, 870), (len(before) - 1, len(after) - 1)):
        one, other = (dataset[step].exclude("collector", "index") for dataset, step in ((before, there), (after, here)))
        assert (one == other).all()


def test_an_export_stays_unless_it_is_to_be_replaced(cli: Cli, pong: Path, tmp_path: Path) -> None:
    arguments = ("convert", pong, tmp_path / "pong.hdf5", "--to", "d4rl")
    assert cli(*arguments, "--quiet").code == 0
    again = cli(*arguments)
    assert (again.code, "trajectories, already complete, " in again.out) == (0, True), again
    assert json.loads(cli(*arguments, "--json").out)["skipped_shards"] == 3
    other = cli(*arguments, "--shards", "0", "--quiet")
    assert other.code == 1
    assert other.err == f"error: {tmp_path}/pong.hdf5 already exists\nhint: --overwrite replaces it\n"
    assert cli(*arguments, "--shards", "0", "--overwrite").code == 0
    assert cli(*arguments).code == 1


def test_the_capacity_belongs_to_the_command(cli: Cli, pong: Path, tmp_path: Path) -> None:
    arguments = ("convert", pong, tmp_path / "Pong/1", "--to", "dopamine")
    assert [cli(*arguments).code for _ in range(2)] == [0, 0]
    assert cli(*arguments, "--capacity", "5000").code == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--to", "d4rl", "--codec", "zstd"), 2, "error: --codec requires --to zarr or memmap, found --to d4rl"),
        (("--to", "d4rl", "--shards", "7"), 5, "error: Pong/5 has no shard 7"),
        (
            ("--to", "robomimic"),
            1,
            "error: robomimic holds one action of floats per step, found action int64[]\nhint: ",
        ),
        (("--to", "minari"), 1, "error: {}: Minari wants a name that ends in a version\nhint: give out-v0 as "),
    ],
)
def test_what_cannot_be_exported(
    cli: Cli, pong: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    result = cli("convert", pong, tmp_path / "new/out", *arguments)
    assert (result.code, result.out) == (code, "")
    assert message.format(tmp_path / "new/out") in result.err
    assert not (tmp_path / "new").exists()


def test_a_file_of_no_format(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    result = cli("convert", tmp_path / "notes.txt", tmp_path / "out")
    assert result.code == 5
    assert "gives a diagnosis" in result.err
    result = cli("convert", tmp_path / "notes.txt", tmp_path / "out", "--from", "d4rl")
    assert result.code == 3
    assert result.err.startswith(f"error: {tmp_path}/notes.txt is missing or damaged: ")


@pytest.mark.parametrize(
    ("format", "name", "removed", "message"),
    [
        (
            "d4rl",
            "a.hdf5",
            "terminals",
            "a.hdf5: terminals is missing, found actions, metadata, ",
        ),
        ("d3rlpy", "a.h5", "version", "a.h5: version is missing, found actions_0, "),
        ("robomimic", "a.hdf5", "data/demo_0", "a.hdf5 has no demonstration; expected robomimic's layout: data/"),
        ("minari", "a-v0", "data/main_data.hdf5", "a-v0/data/main_data.hdf5 is missing"),
        ("rlds", "1.0.0", "features.json", "1.0.0/features.json is missing, found dataset_info.json, metadata.json, "),
        ("torchrl", "a", "meta.json", "a/meta.json is missing, found action.memmap, collector, "),
        ("npz", "a.npz", None, "a.npz is damaged: "),
    ],
)
def test_what_a_format_lacks_is_said_without_from(
    cli: Cli, tmp_path: Path, format: str, name: str, removed: str | None, message: str
) -> None:
    collected("Pendulum-v1", tmp_path / "walks", steps=60)
    exported = tmp_path / "exported" / name
    assert cli("convert", tmp_path / "walks", exported, "--to", format).code == 0
    if removed is None:
        exported.write_bytes(exported.read_bytes()[:500])
    elif exported.is_dir():
        (exported / removed).unlink()
    else:
        with h5py.File(exported, "a") as file:
            for member in [removed] if removed != "data/demo_0" else [f"data/{demo}" for demo in file["data"]]:
                del file[member]
    result = cli("convert", exported, tmp_path / "out")
    assert result.code in {1, 3, 5}
    lacks, _, expected = message.partition("; ")
    assert result.err.startswith(f"error: {tmp_path}/exported/{lacks}")
    assert f"; {expected}" in result.err or not expected
    assert not (tmp_path / "out").exists()


def test_what_is_lossy_or_left_out_is_said(cli: Cli, tmp_path: Path) -> None:
    write_dataset(tmp_path, "some/pictures-v0", observation=IMAGE, jpeg=True)
    result = cli("convert", tmp_path / "some/pictures-v0", tmp_path / "out", "--jobs", 1)
    assert (result.code, result.err) == (
        0,
        "warning: some/pictures-v0: 1 entry left out: episode_*: attribute seed (not part of any step)\n"
        "warning: some/pictures-v0: observation was compressed as JPEG, which is lossy, by the source\n",
    )
    assert cli("convert", tmp_path / "out", tmp_path / "copy", "--jobs", 1).err == ""
    named = {"episode_*: attribute seed": "not part of any step"}
    for form in ("npz", "zarr"):
        told = cli("convert", tmp_path / "some/pictures-v0", tmp_path / f"told-{form}", "--to", form, "--json")
        assert json.loads(told.out)["not_taken"] == named
    assert json.loads(cli("inspect", tmp_path / "out", "--json").out)["notes"]["not_taken"] == named
    assert cli("convert", tmp_path / "out", tmp_path / "steps.npz", "--to", "npz").code == 0
    result = cli("convert", tmp_path / "steps.npz", tmp_path / "again", "--jobs", 1)
    # Which is as true of the pictures as it was; but nothing is left out of this file.
    assert result.err == "warning: steps: observation was compressed as JPEG, which is lossy, by the source\n"


def test_notes_that_no_rlx_would_write(cli: Cli, pong: Path, tmp_path: Path) -> None:
    path = tmp_path / "pong.npz"
    assert cli("convert", pong, path, "--to", "npz").code == 0
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = json.dumps(
            {"notes": {"lossy_jpeg": 7, "left_out": 7, "steps_without_outcome": "x"}, "losses": []}
        ).encode()
    result = cli("convert", path, tmp_path / "back", "--jobs", 1)
    assert (result.code, result.err) == (0, "")


def test_truncated_steps_after_which_nothing_was_seen_are_kept_and_said(cli: Cli, tmp_path: Path) -> None:
    """LeRobot has no row for what was seen last; without rlx's table of it the last action led nobody knows where."""
    collected("Pendulum-v1", tmp_path / "swings", steps=600)
    assert cli("convert", tmp_path / "swings", tmp_path / "lerobot", "--to", "lerobot").code == 0
    (tmp_path / "lerobot/meta/final_observations.parquet").unlink()
    result = cli("convert", tmp_path / "lerobot", tmp_path / "back", "--jobs", 1)
    table = rlx.open(tmp_path / "swings").trajectories
    count = int((~table.terminated).sum())
    said = f"{count} truncated episodes without a recorded final observation: it is zeros"
    assert (result.code, result.err) == (0, f"warning: lerobot: {said}\n")
    back = rlx.open(tmp_path / "back")
    assert count > 1
    assert len(back) == 600
    assert back.trajectories.returns.tolist() == table.returns.tolist()
    assert not back.trajectories.final_recorded.any()
    assert back.manifest.notes["truncations_without_final_observation"] == count
    result = cli("convert", tmp_path / "lerobot", tmp_path / "steps.npz", "--to", "npz")
    assert (result.code, result.err) == (0, f"warning: lerobot: {said}\n")


def test_steps_whose_outcome_nobody_recorded_are_counted_and_said(cli: Cli, tmp_path: Path) -> None:
    """Neither what was seen after the last step nor an end of the episode."""
    rows: Any = {"observation": np.arange(6.0), "action": np.arange(6), "next/reward": np.ones(6)}
    np.savez(tmp_path / "cut.npz", **rows | {"next/terminated": np.zeros(6, bool)})
    result = cli("convert", tmp_path / "cut.npz", tmp_path / "back", "--jobs", 1)
    said = "warning: cut: left out: the last steps of 1 episode, whose next observations were not recorded\n"
    assert (result.code, result.err) == (0, said)
    back = rlx.open(tmp_path / "back")
    assert (len(back), back.trajectories.final_recorded.tolist()) == (5, [True])
    assert back.manifest.notes["steps_without_outcome"] == 1
    assert [shard.dropped for shard in back.manifest.shards] == [{"step_whose_outcome_is_not_recorded": 1}]
    assert cli("convert", tmp_path / "back", tmp_path / "whole.npz", "--to", "npz").code == 0
    # Of what is left there is nothing to be said: these files have it all.
    result = cli("convert", tmp_path / "whole.npz", tmp_path / "again", "--jobs", 1)
    assert (result.code, result.err) == (0, "")
    assert "steps_without_outcome" not in rlx.open(tmp_path / "again").manifest.notes


def test_the_capacity_of_dopamines_files(cli: Cli, pong: Path, tmp_path: Path) -> None:
    result = cli("convert", pong, tmp_path / "Pong/1", "--to", "dopamine", "--capacity", 1000, "--json")
    assert (result.code, json.loads(result.out)["steps"]) == (0, 2491)
    counts = sorted((tmp_path / "Pong/1/replay_logs").glob("add_count*"))
    with gzip.open(counts[-1]) as file:
        assert (len(counts), int(np.load(file))) == (3, (2491 + 3 * 6) % 1000)
    result = cli("convert", pong, tmp_path / "pong.npz", "--to", "npz", "--capacity", 1000)
    assert (result.code, result.err.splitlines()[0]) == (2, "error: --capacity requires --to dopamine, found --to npz")


def lanes(path: Path) -> Path:
    """Two environments of which no step tells what follows it, [time, lane]."""
    rows = torch.zeros(6, 2)
    done = torch.zeros(6, 2, 1, dtype=torch.bool)
    done[5] = True
    after = {"reward": torch.arange(12.0).reshape(6, 2), "done": done}
    TensorDict({"observation": rows, "action": rows, "next": after}, [6, 2]).memmap(path)
    return path


def test_options_of_a_format(cli: Cli, tmp_path: Path) -> None:
    source = lanes(tmp_path / "steps")
    result = cli("convert", source, tmp_path / "data")
    assert result.code == 1
    assert "do not determine which dimension of the batch [6, 2] is time: 0 or 1" in result.err
    assert f"hint: rlx convert {source} DST --from torchrl:time_dim=0" in result.err
    assert cli("convert", source, tmp_path / "data", "--from", "torchrl:time_dim=0").code == 0
    dataset = rlx.open(tmp_path / "data")
    assert dataset.trajectories.length.tolist() == [6, 6]
    assert dataset[:]["next", "reward"][:6, 0].tolist() == [0, 2, 4, 6, 8, 10]


@pytest.mark.parametrize(
    ("format", "message"),
    [
        ("torchrl:axis=0", "error: --from torchrl has no option 'axis': expected time_dim\n"),
        ("torchrl:time_dim=x", "error: --from torchrl: time_dim=x: expected a whole number\n"),
        ("torchrl:time_dim", "error: 'torchrl:time_dim': expected FORMAT:option=value, found 'time_dim'\n"),
        ("npz:time_dim=0", "error: --from npz has no option 'time_dim': expected no options\n"),
        ("minari:time_dim=0", "error: --from minari has no option 'time_dim': expected no options\n"),
    ],
)
def test_options_that_no_format_has(cli: Cli, tmp_path: Path, format: str, message: str) -> None:
    result = cli("convert", lanes(tmp_path / "steps"), tmp_path / "data", "--from", format)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(message)


@pytest.mark.parametrize(
    ("there", "overwrite", "said", "hint"),
    [
        (True, True, "interrupted; {} is unchanged", "run the same command again to start afresh"),
        (
            False,
            True,
            "interrupted; no shard is finished yet",
            "run the same command again to resume, without --overwrite",
        ),
        (True, False, "interrupted; 3 of 3 shards are finished and kept in {}", "run the same command again to resume"),
    ],
)
def test_what_an_interrupted_overwriting_says(
    pong: Path, tmp_path: Path, there: bool, overwrite: bool, said: str, hint: str
) -> None:
    path = pong if there else tmp_path / "new"
    with pytest.raises(InterruptedWorkError) as raised, resumable(path, overwrite=overwrite):
        raise KeyboardInterrupt
    assert (str(raised.value), raised.value.hint) == (said.format(path), hint)
