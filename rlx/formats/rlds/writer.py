"""RLDS as TensorFlow Datasets stores it, ``tfds.builder_from_directory(path)``: one episode per example."""

import json
import re
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.distribution import version
from rlx.errors import ExportError
from rlx.formats.common.exporter import Experience, Piece, check_values, common_losses, pieces, unflagged_ends
from rlx.formats.common.provenance import KEY, provenance
from rlx.formats.common.tf_example import INT64_LIST, ExampleSpool, ExampleTooLongError
from rlx.formats.rlds.layout import (
    CUT,
    DISCOUNT,
    EPISODE_ID,
    FEATURES,
    FILE_FORMAT,
    FIRST,
    INFO,
    LAST,
    METADATA,
    STEPS,
    TEMPLATE,
    TERMINAL,
    described,
    features_of,
    written_fields,
)
from rlx.progress import Progress
from rlx.schema import Role, Schema

_SPLIT = "train"
_VERSION = "1.0.0"
_SHARD_BYTES = 2**28
_NO_WORD = re.compile(r"[^a-z0-9]+")


class RLDSExporter:
    """Exporter to the directory of one version of a dataset, with one split.

    The last step of an episode has only the final observation; its action and reward are zeros. ``cut`` is written if
    any episode was cut.
    """

    title = "RLDS"
    notes_empty = True

    def taken(self, schema: Schema) -> Collection[str]:
        """Return the fields with a name that RLDS defines for a step."""
        held = {*written_fields(schema), "terminated", "truncated"}
        return [name for name in schema if name not in held]

    def losses(self, experience: Experience) -> Sequence[str]:
        """Return lost marks of unrecorded final observations and of ends, fields, and shapes of pictures."""
        schema = experience.schema
        check_values(self.title, schema)
        losses = common_losses(experience, starts=False, both=True) + unflagged_ends(experience)
        written = written_fields(schema).items()
        return losses + [loss for name, arranged in written for loss in arranged.loss(name, schema[name])]

    def owns(self, path: Path) -> bool:
        """Return whether a directory is a version of a dataset of TensorFlow Datasets."""
        return (path / INFO).is_file() and (path / FEATURES).is_file()

    def write(self, experience: Experience, path: Path, destination: Path, progress: Progress) -> None:  # noqa: ARG002
        """Write the directory; the list of its files last."""
        path.mkdir()
        features = features_of(experience.schema)
        name = _NO_WORD.sub("_", f"rlx_{experience.id.lower()}").strip("_")
        cut = experience.trajectories.cut
        _save(path / FEATURES, described(features, tells_cuts=bool(cut.any())))
        _save(path / METADATA, {KEY: provenance(experience, self.losses(experience))})
        shards = _Shards(path, f"{name}-{_SPLIT}.{FILE_FORMAT}")
        kinds = {f"{STEPS}/{feature}": one.kind for feature, one in features.items()}
        kinds |= {EPISODE_ID: INT64_LIST, **({CUT: INT64_LIST} if cut.any() else {})}
        with shards, ExampleSpool(kinds, path) as spool:
            for piece in pieces(experience.blocks(), experience.schema):
                for feature, rows in _rows(experience, piece).items():
                    features[feature].add(spool, f"{STEPS}/{feature}", rows)
                if piece.is_last:
                    spool.add_numbers(EPISODE_ID, np.array([piece.episode]))
                    if cut.any():
                        spool.add_numbers(CUT, cut[[piece.trajectory]])
                    shards.add(spool, piece.episode)
                progress.advance("steps", piece.steps)
        split = {
            "name": _SPLIT,
            "filepathTemplate": TEMPLATE,
            "numBytes": str(sum(shards.sizes)),
            "shardLengths": [str(count) for count in shards.lengths],
        }
        info = {"name": name, "version": _VERSION, "fileFormat": FILE_FORMAT, "splits": [split]}
        _save(path / INFO, {**info, "description": f"{experience.id}, written by rlx {version()}"})


def _rows(experience: Experience, piece: Piece) -> dict[str, NDArray[Any]]:
    """Return the rows that a piece adds to each feature: one per step, and one more at the end of an episode."""
    schema, rows = experience.schema, piece.steps + piece.is_last
    found: dict[str, NDArray[Any]] = {}
    for name, arranged in written_fields(schema).items():
        if schema[name].role == Role.OBSERVATION:
            column = piece.stored(name)
        else:
            column = schema[name].zeros(rows)
            column[: piece.steps] = piece.rows(name)
        found[name] = arranged.arrange(column)
    place = np.arange(piece.start, piece.start + rows)
    is_last = np.zeros(rows, bool)
    is_last[-1] = piece.is_last
    terminated = bool(piece.data["terminated"][-1])
    discount = np.ones(rows, np.float32)
    if piece.is_last:
        discount[-2:] = [not terminated, 0]
    found |= {FIRST: (place == 0) & piece.from_reset, LAST: is_last, TERMINAL: is_last & terminated}
    return {DISCOUNT: discount, **found}


class _Shards:
    """Files of about 256 MB, renamed when their number is known."""

    def __init__(self, directory: Path, prefix: str) -> None:
        self._directory = directory
        self._prefix = prefix
        self._stack = ExitStack()
        self._file: Any = None
        self.lengths: list[int] = []
        self.sizes: list[int] = []

    def add(self, spool: ExampleSpool, episode: int) -> None:
        """Write an example, which is an episode."""
        if self._file is None or self.sizes[-1] >= _SHARD_BYTES:
            self._stack.close()
            self._file = self._stack.enter_context(self._path(len(self.lengths), "partial").open("xb"))
            self.lengths.append(0)
            self.sizes.append(0)
        try:
            for piece in spool.pop():
                self.sizes[-1] += self._file.write(piece)
        except ExampleTooLongError as exc:
            raise ExportError(f"RLDS keeps an episode in one example, and episode {episode} makes {exc}") from exc
        self.lengths[-1] += 1

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        count = len(self.lengths)
        for number in range(count):
            self._path(number, "partial").rename(self._path(number, f"of-{count:05d}"))

    def _path(self, number: int, end: str) -> Path:
        return self._directory / f"{self._prefix}-{number:05d}-{end}"


def _save(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")


DATASETS = RLDSExporter()
