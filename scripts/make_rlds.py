"""Writes tests/golden/rlds: a dataset that TensorFlow Datasets wrote. Run where that is installed."""

import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import tensorflow_datasets as tfds

DIRECTORY = Path(__file__).parents[1] / "tests/golden/rlds"
LENGTHS = (4, 1, 6)
TERMINAL = (True, False, False)


def main() -> None:
    """Writes episodes of every kind of feature in two shards, and what is in them."""
    features = tfds.features
    step = {
        "observation": {
            "camera": features.Image(shape=(8, 6, 3)),
            "grey": features.Image(shape=(9, 8, 1)),
            "photo": features.Image(shape=(8, 8, 3), encoding_format="jpeg"),
            "angle": features.Tensor(shape=(2,), dtype=np.float64, encoding="bytes"),
            "rough": features.Tensor(shape=(2, 2), dtype=np.float32),
        },
        "action": features.Tensor(shape=(2,), dtype=np.int16),
        "reward": features.Scalar(dtype=np.float32),
        "discount": features.Scalar(dtype=np.float32),
        "is_first": np.bool_,
        "is_last": np.bool_,
        "is_terminal": np.bool_,
        "label": features.ClassLabel(num_classes=5),
        "instruction": features.Text(),
    }
    random = np.random.default_rng(0)
    episodes = [
        (str(number), {"steps": [_step(random, t, length, ends) for t in range(length + 1)], "episode_id": 10 + number})
        for number, (length, ends) in enumerate(zip(LENGTHS, TERMINAL, strict=True))
    ]
    described = features.FeaturesDict({"steps": features.Dataset(step), "episode_id": features.Scalar(dtype=np.int64)})
    made = DIRECTORY.with_name("rlds.partial")
    builder = tfds.dataset_builders.store_as_tfds_dataset(
        name="walks", version="1.2.3", features=described, split_datasets={"train": episodes}, data_dir=made
    )
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    shutil.copytree(builder.data_path, DIRECTORY)
    shutil.rmtree(made)
    # As TensorFlow Datasets gives them, for it shuffles what it writes.
    found = [
        list(episode["steps"]) for episode in tfds.as_numpy(tfds.builder_from_directory(DIRECTORY).as_dataset("train"))
    ]
    arrays: dict[str, Any] = {
        f"{number}/{name}": np.stack([_leaf(step, name) for step in steps])
        for number, steps in enumerate(found)
        for name in ("action", "reward", "is_terminal", "label", *(f"observation/{one}" for one in step["observation"]))
    }
    np.savez_compressed(DIRECTORY / "expected.npz", allow_pickle=False, **arrays)


def _step(random: np.random.Generator, t: int, length: int, ends: bool) -> dict[str, Any]:
    is_last = t == length
    return {
        "observation": {
            "camera": random.integers(0, 256, (8, 6, 3), np.uint8),
            "grey": random.integers(0, 256, (9, 8, 1), np.uint8),
            "photo": random.integers(0, 256, (8, 8, 3), np.uint8),
            "angle": random.normal(size=2),
            "rough": random.normal(size=(2, 2)).astype(np.float32),
        },
        "action": random.integers(-300, 300, 2).astype(np.int16),
        "reward": np.float32(random.normal()),
        "discount": np.float32(1),
        "is_first": t == 0,
        "is_last": is_last,
        "is_terminal": is_last and ends,
        "label": int(random.integers(5)),
        "instruction": "walk",
    }


def _leaf(step: Any, name: str) -> Any:
    for part in name.split("/"):
        step = step[part]
    return step


def unusual(directory: Path) -> None:
    """Write a dataset of the rarer kinds of features, in ArrayRecord files, and what is in it."""
    features = tfds.features
    kinds = {
        "depth": features.Image(shape=(5, 4, 1), dtype=np.uint16, encoding_format="png"),
        "height": features.Image(shape=(5, 4, 1), dtype=np.float32, encoding_format="png"),
        "brief": features.Tensor(shape=(3,), dtype=ml_dtypes.bfloat16, encoding="bytes"),
        "packed": features.Tensor(shape=(2, 2), dtype=np.float64, encoding="zlib"),
        "both": features.Tensor(shape=(2,), dtype=ml_dtypes.bfloat16, encoding="zlib"),
    }
    flags = dict.fromkeys(("is_first", "is_last", "is_terminal"), np.bool_)
    step = {"observation": kinds, "action": np.int64, "reward": np.float32, **flags}
    described = features.FeaturesDict({"steps": features.Dataset(step)})
    random = np.random.default_rng(0)
    episodes = [
        (str(number), {"steps": [_unusual_step(random, t, length) for t in range(length + 1)]})
        for number, length in enumerate((3, 1))
    ]
    made = directory.with_name("unusual.partial")
    builder = tfds.dataset_builders.store_as_tfds_dataset(
        name="kinds",
        version="1.0.0",
        features=described,
        split_datasets={"train": episodes},
        data_dir=made,
        file_format="array_record",
        disable_shuffling=True,
    )
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(builder.data_path, directory)
    shutil.rmtree(made)
    found = tfds.builder_from_directory(directory).as_data_source("train")
    steps = [step for number in range(len(found)) for step in found[number]["steps"]]
    arrays = {name: np.stack([np.asarray(step["observation"][name]) for step in steps]) for name in kinds}
    arrays = {name: rows.astype(np.float32) if rows.dtype.kind == "V" else rows for name, rows in arrays.items()}
    np.savez_compressed(directory / "expected.npz", allow_pickle=False, **arrays)


def _unusual_step(random: np.random.Generator, t: int, length: int) -> dict[str, Any]:
    return {
        "observation": {
            "depth": random.integers(0, 2**16, (5, 4, 1), np.uint16),
            "height": random.normal(size=(5, 4, 1)).astype(np.float32),
            "brief": random.normal(size=3).astype(ml_dtypes.bfloat16),
            "packed": random.normal(size=(2, 2)),
            "both": random.normal(size=2).astype(ml_dtypes.bfloat16),
        },
        "action": t,
        "reward": np.float32(t),
        "is_first": t == 0,
        "is_last": t == length,
        "is_terminal": t == length,
    }


if __name__ == "__main__":
    main()
    unusual(DIRECTORY.with_name("rlds_kinds"))
