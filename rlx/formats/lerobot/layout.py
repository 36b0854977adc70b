"""Names of LeRobot's files and columns, and the features that fields become in its Parquet files."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.errors import ExportError
from rlx.formats.common.exporter import extra_fields
from rlx.formats.common.pictures import Arranged, as_it_is, as_pictures
from rlx.formats.common.rows.ted_fields import feature_of as hugging_face_feature
from rlx.formats.common.rows.ted_fields import picture_array
from rlx.schema import TEXT, Field, Role, Schema
from rlx.store.foreign_types import from_rows, pyarrow

INFO, EPISODES, TASKS = "meta/info.json", "meta/episodes", "meta/tasks.parquet"
# A table that rlx adds, because LeRobot has no row for final observations.
FINALS = "meta/final_observations.parquet"
FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}"
DATA_PATH = f"data/{FILE}.parquet"
VIDEO_PATH = f"videos/{{video_key}}/{FILE}.mp4"
# Of version 2, with a file per episode.
OLD_DATA_PATH = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
OLD_VIDEO_PATH = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
EPISODE_LINES, TASK_LINES = "meta/episodes.jsonl", "meta/tasks.jsonl"
DONE, TERMINATED, TRUNCATED = "next.done", "next.terminated", "next.truncated"
TASK, TASK_INDEX, TIMESTAMP = "task", "task_index", "timestamp"
# Columns derived from the position of a step.
FRAME, EPISODE, INDEX = "frame_index", "episode_index", "index"
# Of an episode: its steps, its file, and its range of steps in the dataset.
LENGTH, DATA_CHUNK, DATA_FILE = "length", "data/chunk_index", "data/file_index"
FIRST_INDEX, STOP_INDEX = "dataset_from_index", "dataset_to_index"
# In the table of final observations: whether the recording of the episode was cut.
CUT = "cut"


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_MAX_DIMENSIONS = 5


@dataclass(frozen=True, slots=True)
class WrittenFeature:
    """One feature to write, filled from a field."""

    field: Field
    arranged: Arranged
    is_image: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in LeRobot: a number is a vector of one."""
        return self.arranged.shape or (1,)

    def column(self, rows: NDArray[np.generic]) -> Any:
        """Return rows of the field as an Arrow array."""
        rows = self.arranged.arrange(rows)
        if self.is_image:
            return picture_array(rows)
        if self.shape == (1,):
            return from_rows(rows.reshape(-1))
        return from_rows(rows) if len(self.shape) == 1 else _nested(rows)

    def described(self) -> dict[str, Any]:
        """Return the feature as ``info.json`` has it."""
        names = ["height", "width", "channels"] if self.is_image else None
        return {"dtype": "image" if self.is_image else self.field.dtype, "shape": list(self.shape), "names": names}

    def hugging_face(self, kind: Any) -> dict[str, Any]:
        """Return the feature as the library ``datasets`` describes a column of this Arrow type in the file."""
        if self.is_image or len(self.shape) == 1:
            return hugging_face_feature(kind)
        return {"shape": list(self.shape), "dtype": self.field.dtype, "_type": f"Array{len(self.shape)}D"}

    def metadata(self) -> Mapping[str, str] | None:
        """Return the column's metadata, by which ``datasets`` recognises arrays of several dimensions."""
        if self.is_image or len(self.shape) == 1:
            return None
        return {
            "ARROW:extension:name": f"datasets.features.features.Array{len(self.shape)}DExtensionType",
            "ARROW:extension:metadata": f'[{list(self.shape)}, "{self.field.dtype}"]',
        }

    def counted(self, rows: NDArray[np.generic]) -> NDArray[np.generic]:
        """Return rows of the field for statistics, which LeRobot takes over the last dimension of arrays."""
        rows = self.arranged.arrange(rows)
        return rows if self.is_image else rows.reshape(-1, self.shape[-1])


