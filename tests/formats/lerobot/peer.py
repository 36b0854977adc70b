"""LeRobot's own reader, importable beside a build of torch that torchvision's compiled operators do not fit."""

import importlib
import sys
import warnings
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchvision's, of operators for images
        declare_operators()
        return importlib.import_module("lerobot.datasets.lerobot_dataset")


def declare_operators() -> None:
    """Make torchvision importable, where it is installed."""
    if find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        operators = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
        _kept.append(operators)
        # What the failed import left behind are not attributes of the package that is imported next.
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]


_kept: list[torch.library.Library] = []  # an operator lives as long as its library
