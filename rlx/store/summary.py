"""What a list says of each of many datasets, read from the manifest without parsing most of it."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rlx.files.sealed import SealError, check_seal
from rlx.manifest import FILE_NAME, VERSION, Manifest, ShardRecord, read_file
from rlx.manifest_values import check_statistics
from rlx.store.statistics import EpisodeStatistics

# Of a manifest as ``encode`` writes it. A line break in JSON is never part of a text, so that the indentation alone
# tells where a value begins and ends.
_START = b'{\n "format": "rlx",\n "format_version": 1,\n'
_NOTES, _NOTES_END = b'\n "notes": {\n', b"\n }"
_VERSION = re.compile(rb'\n  "%s": (".*?"),?$' % VERSION.encode(), re.MULTILINE)
_SHARDS, _NO_SHARDS = b'\n "shards": [\n  {\n', b'\n "shards": [],\n'
_NEXT_SHARD = b"\n  },\n  {\n"
_COUNTS = re.compile(rb'   "name": ".*",\n   "steps": (\d{1,18}),\n   "trajectories": (\d{1,18}),\n   "files": {')
_STATISTICS, _STATISTICS_END = b'\n   "statistics": {', b"\n   }"
_FIGURES = re.compile(rb'\n    ("(?:%s)": \{[^{}]*\})' % "|".join(EpisodeStatistics.KEYS).encode())


@dataclass(frozen=True, slots=True)
class DatasetSummary:
    """Counts of a dataset.

    Args:
        version: that ``rlx push`` has noted, or None.
        shards: number of complete shards.
        steps: number of steps in them.
        episodes: numbers, returns and lengths of their episodes.
    """

    version: str | None
    shards: int
    steps: int
    episodes: EpisodeStatistics

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """Return the summary of a manifest."""
        episodes = EpisodeStatistics.of(manifest.shards)
        return cls(manifest.version, len(manifest.shards), manifest.steps, episodes)

    @classmethod
    def load(cls, dataset: Path) -> Self:
        """Return the summary of the manifest in a directory; its checksum and what is summed up are checked.

        Raises:
            RlxError: as ``Manifest.load``.
        """
        raw = read_file(dataset)
        try:
            shards = _shards(raw)
            return cls(_version(raw), len(shards), sum(shard.steps for shard in shards), EpisodeStatistics.of(shards))
        except (SealError, ValueError, TypeError):
            return cls.of(Manifest.parse(raw, dataset / FILE_NAME))  # says what is wrong, if anything is


def _version(raw: bytes) -> str | None:
    begin = raw.find(_NOTES)
    noted = _VERSION.search(raw, begin, raw.find(_NOTES_END, begin)) if begin >= 0 else None
    return None if noted is None else json.loads(noted[1])


def _shards(raw: bytes) -> list[ShardRecord]:
    """Return the shards of a manifest, with no files, and no statistics but those of episodes.

    Raises:
        ValueError, TypeError: it is damaged, or not written as ``encode`` does.
    """
    check_seal(raw)
    if not raw.startswith(_START):
        raise ValueError("another program's manifest")
    begin = raw.find(_SHARDS)
    if begin < 0:
        if _NO_SHARDS not in raw:
            raise ValueError("another program's manifest")
        return []
    return [_shard(described) for described in raw[begin + len(_SHARDS) :].split(_NEXT_SHARD)]


def _shard(described: bytes) -> ShardRecord:
    counts = _COUNTS.match(described)
    if counts is None:
        raise ValueError("a shard that is described in another way")
    begin = described.find(_STATISTICS, counts.end())
    end = described.find(_STATISTICS_END, begin)
    figures = _FIGURES.findall(described, max(begin, 0), end)
    statistics: dict[str, Any] = json.loads(f"{{{b','.join(figures).decode()}}}")
    check_statistics(statistics)
    return ShardRecord("", int(counts[1]), int(counts[2]), {}, statistics)
