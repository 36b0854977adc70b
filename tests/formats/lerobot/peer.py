"""LeRobot's own reader, importable beside a build of torch that torchvision's compiled operators do not fit."""

import importlib
from importlib.util import find_spec
from typing import Any

import torch


def lerobot_datasets() -> Any:
    """Return the module of LeRobot's reader, which imports torchvision for its transforms.

    torchvision's wheel is compiled for the CUDA build of torch. Beside the CPU build its operators do not load, and its
    import fails as two of them are not declared. No reader calls them, so a declaration is all that is needed.

    Raises:
        ImportError: LeRobot is not installed.
    """
    if find_spec("torchvision") is not None:
        try:
            importlib.import_module("torchvision")
        except RuntimeError:
            operators = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
            for name in ("nms", "qnms"):
                schema = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                operators.define(schema)  # type: ignore[no-untyped-call]
            _kept.append(operators)
    return importlib.import_module("lerobot.datasets.lerobot_dataset")


_kept: list[torch.library.Library] = []  # an operator lives as long as its library
