"""Writes tests/golden/lerobot: a dataset that LeRobot recorded. Run where LeRobot 0.4 or later is installed."""

import shutil
from pathlib import Path

import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset

DIRECTORY = Path(__file__).parents[1] / "tests/golden/lerobot"
LENGTHS = (4, 2, 6)  # LeRobot cannot save an episode of one step
TASKS = ("push", "pull", "push")


def main() -> None:
    """Records episodes of every kind of feature but video, of two tasks, and saves what is in them."""
    random = np.random.default_rng(0)
    features = {
        "observation.state": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "z"]},
        "observation.images.top": {"dtype": "image", "shape": (12, 10, 3), "names": ["height", "width", "channels"]},
        "observation.grid": {"dtype": "float64", "shape": (2, 3), "names": None},
        "action": {"dtype": "float32", "shape": (2,), "names": None},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
        "next.done": {"dtype": "bool", "shape": (1,), "names": None},
        "next.success": {"dtype": "bool", "shape": (1,), "names": None},
    }
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    dataset = LeRobotDataset.create("rlx/golden", 10, features, root=DIRECTORY, use_videos=False)
    frames = []
    for length, task in zip(LENGTHS, TASKS, strict=True):
        for step in range(length):
            frame = {
                "observation.state": random.normal(size=3).astype(np.float32),
                "observation.images.top": random.integers(0, 256, (12, 10, 3), np.uint8),
                "observation.grid": random.normal(size=(2, 3)),
                "action": random.normal(size=2).astype(np.float32),
                "next.reward": random.normal(size=1).astype(np.float32),
                "next.done": np.array([step == length - 1]),
                "next.success": np.array([step == length - 1 and length > 1]),
            }
            dataset.add_frame({**frame, "task": task})
            frames.append(frame)
        dataset.save_episode()
    dataset.finalize()
    shutil.rmtree(DIRECTORY / "images", ignore_errors=True)
    arrays = {name: np.stack([frame[name] for frame in frames]) for name in features}
    np.savez_compressed(DIRECTORY / "expected.npz", allow_pickle=False, **arrays)


if __name__ == "__main__":
    main()
