"""LeRobot's datasets of version 3: Parquet files of many episodes each, pictures in them as PNG."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.formats.common.exporter import Experience, Piece, check_values, common_losses, left_out, small_pieces
from rlx.formats.common.provenance import save_provenance
from rlx.formats.lerobot.layout import (
    DATA_PATH,
    DONE,
    EPISODE,
    EPISODES,
    FILE,
    FRAME,
    INDEX,
    INFO,
    TASK,
    TASK_INDEX,
    TASKS,
    TERMINATED,
    TIMESTAMP,
    TRUNCATED,
    WrittenFeature,
    defaults,
    feature_of,
    features_of,
    has_tasks,
    is_timed,
    names_of,
)
from rlx.formats.lerobot.tables import EpisodeRows, FinalObservations, NumberedFiles
from rlx.progress import Progress
from rlx.schema import FLAGS, Role, Schema
from rlx.store.foreign_types import arrow_file, pyarrow

VERSION = "v3.0"
# LeRobot requires a rate, which other datasets do not have.
_FPS = 10
_SPLIT = re.compile(r"\d{1,12}:(\d{1,12})")
_FILE_MEGABYTES, _CHUNK_FILES = 100, 1000
# Longer trajectories get several row groups, so that memory does not depend on their length.
_GROUP_BYTES = 2**24


class LeRobotExporter:
    """Exporter to ``data`` and ``meta``; readers find the dataset by ``meta/info.json``."""

    title = "LeRobot"
    notes_empty = True

    def taken(self, schema: Schema) -> Collection[str]:
        """Return the fields whose feature would have the name of another, or of a column of LeRobot's."""
        return _without_feature(schema)

    def losses(self, experience: Experience) -> Sequence[str]:
        """Return lost starts and numbers of episodes, times, shapes of pictures, and fields whose names are taken."""
        schema, noted = experience.schema, experience.notes.get("lerobot")
        check_values(self.title, schema)
        names = features_of(schema, noted)
        losses = common_losses(experience, unrecorded=False, episodes=True)
        if not is_timed(schema) and _fps(noted) is None:
            losses.append(f"steps without timestamps: they get {_FPS} per second")
        losses += left_out(_without_feature(schema, noted))
        return losses + [loss for name in names for loss in feature_of(schema[name]).arranged.loss(name, schema[name])]

    def owns(self, path: Path) -> bool:
        """Return whether a directory is a LeRobot dataset."""
        return (path / INFO).is_file() and (path / "data").is_dir()

    def write(self, experience: Experience, path: Path, destination: Path, progress: Progress) -> None:  # noqa: ARG002
        """Write the directory; ``meta/info.json`` last."""
        noted = experience.notes.get("lerobot")
        names, table = features_of(experience.schema, noted), experience.trajectories
        features = {called: feature_of(experience.schema[name]) for name, called in names.items()}
        flags = [DONE, TRUNCATED, *([TERMINATED] if (table.terminated & table.truncated).any() else [])]
        features |= dict.fromkeys(flags, feature_of(FLAGS["terminated"])) | defaults()
        (path / "meta").mkdir(parents=True)
        extra = {"features": {called: name for name, called in names.items()}}
        save_provenance(path, experience, self.losses(experience), extra)
        limit = _FILE_MEGABYTES * 2**20
        data = NumberedFiles(path / "data", FILE, _schema(features), limit, _CHUNK_FILES)
        episodes = EpisodeRows(path / EPISODES, FILE, features, limit, _CHUNK_FILES)
        tasks: dict[str, int] = {}
        seen = [name for name in experience.schema.names(Role.OBSERVATION) if name in names]
        finals = FinalObservations(path, {name: features[names[name]] for name in seen}, names)
        with data, episodes, finals:
            for rows, piece in _numbered(experience, names, tasks, _fps(noted) or _FPS):
                if piece.start == 0:
                    data.turn()
                    episodes.start(data)
                episodes.count(rows, _tasks(experience, piece))
                data.write({called: feature.column(rows[called]) for called, feature in features.items()}, _GROUP_BYTES)
                if piece.is_last:
                    data.flush()
                    finals.add(piece, is_cut=bool(table.cut[piece.trajectory]))
                    episodes.finish(piece.trajectory, piece.start + piece.steps)
                progress.advance("steps", piece.steps)
        _save_tasks(path / TASKS, list(tasks))
        _save(path / "meta/stats.json", episodes.statistics())
        _save(path / INFO, _info(features, len(table), int(table.length.sum()), len(tasks), noted))


