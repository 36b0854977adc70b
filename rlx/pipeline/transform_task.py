"""The work of one worker of ``rlx preprocess``; what it imports delays every worker."""

from dataclasses import replace
from pathlib import Path

from rlx.block import Block
from rlx.pipeline.shard_task import ShardResult, ShardTask, convert_shard
from rlx.pipeline.transformed import Transformed
from rlx.progress import Progress, Silent

# Names the trajectories that a worker is processing, in its unfinished shard.
AT_HAND = "at"


def transform_shard(task: ShardTask, progress: Progress) -> ShardResult:
    """Write one shard of a ``Transformed``."""
    assert isinstance(task.source, Transformed)
    watched = replace(task.source, watch=_Watch(progress, task.directory / AT_HAND))
    result = convert_shard(replace(task, source=watched), Silent())
    progress.advance("bytes read", watched.portions[task.shard].bytes)
    progress.advance("bytes written", result.record.bytes)
    return result


class _Watch:
    """Progress by the steps read, and a note of them for the process that finds this one dead."""

    def __init__(self, progress: Progress, note: Path) -> None:
        self._progress = progress
        self._note = note
        self._first: int | None = None

    def read(self, block: Block) -> None:
        # A transform may still have the block before in hand, to see what follows it.
        first = int(block.episodes[0]) if self._first is None else self._first
        self._note.write_text(f"{first} {block.episodes[-1]}")
        self._progress.advance("steps", block.steps)
        self._first = int(block.episodes[0])

    def ended(self) -> None:
        self._note.unlink(missing_ok=True)