def features_of(schema: Schema, noted: Any = None) -> dict[str, str]:
    """Return the feature's name of every field that can be written.

    Args:
        noted: metadata of the LeRobot dataset that the data come from, if any: its features keep their names.

    Raises:
        ExportError: a field has too many dimensions.

    Example:
        >>> features_of(Schema.of(observation=("uint8", (84, 84)), action=("int64", ())))["reward"]
        'next.reward'
    """
    known = {said["field"]: called for called, said in _noted_features(noted).items()}
    names: dict[str, str] = {}
    taken = {*defaults(), TASK, DONE, TERMINATED, TRUNCATED} - ({TIMESTAMP} if is_timed(schema) else set())
    extras = extra_fields(schema)
    for name in sorted(schema, key=lambda name: name in extras):
        field = schema[name]
        if name in ("terminated", "truncated") or (name == TASK and has_tasks(schema)):
            continue
        called = next((one for one in (known.get(name), _called(name, field)) if one and one not in taken), None)
        if called is None or (field.role == Role.OBSERVATION and called in (LENGTH, CUT)):
            continue
        names[name] = called
        taken.add(called)
        if len(feature_of(field).shape) > (1 if field.is_text else _MAX_DIMENSIONS):
            what = (
                "texts of at most 1 dimension" if field.is_text else f"arrays of at most {_MAX_DIMENSIONS} dimensions"
            )
            raise ExportError(f"LeRobot holds {what}, found {name} {list(field.shape)}")
    return names


def names_of(noted: Any) -> dict[str, Any]:
    """Return the names of the components of features, by the features' names."""
    return {called: said["names"] for called, said in _noted_features(noted).items() if said.get("names")}


def _noted_features(noted: Any) -> dict[str, Any]:
    """Return the notes of features: the field of each, and perhaps names of its components."""
    features = noted.get("features") if isinstance(noted, dict) else None
    return {
        called: said
        for called, said in (features.items() if isinstance(features, dict) else ())
        if _NAME.fullmatch(called) and isinstance(said, dict) and isinstance(said.get("field"), str)
    }


def has_tasks(schema: Schema) -> bool:
    """Return whether a field has the task of every step."""
    return schema.fields.get(TASK) == Field(TEXT, (), Role.STEP)


def is_timed(schema: Schema) -> bool:
    """Return whether a field has the time of every step."""
    field = schema.fields.get(TIMESTAMP)
    return field is not None and (field.dtype, field.shape, field.role) == ("float32", (), Role.STEP)


def feature_of(field: Field) -> WrittenFeature:
    """Return the feature that a field becomes."""
    pictures = as_pictures(field)
    return WrittenFeature(field, as_it_is(field) if pictures is None else pictures, pictures is not None)


def defaults() -> dict[str, WrittenFeature]:
    """Return the features that LeRobot requires of every dataset."""
    number = feature_of(Field("int64", (), Role.STEP))
    clock = feature_of(Field("float32", (), Role.STEP))
    return {TIMESTAMP: clock, **dict.fromkeys((FRAME, EPISODE, INDEX, TASK_INDEX), number)}


def _called(name: str, field: Field) -> str:
    is_picture = as_pictures(field) is not None
    first, _, rest = name.partition("/")
    if first == "observation" and not rest:
        return "observation.image" if is_picture else "observation.state"
    if first == "observation" and is_picture:
        return f"observation.images.{rest.removeprefix('images/').replace('/', '.')}"
    return ("next." if field.role == Role.NEXT else "") + name.replace("/", ".")


def _nested(rows: NDArray[np.generic]) -> Any:
    """Return rows [n, ...] as lists in lists, as ``datasets`` keeps arrays of several dimensions."""
    arrow, _ = pyarrow()
    array = arrow.array(rows.reshape(-1))
    for axis in range(rows.ndim - 1, 0, -1):
        count = int(np.prod(rows.shape[:axis]))
        array = arrow.ListArray.from_arrays(np.arange(count + 1, dtype=np.int32) * rows.shape[axis], array)
    return array
