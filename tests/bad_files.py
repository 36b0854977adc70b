"""What can be wrong with a file of another project: the damage, and what the error says of it.

The files are those that rlx writes of the sample ``vectors``; Dopamine's are of the pictures.
"""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import google_crc32c
import lance
import numpy as np

from rlx.formats.common.record_files import masked
from tests.array_record_files import changed_records
from tests.damage import (
    Damage,
    arrays,
    at,
    changed_column,
    column,
    cut,
    elsewhere,
    feature,
    gz,
    h5,
    members,
    numbers,
    remove,
    value,
)
from tests.dopamine_files import write_gz
from tests.hdf5_files import declare, delete, external, external_storage, objects, replace, resize, set_row, virtual

NAN, INF = float("nan"), float("inf")
NAMES = {
    "minari": "a-v0",
    "dopamine": "Pong/1",
    "rlds": "1.0.0",
    "npz": "a.npz",
    "parquet": "a.parquet",
    "hf_parquet": "a.parquet",
    "array_record": "a",
    "lance": "a.lance",
    "mds": "a",
}
LAYOUTS = {
    "minari": "Minari's layout: data/metadata.json with total_episodes",
    "d4rl": "D4RL's layout: observations [N, ...], actions [N, ...], rewards [N]",
    "robomimic": "robomimic's layout: data/demo_<i> with actions [N, A], rewards [N]",
    "d3rlpy": "d3rlpy's layout: version 2.1, num_episodes, columns",
    "lerobot": "LeRobot's layout, v3.0: meta/info.json with features",
    "rlds": "a version of a dataset of TensorFlow Datasets: dataset_info.json, features.json",
    "dopamine": "Dopamine's layout: in replay_logs for every number N of a file $store$_observation_ckpt.N.gz",
    "torchrl": "what TensorDict.memmap writes: meta.json, observation.memmap, action.memmap",
    "parquet": "Parquet of one row per step: columns observation, action, next/reward",
    "hf_parquet": "Parquet of one row per step: columns observation, action, next/reward",
    "npz": "arrays of one row per step: observation [S, ...], action [S, ...], next/reward [S]",
    "mds": "an MDS dataset of one sample per step: index.json with shards",
    "lance": "a Lance dataset of one row per step: columns observation, action, next/reward",
    "array_record": "ArrayRecord files, *.array_record, whose records are pickled dicts of arrays of T steps",
}


def fewer(rows: Any) -> Any:
    return rows[:-1]


def pickled(rows: Any) -> Any:
    return np.array([None] * len(rows))


def texts(rows: Any) -> Any:
    return ["x"] * len(rows)


def add_claim(path: Path) -> None:
    """One more array, which claims to be larger than any file."""
    with zipfile.ZipFile(path, "a") as archive, archive.open("huge.npy", "w") as member:
        member.write(claim("<f4", (23, 2**40)))


