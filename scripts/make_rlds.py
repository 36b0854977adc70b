"""Writes tests/golden/rlds: a dataset that TensorFlow Datasets wrote. Run where that is installed."""

import shutil
from pathlib import Path
from typing import Any

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


if __name__ == "__main__":
    main()