def _without_feature(schema: Schema, noted: Any = None) -> list[str]:
    """Return the fields that have neither a feature of their own nor a column of LeRobot's."""
    held = {*features_of(schema, noted), "terminated", "truncated", *([TASK] if has_tasks(schema) else [])}
    return [name for name in schema if name not in held]


def _fps(noted: Any) -> float | None:
    fps = noted.get("fps") if isinstance(noted, dict) else None
    return fps if isinstance(fps, int | float) and fps > 0 else None


def _numbered(
    experience: Experience, names: Mapping[str, str], tasks: dict[str, int], fps: float
) -> Iterator[tuple[dict[str, NDArray[np.generic]], Piece]]:
    """Yield the rows of every feature, piece by piece; adds new tasks to ``tasks`` in order."""
    index = 0
    for piece in small_pieces(experience.blocks(), experience.schema):
        count = piece.steps
        place = np.arange(piece.start, piece.start + count)
        rows = {called: piece.rows(name) for name, called in names.items()}
        rows[DONE] = np.logical_or(piece.data["terminated"], piece.data["truncated"])
        rows[TRUNCATED], rows[TERMINATED] = piece.data["truncated"], piece.data["terminated"]
        rows.setdefault(TIMESTAMP, (place / fps).astype(np.float32))
        rows[FRAME] = place
        rows[EPISODE] = np.full(count, piece.trajectory)
        rows[INDEX] = np.arange(index, index + count)
        numbers = [tasks.setdefault(text, len(tasks)) for text in _tasks(experience, piece)]
        rows[TASK_INDEX] = np.broadcast_to(np.array(numbers, np.int64), count)
        yield rows, piece
        index += count


def _tasks(experience: Experience, piece: Piece) -> list[Any]:
    return piece.rows(TASK).tolist() if has_tasks(experience.schema) else [experience.id]


def _splits(noted: Any, episodes: int) -> dict[str, str]:
    said = noted.get("splits") if isinstance(noted, dict) else None
    ends = [_SPLIT.fullmatch(str(one)) for one in said.values()] if isinstance(said, dict) else []
    if said and all(ends) and max(int(end[1]) for end in ends if end) == episodes:
        return dict(said)
    return {"train": f"0:{episodes}"}


def _schema(features: Mapping[str, WrittenFeature]) -> Any:
    arrow, _ = pyarrow()
    fields = []
    for called, feature in features.items():
        empty = feature.column(feature.field.zeros(0))
        fields.append(arrow.field(called, empty.type, metadata=feature.metadata()))
    described = {"info": {"features": {field.name: features[field.name].hugging_face(field.type) for field in fields}}}
    return arrow.schema(fields, metadata={"huggingface": json.dumps(described)})


def _info(features: Mapping[str, WrittenFeature], episodes: int, steps: int, tasks: int, noted: Any) -> dict[str, Any]:
    names = names_of(noted)
    columns = {called: feature.described() for called, feature in features.items()}
    for called, said in columns.items():
        said["names"] = names.get(called, said["names"])
    return {
        "robot_type": None,
        "fps": _FPS,
        **({name: said for name, said in noted.items() if name != "features"} if isinstance(noted, dict) else {}),
        "splits": _splits(noted, episodes),
        "codebase_version": VERSION,
        "total_episodes": episodes,
        "total_frames": steps,
        "total_tasks": tasks,
        "chunks_size": _CHUNK_FILES,
        "data_files_size_in_mb": _FILE_MEGABYTES,
        "video_files_size_in_mb": 200,
        "data_path": DATA_PATH,
        "video_path": None,
        "features": columns,
    }


def _save_tasks(path: Path, tasks: Sequence[str]) -> None:
    """Write a table that pandas reads with the tasks as its index."""
    arrow, parquet = pyarrow()
    columns = [(TASK_INDEX, "int64", "int64"), ("task", "unicode", "object")]
    described = {
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": [
            {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": dtype, "metadata": None}
            for name, kind, dtype in columns
        ],
        "creator": {"library": "rlx", "version": "0"},
        "pandas_version": "2.0.0",
    }
    numbers = arrow.array(range(len(tasks)), arrow.int64())
    table = arrow.table({TASK_INDEX: numbers, "task": arrow.array(tasks, arrow.string())})
    with arrow_file(path, "wb") as file:
        parquet.write_table(
            table.replace_schema_metadata({"pandas": json.dumps(described)}), file, compression="snappy"
        )


def _save(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=4, allow_nan=False) + "\n", encoding="utf-8")


DATASETS = LeRobotExporter()
