"""LeRobot's datasets of version 3: Parquet files of many episodes each, pictures in them as PNG."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.export.dataset_exporter import Experience, common_losses, left_out
from rlx.export.lerobot_features import DONE, TRUNCATED, Feature, defaults, feature_of, features_of
from rlx.export.lerobot_files import Episodes, NumberedFiles
from rlx.export.lerobot_finals import FinalObservations
from rlx.export.pieces import Piece, small_pieces
from rlx.export.provenance import save_provenance
from rlx.progress import Progress
from rlx.schema import Field, Role
from rlx.store.arrow import pyarrow

VERSION = "v3.0"
_INFO = Path("meta/info.json")
_FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}"
# Nothing says how fast the steps followed each other, and LeRobot cannot do without.
_FPS = 10
_FILE_MEGABYTES, _CHUNK_FILES = 100, 1000
# A trajectory that is longer gets several row groups, so that memory does not depend on its length.
_GROUP_BYTES = 2**24


class LeRobotExporter:
    """Writes ``data`` and ``meta``; what says that there is a dataset, ``meta/info.json``, last."""

    title = "LeRobot"

    def losses(self, experience: Experience) -> Sequence[str]:
        """Numbers of episodes, times, pictures as they were, and fields whose names are taken."""
        schema, table = experience.schema, experience.trajectories
        names = features_of(schema)
        losses = common_losses(experience, unrecorded=False, episodes=True)
        if both := int((table.terminated & table.truncated).sum()):
            losses.append(f"that {both:,} of {len(table):,} trajectories terminated as they were truncated")
        losses.append(f"steps without a time: it has them {_FPS} a second")
        losses += left_out([name for name in schema if name not in {*names, "terminated", "truncated"}])
        return losses + [loss for name in names for loss in feature_of(schema[name]).arranged.loss(name, schema[name])]

    def owns(self, path: Path) -> bool:
        """Whether a directory is a dataset of LeRobot."""
        return (path / _INFO).is_file() and (path / "data").is_dir()

    def write(self, experience: Experience, path: Path, destination: Path, progress: Progress) -> None:  # noqa: ARG002
        """Writes the directory."""
        names, table = features_of(experience.schema), experience.trajectories
        features = {called: feature_of(experience.schema[name]) for name, called in names.items()}
        features |= dict.fromkeys((DONE, TRUNCATED), feature_of(Field("bool", (), Role.NEXT))) | defaults()
        (path / "meta").mkdir(parents=True)
        extra = {"features": {called: name for name, called in names.items()}}
        save_provenance(path, experience, self.losses(experience), extra)
        limit = _FILE_MEGABYTES * 2**20
        data = NumberedFiles(path / "data", _FILE, _schema(features), limit, _CHUNK_FILES)
        episodes = Episodes(path / "meta/episodes", _FILE, features, limit, _CHUNK_FILES, experience.id)
        seen = [name for name in experience.schema.names(Role.OBSERVATION) if name in names]
        finals = FinalObservations(path, {name: features[names[name]] for name in seen}, names)
        with data, episodes, finals:
            for rows, piece in _numbered(experience, names):
                if piece.start == 0:
                    data.turn()
                    episodes.start(data)
                episodes.count({called: features[called].counted(column) for called, column in rows.items()})
                data.write({called: features[called].column(column) for called, column in rows.items()}, _GROUP_BYTES)
                if piece.is_last:
                    data.flush()
                    finals.add(piece)
                    episodes.finish(piece.trajectory, piece.start + piece.steps)
                progress.advance("steps", piece.steps)
        _save_tasks(path / "meta/tasks.parquet", experience.id)
        _save(path / "meta/stats.json", episodes.statistics())
        _save(path / _INFO, _info(features, len(table), int(table.length.sum())))


def _numbered(
    experience: Experience, names: Mapping[str, str]
) -> Iterator[tuple[dict[str, NDArray[np.generic]], Piece]]:
    """The rows of every feature, piece by piece."""
    index = 0
    for piece in small_pieces(experience.blocks(), experience.schema):
        count = piece.steps
        place = np.arange(piece.start, piece.start + count)
        rows = {called: piece.rows(name) for name, called in names.items()}
        rows[DONE] = np.logical_or(piece.data["terminated"], piece.data["truncated"])
        rows[TRUNCATED] = piece.data["truncated"]
        rows["timestamp"] = (place / _FPS).astype(np.float32)
        rows["frame_index"] = place
        rows["episode_index"] = np.full(count, piece.trajectory)
        rows["index"] = np.arange(index, index + count)
        rows["task_index"] = np.zeros(count, np.int64)
        yield rows, piece
        index += count


def _schema(features: Mapping[str, Feature]) -> Any:
    arrow, _ = pyarrow()
    fields = []
    for called, feature in features.items():
        empty = feature.column(np.empty((0, *feature.field.shape), feature.field.dtype))
        fields.append(arrow.field(called, empty.type, metadata=feature.metadata()))
    told = {"info": {"features": {called: feature.hugging_face() for called, feature in features.items()}}}
    return arrow.schema(fields, metadata={"huggingface": json.dumps(told)})


def _info(features: Mapping[str, Feature], episodes: int, steps: int) -> dict[str, Any]:
    return {
        "codebase_version": VERSION,
        "robot_type": None,
        "total_episodes": episodes,
        "total_frames": steps,
        "total_tasks": 1,
        "chunks_size": _CHUNK_FILES,
        "data_files_size_in_mb": _FILE_MEGABYTES,
        "video_files_size_in_mb": 200,
        "fps": _FPS,
        "splits": {"train": f"0:{episodes}"},
        "data_path": f"data/{_FILE}.parquet",
        "video_path": None,
        "features": {called: feature.described() for called, feature in features.items()},
    }


def _save_tasks(path: Path, task: str) -> None:
    """A table that pandas reads with the task's name as its index."""
    arrow, parquet = pyarrow()
    columns = [("task_index", "int64", "int64"), ("task", "unicode", "object")]
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
    table = arrow.table({"task_index": arrow.array([0]), "task": arrow.array([task])})
    parquet.write_table(table.replace_schema_metadata({"pandas": json.dumps(described)}), path, compression="snappy")


def _save(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=4) + "\n", encoding="utf-8")
