"""Writes tests/golden/lerobot_v3 or lerobot_v2: a dataset with videos that LeRobot recorded, and its reader's frames.

Run where LeRobot 0.4 is installed (version 3, h264), and again with LeRobot 0.3 (version 2.1, AV1). Its reader needs
torchvision 0.23 or earlier for videos without torchcodec.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from tests.formats.lerobot.peer import lerobot_datasets

GOLDEN = Path(__file__).parents[1] / "tests/golden"
LENGTHS, TASKS = (5, 2, 6), ("push", "pull", "push")
HEIGHT, WIDTH, FPS = 48, 64, 10
CAMERA = "observation.images.top"


def main() -> None:
    """Record episodes that a camera filmed, and save what LeRobot's own reader returns."""
    module = lerobot_datasets()
    is_old = module.CODEBASE_VERSION.startswith("v2")
    directory = GOLDEN / ("lerobot_v2" if is_old else "lerobot_v3")
    shutil.rmtree(directory, ignore_errors=True)
    features = {
        "observation.state": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]},
        CAMERA: {"dtype": "video", "shape": (HEIGHT, WIDTH, 3), "names": ["height", "width", "channels"]},
        "action": {"dtype": "float32", "shape": (2,), "names": None},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
        "next.done": {"dtype": "bool", "shape": (1,), "names": None},
    }
    options: dict[str, Any] = {} if is_old else {"vcodec": "h264"}
    dataset = module.LeRobotDataset.create("rlx/golden", FPS, features, root=directory, **options)
    random = np.random.default_rng(0)
    for episode, (length, task) in enumerate(zip(LENGTHS, TASKS, strict=True)):
        for step in range(length):
            frame = {
                "observation.state": random.normal(size=2).astype(np.float32),
                CAMERA: picture(episode, step),
                "action": random.normal(size=2).astype(np.float32),
                "next.reward": np.array([step], np.float32),
                "next.done": np.array([step == length - 1]),
            }
            if is_old:
                dataset.add_frame(frame, task=task)
            else:
                dataset.add_frame({**frame, "task": task})
        dataset.save_episode()
    if not is_old:
        dataset.finalize()
    shutil.rmtree(directory / "images", ignore_errors=True)
    found = module.LeRobotDataset("rlx/golden", root=directory, video_backend="pyav")
    rows = [found[number] for number in range(len(found))]
    frames = np.stack([np.rint(row[CAMERA].numpy() * 255).astype(np.uint8).transpose(1, 2, 0) for row in rows])
    arrays = {
        name: np.stack([row[name].numpy() for row in rows]) for name in (*features, "timestamp") if name != CAMERA
    }
    np.savez_compressed(directory / "expected.npz", allow_pickle=False, **arrays, **{CAMERA: frames})


def picture(episode: int, step: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return a picture that differs between steps and episodes."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    return np.stack([x * 2 + step * 9, y * 3 + episode * 31, x + y + step * 5], -1).astype(np.uint8)


if __name__ == "__main__":
    main()
