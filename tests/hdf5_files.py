"""HDF5 files of other projects that have no writer to install, laid out as they document it, and damage to any."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

Change = Callable[[h5py.File], None]
Arrays = dict[str, np.ndarray[Any, Any]]


def write_d4rl(path: Path, *, ends: str = "...t.x...t..", next_observations: bool = True, **more: Any) -> Arrays:
    """A file of D4RL: a step a letter; t is terminal, x a time-out. Observations are ``1000 * episode + t``.

    Args:
        path: where to write it.
        ends: what each step is.
        next_observations: whether these are there too.
        more: further datasets, or others in their place; None leaves one out.

    Returns:
        what was written.
    """
    steps, random = len(ends), np.random.default_rng(0)
    is_last = np.array([letter != "." for letter in ends], bool)
    episode = np.cumsum(is_last) - is_last
    begins = np.flatnonzero(np.concatenate([[True], is_last]))
    number = (1000 * episode + np.arange(steps) - begins[episode]).astype("f4")
    arrays: Arrays = {
        "observations": np.stack([number, -number], 1),
        "actions": random.uniform(-1, 1, (steps, 3)).astype("f4"),
        "rewards": random.normal(size=steps).astype("f4"),
        "terminals": np.array([letter == "t" for letter in ends]),
        "timeouts": np.array([letter == "x" for letter in ends]),
        "infos/qpos": random.normal(size=(steps, 2)),
        "metadata/algorithm": np.bytes_("SAC"),  # type: ignore[dict-item]
    }
    if next_observations:
        arrays["next_observations"] = np.stack([number + 1, -number - 1], 1)
    arrays = {name: rows for name, rows in {**arrays, **more}.items() if rows is not None}
    with h5py.File(path, "w") as file:
        for name, rows in arrays.items():
            file[name] = rows
    return arrays


def write_robomimic(path: Path, lengths: Sequence[int] = (4, 1, 7), *, next_obs: bool = True) -> dict[int, Arrays]:
    """A file of robomimic; every second demonstration ends in success. Returns each one's datasets."""
    random = np.random.default_rng(0)
    demos: dict[int, Arrays] = {}
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["total"] = sum(lengths)
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "env_type": 1, "env_kwargs": {}})
        for number, length in enumerate(lengths):
            seen = {
                "agentview_image": random.integers(0, 256, (length + 1, 12, 12, 3), np.uint8),
                "robot0_eef_pos": random.normal(size=(length + 1, 3)),
            }
            demos[number] = {
                "actions": random.uniform(-1, 1, (length, 7)),
                "rewards": random.random(length),
                "dones": (np.arange(length) == length - 1).astype("i8") * (number % 2 == 0),
                "states": random.normal(size=(length, 5)),
                **{f"obs/{key}": rows[:-1] for key, rows in seen.items()},
                **({f"next_obs/{key}": rows[1:] for key, rows in seen.items()} if next_obs else {}),
            }
            group = data.create_group(f"demo_{number}")
            group.attrs["num_samples"] = length
            group.attrs["model_file"] = "<mujoco/>"
            for name, rows in demos[number].items():
                group[name] = rows
        file["mask/train"] = np.array([b"demo_0", b"demo_2"])
    return demos


def changed(path: Path, change: Change) -> None:
    """Does something to a file."""
    with h5py.File(path, "a") as file:
        change(file)


def delete(name: str) -> Change:
    return lambda file: file.__delitem__(name)


def replace(name: str, values: Any, **how: Any) -> Change:
    def change(file: h5py.File) -> None:
        if name in file:
            del file[name]
        file.create_dataset(name, data=values, **how)

    return change


def set_row(name: str, row: int, value: Any) -> Change:
    return lambda file: file[name].__setitem__(row, value)


def resize(name: str, rows: int) -> Change:
    return lambda file: file[name].resize(rows, axis=0)


def declare(name: str, shape: tuple[int, ...], *, chunks_written: int = 0) -> Change:
    """A dataset of any size, of which nothing, or a few chunks, are in the file."""

    def change(file: h5py.File) -> None:
        del file[name]
        found = file.create_dataset(name, shape, "f8", chunks=(1000, *shape[1:]))
        for number in range(chunks_written):
            found[1000 * number] = 1

    return change


def group_instead(name: str) -> Change:
    def change(file: h5py.File) -> None:
        del file[name]
        file.create_group(name)

    return change


def external(name: str) -> Change:
    """What lies in another file."""

    def change(file: h5py.File) -> None:
        del file[name]
        file[name] = h5py.ExternalLink("/etc/passwd", "/x")

    return change


def soft(name: str, target: str) -> Change:
    """A link to another place in the file, which may be a link to another file."""

    def change(file: h5py.File) -> None:
        del file[name]
        file["elsewhere"] = h5py.ExternalLink("/etc/passwd", "/x")
        file[name] = h5py.SoftLink(target)

    return change


def external_storage(name: str, size: int) -> Change:
    """A dataset whose bytes are those of another file."""

    def change(file: h5py.File) -> None:
        dtype, shape = file[name].dtype, file[name].shape
        del file[name]
        file.create_dataset(name, shape, dtype, external=[("/etc/passwd", 0, size)])

    return change


def virtual(name: str, source: Path) -> Change:
    """A dataset whose values are those of another file."""

    def change(file: h5py.File) -> None:
        dtype, shape = file[name].dtype, file[name].shape
        del file[name]
        layout = h5py.VirtualLayout(shape, dtype)
        layout[:] = h5py.VirtualSource(str(source), "x", shape)
        file.create_virtual_dataset(name, layout)

    return change


def objects(name: str) -> Change:
    """Rows of text where there should be numbers."""

    def change(file: h5py.File) -> None:
        rows = len(file[name])
        del file[name]
        file.create_dataset(name, data=["x"] * rows, dtype=h5py.string_dtype())

    return change
