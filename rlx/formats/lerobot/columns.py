"""The columns that a LeRobot dataset describes, and the fields that they become."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import CorruptShardError, SchemaMismatchError
from rlx.formats.common.fields import NOT_NUMBERS_OR_TEXT, NOT_OF_STEPS, ExtraFields, can_be_noted
from rlx.formats.common.parquet_file import opened
from rlx.formats.common.rows.table import column_rows
from rlx.formats.lerobot.layout import (
    DONE,
    EPISODE,
    FRAME,
    INDEX,
    INFO,
    TASK,
    TASK_INDEX,
    TASK_LINES,
    TASKS,
    TERMINATED,
    TRUNCATED,
)
from rlx.formats.lerobot.layout import feature_of as written
from rlx.formats.lerobot.listing import is_old, json_lines, plain_rows
from rlx.schema import TEXT, Field, Role

# Names of the fields of flags that are set before the end of an episode.
FLAG_FIELDS = {DONE: "dones", TERMINATED: "terminations", TRUNCATED: "truncations"}
_DERIVED = frozenset({FRAME, EPISODE, INDEX})
_NO_FIELDS = frozenset({DONE, TERMINATED, TRUNCATED, TASK_INDEX})
# Keys of info.json that are read, or derived from the files.
_OF_FILES = """
codebase_version total_episodes total_frames total_tasks total_chunks total_videos chunks_size data_files_size_in_mb
video_files_size_in_mb data_path video_path features
"""
_INFO_OF_FILES = frozenset(_OF_FILES.split())
_MAX_SIZE = 2**32
# Pandas' name of an unnamed index, as LeRobot's is in some releases.
_TASK_COLUMNS = (TASK, "__index_level_0__")
_SCANNED_ROWS = 2**14
_DEPTH = "a video of depths, which rlx does not read"
Noted = Any


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature that a dataset describes, and its column.

    Args:
        tasks: text by number, if its numbers stand for texts.
        is_video: whether its rows are frames of videos.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    is_image: bool
    tasks: Mapping[int, str] | None = None
    is_video: bool = False

    def rows(self, column: Any, path: Path) -> NDArray[Any]:
        """Return an Arrow array as rows [n, *shape]; of shape [1], as rows [n]."""
        if self.tasks is None:
            kind = (self.dtype, () if self.shape == (1,) else self.shape)
            return column_rows(column, kind, f"{path}: {self.name}", is_picture=self.is_image)
        numbers = plain_rows(path, self.name, column)
        found = np.empty(len(numbers), object)
        try:
            found[:] = [self.tasks[number] for number in numbers.tolist()]
        except KeyError as exc:
            raise CorruptShardError(f"{path}: {self.name}: expected the number of a task, found {exc.args[0]}") from exc
        return found


def read_features(info: Mapping[str, Any], place: Path) -> tuple[dict[str, Feature], ExtraFields]:
    """Return the columns of numbers, texts or pictures, by name, and why others are not taken."""
    found: dict[str, Feature] = {}
    extras = ExtraFields(("terminated", "truncated"))
    try:
        for name, said in info["features"].items():
            feature = _feature(name, said)
            if feature is None:
                extras.leave(name, _DEPTH if said["dtype"] == "video" else NOT_NUMBERS_OR_TEXT)
            elif name not in _DERIVED:
                found[name] = feature
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise CorruptShardError(f"{place}: features: expected dtype and shape of each, found {exc!r:.200}") from exc
    return found, extras


def add_fields(features: Mapping[str, Feature], noted: Noted, extras: ExtraFields) -> dict[str, Feature]:
    """Add the fields of the columns, except flags, to ``extras``; return the column of each by the field's name.

    Args:
        noted: the notes of rlx, if it wrote the dataset: names of the fields, and their shapes.
    """
    seen = [name for name in features if name.startswith("observation.")]
    columns: dict[str, Feature] = {}
    for name, feature in features.items():
        if name in _NO_FIELDS:
            continue
        field_name = _noted_name(noted, name) or _field_name(name, is_single=len(seen) == 1)
        field = _noted_field(noted, field_name, feature)
        if field is None:
            shape = () if feature.shape == (1,) else feature.shape
            field = Field(feature.dtype, shape, _role(name, field_name))
        if extras.add(name, field_name, (field.dtype, field.shape), field.role, field.space):
            columns[field_name] = feature
    return columns


def add_flags(features: Mapping[str, Feature], extras: ExtraFields) -> dict[str, Feature]:
    """Add fields for flags that are data, as they are set before the end of an episode; see ``add_fields``."""
    fields = {FLAG_FIELDS[name]: feature for name, feature in features.items()}
    return {
        name: feature
        for name, feature in fields.items()
        if extras.add(feature.name, name, (feature.dtype, ()), Role.NEXT)
    }


def described(info: Mapping[str, Any], features: Mapping[str, Feature], extras: ExtraFields) -> dict[str, Any]:
    """Return the metadata of the whole dataset, for the notes and for export; skips values that are too long."""
    noted: dict[str, Any] = {}
    for name, said in info.items():
        if name in _INFO_OF_FILES:
            continue
        if can_be_noted(said):
            noted[name] = said
        else:
            extras.leave(f"{INFO}: {name}", NOT_OF_STEPS)
    columns: dict[str, Any] = {}
    for field_name, feature in features.items():
        names = info["features"].get(feature.name, {}).get("names") if feature.tasks is None else None
        columns[feature.name] = {"field": field_name} | ({"names": names} if names and can_be_noted(names) else {})
    return {**noted, "features": {name: said for name, said in columns.items() if name != TASK_INDEX}}


def _feature(name: str, described: Mapping[str, Any]) -> Feature | None:
    dtype, shape = described["dtype"], tuple(described["shape"])
    if not all(type(size) is int and 0 <= size < _MAX_SIZE for size in shape):
        raise ValueError(f"{name}: shape {described['shape']!r:.80}")
    if dtype in ("image", "video"):
        if len(shape) != 3:
            raise ValueError(f"{name}: shape {list(shape)} of {dtype}")
        shape = _channels_last(shape, described.get("names"))
        if (is_video := dtype == "video") and _is_depth(described):
            return None
        # LeRobot encodes and decodes every video in colour, whatever the shape says.
        shape = (*shape[:2], 3) if is_video else shape
        try:
            Field("uint8", shape, Role.OBSERVATION)
        except SchemaMismatchError as exc:
            raise ValueError(f"{name}: {exc}") from exc
        return Feature(name, "uint8", shape, is_image=not is_video, is_video=is_video)
    try:
        Field(dtype, shape, Role.STEP)
    except (SchemaMismatchError, TypeError):
        return None
    return Feature(name, dtype, shape, is_image=False)


def _channels_last(shape: tuple[int, ...], names: Any) -> tuple[int, ...]:
    """Return the shape [H, W, C]; the names of the axes say whether channels come first, as in some older datasets."""
    is_first = isinstance(names, list) and len(names) == len(shape) and str(names[0]).startswith("channel")
    return (*shape[1:], shape[0]) if is_first else shape


def _is_depth(described: Mapping[str, Any]) -> bool:
    info = described.get("info") or described.get("video_info")
    return isinstance(info, dict) and any(info.get(key) is True for key in ("is_depth_map", "video.is_depth_map"))


def _field_name(name: str, *, is_single: bool) -> str:
    if name.startswith("observation.") and is_single:
        return "observation"
    return name.removeprefix("next.").replace(".", "/")


def _role(name: str, field_name: str) -> Role:
    if field_name.split("/")[0] == "observation":
        return Role.OBSERVATION
    return Role.NEXT if name.startswith("next.") else Role.STEP


def _noted_name(noted: Noted, name: str) -> str | None:
    try:
        found = noted["features"][name]
    except (TypeError, KeyError):
        return None
    return found if isinstance(found, str) else None


def is_noted(noted: Noted, name: str) -> bool:
    """Return whether rlx's note lists a field of this name."""
    try:
        return name in noted["schema"]
    except (TypeError, KeyError):
        return False


