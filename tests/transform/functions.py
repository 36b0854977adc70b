"""Functions of a user's, as rlx is given them by name."""

from typing import Any

import torch


def same(steps: Any) -> Any:
    return steps


SEEN: list[Any] = []


def noted(steps: Any) -> Any:
    SEEN.append(steps.clone())
    return steps


def doubled(steps: Any) -> Any:
    steps["observation"] = steps["observation"] * 2
    steps["next", "observation"] = steps["next", "observation"] * 2
    steps["next", "reward"] = steps["next", "reward"] + 1
    return steps


def noisy(steps: Any) -> Any:
    steps["noise"] = torch.rand(steps.batch_size)
    return steps


def without_every_third(steps: Any) -> Any:
    return steps[steps["index"] % 3 != 2]


def fails_on_three(steps: Any) -> Any:
    if (steps["collector", "traj_ids"] == 3).any():
        raise KeyError("three")
    return steps


def dies_on_three(steps: Any) -> Any:
    if (steps["collector", "traj_ids"] == 3).any():
        import os  # noqa: PLC0415

        os._exit(1)
    return steps
