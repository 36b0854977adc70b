"""What rlx and other packages bring along: formats, transforms and commands, by name.

A package adds to it by entry points of the groups ``rlx.formats``, ``rlx.transforms`` and ``rlx.commands``, and rlx's
own are listed in the same form. Nothing is imported before it is used, so a broken package breaks only its own names.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any, Literal

from rlx.errors import PluginError

logger = logging.getLogger(__name__)
Group = Literal["rlx.formats", "rlx.transforms", "rlx.commands"]
_RLX = "rlx"

OWN: Mapping[Group, Mapping[str, str]] = MappingProxyType(
    {
        "rlx.formats": {
            "array_record": "rlx.formats.array_record:FORMAT",
            "buffer": "rlx.formats.buffer:FORMAT",
            "d3rlpy": "rlx.formats.d3rlpy:FORMAT",
            "d4rl": "rlx.formats.d4rl:FORMAT",
            "dopamine": "rlx.formats.dopamine:FORMAT",
            "h5": "rlx.formats.batches:H5",
            "hf_parquet": "rlx.formats.parquet:HF_PARQUET",
            "jsonl": "rlx.formats.batches:JSONL",
            "lance": "rlx.formats.lance:FORMAT",
            "lerobot": "rlx.formats.lerobot:FORMAT",
            "mds": "rlx.formats.mds:FORMAT",
            "minari": "rlx.formats.minari:FORMAT",
            "npz": "rlx.formats.npz:FORMAT",
            "parquet": "rlx.formats.parquet:FORMAT",
            "pt": "rlx.formats.batches:PT",
            "rlds": "rlx.formats.rlds:FORMAT",
            "rlu": "rlx.formats.rl_unplugged:FORMAT",
            "robomimic": "rlx.formats.robomimic:FORMAT",
            "torchrl": "rlx.formats.torchrl:FORMAT",
            "zarr": "rlx.formats.batches:ZARR",
        },
        "rlx.transforms": {
            "resize": "rlx.transform.images:Resize",
            "crop": "rlx.transform.images:Crop",
            "grayscale": "rlx.transform.images:Grayscale",
            "to_float": "rlx.transform.scaling:ToFloat",
            "normalize": "rlx.transform.scaling:Normalize",
            "clip_reward": "rlx.transform.scaling:RewardClip",
            "sign_reward": "rlx.transform.scaling:RewardSign",
            "scale_reward": "rlx.transform.scaling:ScaleReward",
            "frame_skip": "rlx.transform.multi_step:FrameSkip",
            "n_step": "rlx.transform.multi_step:NStep",
            "return_to_go": "rlx.transform.multi_step:ReturnToGo",
            "select": "rlx.transform.keys:Select",
            "exclude": "rlx.transform.keys:Exclude",
            "rename": "rlx.transform.keys:Rename",
            "cast": "rlx.transform.keys:Cast",
            "cat_tensors": "rlx.transform.keys:CatTensors",
            "relabel": "rlx.transform.functions:Relabel",
            "filter": "rlx.transform.selections:Filter",
            "subsample": "rlx.transform.selections:Subsample",
            "trajectories": "rlx.transform.selections:Numbered",
        },
        "rlx.commands": {
            "list": "rlx_cli.transferring:list_runs",
            "download": "rlx_cli.transferring:download",
            "convert": "rlx_cli.creating:convert",
            "collect": "rlx_cli.creating:collect",
            "preprocess": "rlx_cli.preprocessing:preprocess",
            "merge": "rlx_cli.merging:merge",
            "split": "rlx_cli.merging:split",
            "inspect": "rlx_cli.inspecting:inspect",
            "cite": "rlx_cli.inspecting:cite",
            "view": "rlx_cli.viewing:view",
            "sample": "rlx_cli.sampling:sample",
            "verify": "rlx_cli.checking:verify",
            "doctor": "rlx_cli.checking:doctor",
            "diff": "rlx_cli.checking:diff",
            "repair": "rlx_cli.checking:repair",
            "push": "rlx_cli.transferring:push",
            "pull": "rlx_cli.transferring:pull",
        },
    }
)


@dataclass(frozen=True, slots=True)
class Plugin:
    """One name of a group.

    Args:
        group: where it belongs.
        name: for users.
        value: what it stands for: ``module:attribute``.
        package: name and version of the distribution that brings it along; ``rlx`` for rlx's own.
    """

    group: Group
    name: str
    value: str
    package: str

    @property
    def is_own(self) -> bool:
        """Whether it is of rlx itself."""
        return self.package == _RLX

    def load(self, kind: type) -> Any:
        """Return the object, which imports its module.

        Args:
            kind: what it is an instance of.

        Raises:
            PluginError: it cannot be imported, or is of another kind.
        """
        module, _, attribute = self.value.partition(":")
        try:
            found = import_module(module)
            for part in attribute.split("."):
                found = getattr(found, part)
        except Exception as exc:  # whatever a package does when it is imported
            raise PluginError(
                f"{self} cannot be loaded: {type(exc).__name__}: {exc}", hint=f"update or uninstall {self.package}"
            ) from exc
        if not isinstance(found, kind):
            raise PluginError(f"{self} is a {type(found).__name__}: expected a {kind.__name__}")
        return found

    @property
    def noun(self) -> str:
        """What it is: ``format``, ``transform`` or ``command``."""
        return self.group.removeprefix("rlx.").removesuffix("s")

    def __str__(self) -> str:
        return f"{self.noun} {self.name!r} of {self.package} ({self.value})"


@cache
def plugins(group: Group) -> Mapping[str, Plugin]:
    """Return everything of a group by name: rlx's own first, then what packages add, by the packages' names.

    A name that is taken is refused: the log says whose it is.

    Example:
        >>> plugins("rlx.transforms")["crop"].value
        'rlx.transform.images:Crop'
    """
    found = {name: Plugin(group, name, value, _RLX) for name, value in OWN[group].items()}
    for plugin in sorted(_installed(), key=lambda plugin: plugin.package):
        if plugin.group == group and (taken := found.setdefault(plugin.name, plugin)) is not plugin:
            logger.warning("%s is refused: %s has that name", plugin, taken.package)
    return MappingProxyType(found)


def added() -> list[str]:
    """Return what other packages add, a line for each.

    Example:
        >>> [line for line in added() if line.startswith("rlx ")]
        []
    """
    found: dict[str, list[str]] = {}
    for group in OWN:
        for plugin in plugins(group).values():
            if not plugin.is_own:
                found.setdefault(plugin.package, []).append(f"{plugin.noun} {plugin.name}")
    return [f"{package}: {', '.join(names)}" for package, names in sorted(found.items())]


def _installed() -> Iterator[Plugin]:
    """Yield what the distributions on ``sys.path`` add; those in front hide others of the same name."""
    # importlib.metadata would take a quarter of the time of ``rlx --help``.
    seen = set[str]()
    for folder in sys.path:
        try:
            names = [name for name in os.listdir(folder or ".") if name.endswith(".dist-info")]
        except OSError:
            continue
        for name in names:
            distribution, _, version = name.removesuffix(".dist-info").partition("-")
            if distribution in seen:
                continue
            seen.add(distribution)
            try:
                with open(os.path.join(folder, name, "entry_points.txt"), encoding="utf-8") as file:
                    text = file.read()
            except (OSError, UnicodeDecodeError):
                continue
            if "[rlx." in text:
                yield from _listed(text, f"{distribution.replace('_', '-')} {version}")


def _listed(text: str, package: str) -> Iterator[Plugin]:
    group: Group | None = None
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            group = next((known for known in OWN if line == f"[{known}]"), None)
        elif group and line and not line.startswith(("#", ";")):
            name, _, value = line.partition("=")
            yield Plugin(group, name.strip(), value.partition("[")[0].strip(), package)