def claim(dtype: str, shape: tuple[int, ...]) -> bytes:
    """What an npy array begins with; nothing of it."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": dtype, "fortran_order": False, "shape": shape})
    return header.getvalue()


def minari(*changes: Any) -> Damage:
    return at("data/main_data.hdf5", h5(*changes))


def metadata(**said: Any) -> Damage:
    return at("data/metadata.json", members(lambda _: said))


def steps(name: str, change: Any) -> Damage:
    """Of LeRobot."""
    return at("data/chunk-000/file-000.parquet", column(name, change))


def lengths(change: Any) -> Damage:
    return at("meta/episodes/chunk-000/file-000.parquet", column("length", change))


def finals(name: str, change: Any) -> Damage:
    return at("meta/final_observations.parquet", column(name, change))


def info(**said: Any) -> Damage:
    return at("meta/info.json", members(lambda _: said))


def example(name: str, change: Any) -> Damage:
    return at(RECORDS, feature(f"steps/{name}", change))


def described(**said: Any) -> Damage:
    return at("dataset_info.json", members(lambda _: said))


def splits(**said: Any) -> Damage:
    return at("dataset_info.json", members(lambda one: {"splits": [{**one["splits"][0], **said}]}))


def log(name: str, change: Any) -> Damage:
    return at(f"replay_logs/{name}_ckpt.0.gz", gz(change))


def mds_text(old: bytes, new: bytes) -> Damage:
    """Another name of a column of MDS, in the index."""
    return at("index.json", lambda path: path.write_bytes(path.read_bytes().replace(old, new)))


def mds_index(change: Any) -> Damage:
    return members(lambda index: {"shards": [{**one, **change(one)} for one in index["shards"]]})


def mds_value(name: bytes, number: float) -> Damage:
    """Another first number of the column in the tenth sample, whose columns all have a fixed size."""

    def damage(path: Path) -> None:
        said = json.loads((path / "index.json").read_bytes())["shards"][0]
        content = bytearray((path / "shard.00000.mds").read_bytes())
        place = said["column_names"].index(name.decode())
        start = int(np.frombuffer(content, "<u4", 24, 4)[9]) + sum(said["column_sizes"][:place])
        content[start : start + 4] = np.float32(number).tobytes()
        (path / "shard.00000.mds").write_bytes(content)

    return damage


def lance_column(name: str, change: Any) -> Damage:
    """Another column of a Lance dataset, or none."""

    def damage(path: Path) -> None:
        table = lance.dataset(path).to_table()
        lance.write_dataset(changed_column(table, name, change), str(path), mode="overwrite")

    return damage


def lance_data(path: Path) -> None:
    (file,) = path.glob("data/*")
    cut(file)


def lance_footer(path: Path) -> None:
    """A count of buffers that Lance would allocate gigabytes for."""
    (file,) = path.glob("data/*")
    content = file.read_bytes()
    file.write_bytes(content[:-16] + b"\xff\xff\xff\xdf" + content[-12:])


def records(key: str, change: Any, first: int = 0) -> Damage:
    """Of ArrayRecord, from a record on."""

    def changed(found: list[dict[str, Any]]) -> None:
        for record in found[first:]:
            values = record.pop(key)
            if change is not None:
                record[key] = change(values)

    return at("data_000000.array_record", lambda path: changed_records(path, changed))


def huge_record(path: Path) -> None:
    length = (2**40).to_bytes(8, "little")
    path.write_bytes(length + masked(google_crc32c.value(length)).to_bytes(4, "little") + path.read_bytes()[12:])


RECORDS = "rlx_test_1-train.tfrecord-00000-of-00001"
CHUNKS = "data/chunk-000/file-000.parquet"
# By format: what is done to it, and what the error says beside the file's name.
CASES: dict[str, dict[str, tuple[Damage, str]]] = {
    "minari": {
        "missing key": (minari(delete("episode_2/rewards")), "/episode_2/rewards is missing"),
        "missing count": (metadata(total_steps=None), "total_steps: expected a whole number, found None"),
        "unequal lengths": (minari(resize("episode_2/actions", 6)), "/episode_2/actions: expected 7 rows, found 6"),
        "unknown version": (metadata(minari_version="9.9"), "minari_version: expected 0.4 or 0.5, found '9.9'"),
        "objects": (minari(objects("episode_2/rewards")), "/episode_2/rewards: expected float32[], found string[]"),
        "NaN seen": (
            minari(set_row("episode_2/observations", 7, NAN)),
            "/episode_2/observations: expected finite numbers, found NaN in row 7",
        ),
        "infinite actions": (
            minari(set_row("episode_2/actions", 3, INF)),
            "/episode_2/actions: expected finite numbers, found inf in row 3",
        ),
        "infinite rewards": (
            minari(set_row("episode_2/rewards", 3, -INF)),
            "/episode_2/rewards: expected finite numbers, found -inf in row 3",
        ),
        "another file": (minari(external("episode_2/rewards")), "/episode_2/rewards: leads to another file"),
        "another file's values": (
            minari(virtual("episode_2/rewards", Path("/etc/passwd"))),
            "/episode_2/rewards: its values are in another file",
        ),
        "cut off": (at("data/main_data.hdf5", cut), "main_data.hdf5 is missing or damaged"),
        "more than the file": (
            minari(declare("episode_2/rewards", (10**15,))),
            "/episode_2/rewards: expected 1,000,000,000,000,000 values, found none stored",
        ),
    },
    "d4rl": {
        "missing key": (h5(delete("rewards")), "rewards is missing"),
        "unequal lengths": (h5(replace("actions", np.zeros((9, 2), "f4"))), "/actions: expected 23 rows, found 9"),
        "objects": (h5(objects("actions")), "/actions: expected rows of numbers, found object"),
        "NaN seen": (h5(set_row("observations", 9, NAN)), "/observations: expected finite numbers, found NaN in row 9"),
        "infinite actions": (h5(set_row("actions", 9, INF)), "/actions: expected finite numbers, found inf in row 9"),
        "infinite rewards": (h5(set_row("rewards", 9, INF)), "/rewards: expected finite numbers, found inf in row 9"),
        "another file": (h5(external("rewards")), "/rewards: leads to another file"),
        "another file's bytes": (h5(external_storage("rewards", 92)), "/rewards: its values are in another file"),
        "another file's values": (
            h5(virtual("rewards", Path("/etc/passwd"))),
            "/rewards: its values are in another file",
        ),
        "cut off": (cut, "is missing or damaged"),
        "more than the file": (
            h5(declare("observations", (10**15, 3))),
            "/observations: expected 3,000,000,000,000,000",
        ),
    },
    "robomimic": {
        "missing key": (h5(delete("data/demo_2/rewards")), "/data/demo_2/rewards is missing"),
        "unequal lengths": (
            h5(replace("data/demo_2/rewards", np.zeros(6, "f4"))),
            "/data/demo_2/rewards: expected 7 rows, found 6",
        ),
        "objects": (
            h5(objects("data/demo_0/obs/observation")),
            "/data/demo_0/next_obs/observation: expected 4 texts, found float32",
        ),
        "NaN seen": (
            h5(set_row("data/demo_2/obs/observation", 3, NAN)),
            "/data/demo_2/obs/observation: expected finite numbers, found NaN in row 3",
        ),
        "NaN seen last": (
            h5(set_row("data/demo_2/next_obs/observation", 6, NAN)),
            "/data/demo_2/next_obs/observation: expected finite numbers, found NaN in row 6",
        ),
        "infinite actions": (
            h5(set_row("data/demo_2/actions", 3, INF)),
            "/data/demo_2/actions: expected finite numbers, found inf in row 3",
        ),
        "infinite rewards": (
            h5(set_row("data/demo_2/rewards", 3, INF)),
            "/data/demo_2/rewards: expected finite numbers, found inf in row 3",
        ),
        "another file": (h5(external("data/demo_2")), "/data/demo_2: leads to another file"),
        "cut off": (cut, "is missing or damaged"),
        "more than the file": (h5(declare("data/demo_2/actions", (10**15, 2))), "/data/demo_2/actions: expected 2,000"),
    },
    "d3rlpy": {
        "missing key": (h5(delete("rewards_2")), "/rewards_2 is missing"),
        "unequal lengths": (
            h5(replace("rewards_2", np.zeros((6, 1), "f4"))),
            "/rewards_2: expected 7 rows, found 6",
        ),
        "unknown version": (h5(replace("version", "3.0")), "is of d3rlpy's version 3.0, expected 2.1"),
        "objects": (h5(objects("rewards_2")), "/rewards_2: expected rows of numbers, found object"),
        "NaN seen": (h5(set_row("observations_2", 3, NAN)), "/observations_2: expected finite numbers, found NaN"),
        "infinite actions": (h5(set_row("actions_2", 3, INF)), "/actions_2: expected finite numbers, found inf"),
        "infinite rewards": (h5(set_row("rewards_2", 3, INF)), "/rewards_2: expected finite numbers, found inf"),
        "another file": (h5(external("rewards_2")), "/rewards_2: leads to another file"),
        "cut off": (cut, "is missing or damaged"),
        "more than the file": (h5(replace("num_episodes", 2**62)), "/actions_5 is missing"),
    },
    "lerobot": {
        "missing key": (steps("action", None), "action is missing"),
        "missing feature": (
            at("meta/info.json", members(lambda one: {"features": {"action": one["features"]["action"]}})),
            "info.json: features: observation is missing",
        ),
        "unequal lengths": (
            lengths(lambda rows: [rows[0] + 1, *rows[1:]]),
            "expected 24 rows as in its episodes",
        ),
        "unknown version": (
            info(codebase_version="v1.6"),
            "codebase_version: expected v2.0, v2.1 or v3.0, found 'v1.6'",
        ),
        "objects": (steps("next.reward", texts), "next.reward: expected"),
        "NaN seen": (
            steps("observation.state", value(NAN, 9)),
            "observation.state: expected finite numbers, found NaN",
        ),
        "infinite actions": (steps("action", value(INF, 9)), "action: expected finite numbers, found inf in row 9"),
        "infinite rewards": (steps("next.reward", value(INF, 9)), "next.reward: expected finite numbers, found inf"),
        "NaN seen last": (
            finals("observation.state", value(NAN, 2)),
            "final_observations.parquet: observation.state: expected finite numbers, found NaN in row 2",
        ),
        "nothing seen last": (finals("observation.state", None), "observation.state is missing"),
        "seen last in other episodes": (
            finals("length", lambda rows: [*rows[:2], 8, *rows[3:]]),
            "expected the numbers and lengths of episodes, found 2 of 8 steps",
        ),
        "seen last in no episode": (
            finals("episode_index", lambda rows: [*rows[:4], 5]),
            "expected the numbers and lengths of episodes, found 5 of 9 steps",
        ),
        "seen last twice": (
            finals("episode_index", lambda rows: [0, *rows[:4]]),
            "expected the numbers and lengths of episodes, found 0 of 1 steps",
        ),
        "seen last cut off": (at("meta/final_observations.parquet", cut), "final_observations.parquet is damaged"),
        "a path that leaves": (info(data_path="../../secret.parquet"), "'../../secret.parquet' is not a relative path"),
        "cut off": (at(CHUNKS, cut), "file-000.parquet is damaged"),
        "more than the file": (lengths(lambda rows: [2**39, *rows[1:]]), "expected 549,755,813,907 rows"),
    },
    "rlds": {
        "missing key": (example("reward", None), "record 0: steps/reward: expected 5 rows, found none"),
        "unequal lengths": (example("action", lambda rows: rows[:-2]), "steps/action: expected 5 rows, found 4"),
        "another file format": (described(fileFormat="riegeli"), "fileFormat: expected tfrecord or array"),
        "objects": (
            example("reward", lambda rows: [b"x"] * len(rows)),
            "steps/reward: expected float32[] per step, found",
        ),
        "NaN seen": (
            example("observation", lambda rows: np.append(rows[:-1], np.float32(NAN))),
            "record 0: steps/observation: expected finite numbers, found NaN in row 4",
        ),
        "infinite actions": (
            example("action", lambda rows: np.append(np.float32(INF), rows[1:])),
            "record 0: steps/action: expected finite numbers, found inf in row 0",
        ),
        "infinite rewards": (
            example("reward", lambda rows: np.append(np.float32(INF), rows[1:])),
            "record 0: steps/reward: expected finite numbers, found inf in row 0",
        ),
        "a path that leaves": (splits(filepathTemplate="../secret"), "'../secret' is not a relative path"),
        "cut off": (at(RECORDS, cut), "is corrupt: record "),
        "more than the file": (at(RECORDS, huge_record), "is corrupt: record 0: length: expected at most "),
        "fewer than listed": (splits(shardLengths=["6"]), "expected 6 episodes as in dataset_info.json, found 5"),
    },
    "dopamine": {
        "missing key": (at("replay_logs/$store$_reward_ckpt.0.gz", remove), "$store$_reward_ckpt.0.gz is missing"),
        "unequal lengths": (log("$store$_action", fewer), "$store$_action_ckpt.0.gz"),
        "objects": (log("$store$_reward", pickled), "$store$_reward_ckpt.0.gz is corrupt: expected the npy header"),
        "infinite rewards": (
            log("$store$_reward", value(INF, 3)),
            "$store$_reward_ckpt.0.gz is corrupt: expected finite",
        ),
        "cut off": (at("replay_logs/$store$_observation_ckpt.0.gz", cut), "$store$_observation_ckpt.0.gz is corrupt"),
        "more than the file": (
            at("replay_logs/$store$_observation_ckpt.0.gz", lambda path: write_gz(path, claim("|u1", (2**40, 84, 84)))),
            "$store$_observation_ckpt.0.gz is corrupt: expected at most ",
        ),
    },
    "torchrl": {
        "missing key": (
            at("meta.json", members(lambda _: {"action": {"type": "NonTensorData"}})),
            "action: neither numbers nor text",
        ),
        "missing file": (at("next/reward.memmap", remove), "next/reward.memmap is missing"),
        "unequal lengths": (
            at("action.memmap", numbers(fewer)),
            "action.memmap: expected 184 bytes for float32[23, 2]",
        ),
        "objects": (
            at("next/meta.json", members(lambda one: {"reward": {**one["reward"], "dtype": "object"}})),
            "next/reward: expected one number per step, found no numbers",
        ),
        "NaN seen": (
            at("observation.memmap", numbers(value(NAN, 0))),
            "observation: expected finite numbers, found NaN",
        ),
        "infinite actions": (at("action.memmap", numbers(value(INF, 0))), "action: expected finite numbers, found inf"),
        "infinite rewards": (
            at("next/reward.memmap", numbers(value(INF, 9))),
            "next/reward: expected finite numbers, found inf in row 9",
        ),
        "a link": (at("action.memmap", elsewhere), "action.memmap: leads out of"),
        "cut off": (
            at("observation.memmap", cut),
            "observation.memmap: expected 276 bytes for float32[23, 3], found 138",
        ),
        "more than the file": (
            at("meta.json", members(lambda one: {"action": {**one["action"], "shape": [23, 2**26]}})),
            "action.memmap: expected 6,174,015,488 bytes",
        ),
    },
    "parquet": {
        "missing key": (column("action", None), "action is missing"),
        "missing rewards": (column("next/reward", None), "next/reward is missing"),
        "unequal lengths": (
            column("observation", lambda rows: [*rows[:-1], None]),
            "observation: expected a value in every row, found 1 nulls",
        ),
        "objects": (
            column("next/terminated", texts),
            "next/terminated: expected one flag per step, found no numbers",
        ),
        "NaN seen": (column("observation", value(NAN, 9)), "observation: expected finite numbers, found NaN in row 9"),
        "infinite actions": (column("action", value(INF, 9)), "action: expected finite numbers, found inf in row 9"),
        "infinite rewards": (column("next/reward", value(INF, 9)), "next/reward: expected finite numbers, found inf"),
        "cut off": (cut, "is damaged"),
    },
    "npz": {
        "missing key": (arrays("action", None), "action is missing"),
        "missing flags": (arrays("next/terminated", None), "next/terminated is missing"),
        "unequal lengths": (arrays("action", fewer), "action: expected 23 rows as next/reward, found 22"),
        "objects": (arrays("action", pickled), "action: neither numbers nor text"),
        "NaN seen": (arrays("observation", value(NAN, 9)), "observation: expected finite numbers, found NaN in row 9"),
        "infinite actions": (arrays("action", value(INF, 9)), "action: expected finite numbers, found inf in row 9"),
        "infinite rewards": (arrays("next/reward", value(INF, 9)), "next/reward: expected finite numbers, found inf"),
        "cut off": (cut, "is damaged"),
        "more than the file": (add_claim, "huge: expected at most "),
    },
    "mds": {
        "missing key": (mds_text(b"action", b"acting"), "action is missing"),
        "missing rewards": (mds_text(b"next/reward", b"next/rewind"), "next/reward is missing"),
        "unequal lengths": (
            at("index.json", mds_index(lambda one: {"samples": one["samples"] - 1})),
            "shard.00000.mds: expected 22 samples, found 23",
        ),
        "objects": (mds_text(b'"next/terminated"', b'"terminated"     '), "next/terminated is missing"),
        "NaN seen": (mds_value(b"observation", NAN), "observation: expected finite numbers, found NaN in row 9"),
        "infinite actions": (mds_value(b"action", INF), "action: expected finite numbers, found inf in row 9"),
        "infinite rewards": (mds_value(b"next/reward", INF), "next/reward: expected finite numbers, found inf"),
        "cut off": (at("shard.00000.mds", cut), "shard.00000.mds: expected "),
        "missing file": (at("shard.00000.mds", remove), "shard.00000.mds is missing"),
    },
    "lance": {
        "missing key": (lance_column("action", None), "action is missing"),
        "missing rewards": (lance_column("next/reward", None), "next/reward is missing"),
        "unequal lengths": (
            lance_column("observation", lambda rows: [*rows[:-1], None]),
            "observation: expected a value in every row, found 1 nulls",
        ),
        "objects": (
            lance_column("next/terminated", texts),
            "next/terminated: expected one flag per step, found no numbers",
        ),
        "NaN seen": (
            lance_column("observation", value(NAN, 9)),
            "observation: expected finite numbers, found NaN in row 9",
        ),
        "infinite actions": (
            lance_column("action", value(INF, 9)),
            "action: expected finite numbers, found inf in row 9",
        ),
        "infinite rewards": (
            lance_column("next/reward", value(INF, 9)),
            "next/reward: expected finite numbers, found inf",
        ),
        "cut off": (lance_data, ".lance: expected "),
        "too many buffers": (lance_footer, ".lance: expected at most "),
    },
    "array_record": {
        "missing key": (records("actions", None), "record 0: action is missing"),
        "missing later": (
            records("actions", None, first=2),
            "record 2: actions: expected float32[7, 2]",
        ),
        "unequal lengths": (records("actions", fewer, first=1), "record 1: actions: expected float32[1, 2]"),
        "objects": (records("actions", pickled), "record 0: action is missing"),
        "NaN seen": (records("observation", value(NAN, 0)), "observation: expected finite numbers, found NaN in row 0"),
        "infinite actions": (records("actions", value(INF, 0)), "actions: expected finite numbers, found inf in row 0"),
        "infinite rewards": (records("rewards", value(INF, 0)), "rewards: expected finite numbers, found inf in row 0"),
        "a step left out": (records("rlx", lambda one: {**one, "start": 1}, first=1), "record 1: rlx: expected step 0"),
        "no end": (records("rlx", lambda one: {**one, "is_last": False}, first=4), "expected it at the last step"),
        "cut off": (at("data_000000.array_record", cut), "is damaged"),
    },
}
CASES["hf_parquet"] = CASES["parquet"]
NOT_FOUND = {"missing key of dopamine", "missing file of torchrl", "missing file of mds"}
REFUSED = {
    "unknown version of minari",
    "unknown version of d3rlpy",
    "unknown version of lerobot",
    "missing feature of lerobot",
    "a path that leaves of lerobot",
    "another file format of rlds",
    "a path that leaves of rlds",
}
