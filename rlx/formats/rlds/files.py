"""The files of a dataset of TensorFlow Datasets, split by split."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlx.errors import CorruptShardError, SourceError
from rlx.files.location import checked_name
from rlx.formats.rlds.layout import FILE_FORMAT, TEMPLATE

_MAX_SHARDS = 100_000
_MAX_EXAMPLES = 2**40


@dataclass(frozen=True, slots=True)
class SplitFile:
    """One file.

    Args:
        name: below the dataset's directory.
        split: that it belongs to.
        episodes: in it.
    """

    name: str
    split: str
    episodes: int


def files_of(info: Mapping[str, Any], place: Path, split: str | None = None) -> list[SplitFile]:
    """Return the files of all splits, or of one.

    Args:
        info: what ``dataset_info.json`` holds.
        place: where that lies, for messages.
        split: name of the only split to take.

    Raises:
        CorruptShardError: it does not describe splits and files.
        SourceError: the files are of another format, or the split or an episode is missing.
    """
    if (found := info.get("fileFormat") or FILE_FORMAT) != FILE_FORMAT:
        raise SourceError(f"{place}: fileFormat: expected {FILE_FORMAT}, found {found!r:.40}")
    try:
        files = [one for described in info["splits"] for one in _split_files(info["name"], described)]
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise CorruptShardError(f"{place}: expected splits with name and shardLengths, found {exc!r:.200}") from exc
    splits = list(dict.fromkeys(one.split for one in files))
    if split is not None and split not in splits:
        raise SourceError(f"{place}: unknown split {split!r}, expected one of {', '.join(splits)}")
    chosen = [one for one in files if split in (None, one.split)]
    if not sum(one.episodes for one in chosen):
        raise SourceError(f"{place.parent} has no episode")
    return chosen


def _split_files(dataset: str, split: Mapping[str, Any]) -> Iterator[SplitFile]:
    counts = [int(count) for count in split.get("shardLengths", [])]
    if len(counts) > _MAX_SHARDS or any(not 0 <= count < _MAX_EXAMPLES for count in counts):
        raise ValueError(f"shardLengths {counts!r:.80}")
    for shard, count in enumerate(counts):
        index, of = f"{shard:05d}", f"{len(counts):05d}"
        values = {"DATASET": dataset, "SPLIT": split["name"], "FILEFORMAT": FILE_FORMAT}
        values |= {"SHARD_INDEX": index, "NUM_SHARDS": of, "SHARD_X_OF_Y": f"{index}-of-{of}"}
        name = _filled(split.get("filepathTemplate") or TEMPLATE, values)
        checked_name(name)
        yield SplitFile(name, str(split["name"]), count)


def _filled(template: str, values: Mapping[str, str]) -> str:
    # Not str.format: a template from a file could reach into the values' attributes.
    for key, value in values.items():
        template = template.replace("{" + key + "}", value)
    if "{" in template:
        raise ValueError(f"filepathTemplate {template!r:.80}")
    return template
