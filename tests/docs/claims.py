"""What the tables of migrating.md claim, and the functions that run it, one per row.

A claim is registered by the first name of its row, or by the whole advice of the rows that share it.
"""

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict

from rlx.buffer import LazyTensorStorage, TensorDictReplayBuffer

PAGE = Path(__file__).parents[2] / "docs/migrating.md"

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    theirs: Any = None
    if find_spec("torchrl") is not None:
        import torchrl.collectors.utils
        import torchrl.data
        import torchrl.envs

        theirs = torchrl


@dataclass(frozen=True, slots=True)
class Claim:
    """One row of a table.

    Args:
        name: its first cell without quotes; of a list of names, the first.
        text: what differs, or what to use instead.
    """

    name: str
    text: str


def claims() -> list[Claim]:
    """Return the rows that claim anything."""
    found: list[Claim] = []
    for line in re.findall(r"^\| (.*) \|$", PAGE.read_text().replace(" | |\n", " |  |\n"), re.MULTILINE):
        first, *cells = (cell.strip() for cell in line.split(" | "))
        if "torchrl" in first.lower() or first in ("", "argument or method"):
            continue
        text = cells[1] if len(cells) == 2 else "; ".join(filter(None, cells[1:]))  # the last says why
        if text:
            found.append(Claim(first.split("`, `")[0].replace("`", ""), text))
    return found


CLAIMED: dict[str, Callable[..., None]] = {}
ELSEWHERE: dict[str, str] = {}
"""By the name of a row, the test that runs what it claims with several processes, as ``FILE::TEST``."""


def claim(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register what runs the claims of these rows, or of this advice; its parameters are fixtures."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        for name in names:
            assert name not in CLAIMED, name
            CLAIMED[name] = function
        return function

    return register


def numbered(*shape: int, start: int = 0, **more: Any) -> TensorDict:
    """Return steps whose observations are numbers, that reward each with 1, in one episode."""
    number = start + torch.arange(torch.Size(shape).numel()).reshape(*shape, 1)
    flags = {name: torch.zeros(*shape, 1, dtype=torch.bool) for name in ("done", "terminated", "truncated")}
    after = {"observation": number + 1, "reward": torch.ones(*shape, 1), **flags}
    return TensorDict({"observation": number, "next": after, **more}, shape)


def filled(steps: int = 10, **options: Any) -> TensorDictReplayBuffer:
    """Return a buffer with some steps."""
    buffer = TensorDictReplayBuffer(**{"storage": LazyTensorStorage(20), "batch_size": 4, **options})
    if steps:
        buffer.extend(numbered(steps))
    return buffer