def _noted_field(noted: Noted, name: str, feature: Feature) -> Field | None:
    """Return the field that was written, if it fits the column: a number and a vector of one look alike.

    A picture whose channels were moved keeps its role.
    """
    try:
        field = Field.from_json(noted["schema"][name])
    except (TypeError, KeyError, ValueError, AttributeError, SchemaMismatchError):
        return None
    if field.dtype != feature.dtype:
        return None
    if (field.shape or (1,)) == feature.shape:
        return field
    is_moved = feature.is_image and written(field).shape == feature.shape
    return Field(field.dtype, feature.shape, field.role) if is_moved else None


def read_tasks(root: Path, info: Mapping[str, Any]) -> Feature | None:
    """Return the column of the tasks; None if the dataset has no table of them."""
    path = root / (TASK_LINES if is_old(info) else TASKS)
    if not path.is_file():
        return None
    texts = _task_lines(path) if is_old(info) else _task_table(path)
    return Feature(TASK_INDEX, TEXT, (1,), is_image=False, tasks=texts)


def _task_lines(path: Path) -> dict[int, str]:
    texts: dict[int, str] = {}
    for line in json_lines(path):
        number, text = line.get(TASK_INDEX), line.get(TASK)
        if type(number) is not int or not isinstance(text, str):
            raise CorruptShardError(f"{path}: expected {TASK_INDEX} and {TASK}, found {number!r:.40} and {text!r:.40}")
        texts[number] = text
    return texts


def _task_table(path: Path) -> dict[int, str]:
    texts: dict[int, str] = {}
    with opened(path) as file:
        name = next((name for name in _TASK_COLUMNS if name in file.names), TASK)
        for batch in file.batches((TASK_INDEX, name), _SCANNED_ROWS):
            numbers, found = (plain_rows(path, column, batch[column]) for column in (TASK_INDEX, name))
            if numbers.dtype.kind not in "iu" or found.dtype != object:
                raise CorruptShardError(
                    f"{path}: expected whole numbers and texts, found {numbers.dtype} and {found.dtype}"
                )
            texts.update(zip(numbers.tolist(), found.tolist(), strict=True))
    return texts
