"""Rate limiters: when steps may be written to a table and sampled from it, as in Reverb."""

from bisect import bisect_left
from collections.abc import Mapping
from math import inf
from typing import Any

from rlx.numbers import check_real, check_whole

_Number = int | float


class RateLimiter:
    """Rule of Reverb for one table, whose items are steps.

    Steps are sampled once ``min_size`` are stored, and while ``inserts * samples_per_insert - samples`` stays at or
    above ``min_diff``. They are written while fewer are stored, and while that number stays at or below ``max_diff``.

    Attributes:
        inserts: steps written.
        samples: steps sampled.

    Example:
        >>> limiter = rlx.buffer.RateLimiter(2.0, min_size=1, min_diff=0, max_diff=10)
        >>> limiter.may_insert(size=0, count=100)  # 5 steps may be sampled 10 times
        5
    """

    def __init__(self, samples_per_insert: float, min_size: int, min_diff: float, max_diff: float) -> None:
        check_whole("min_size", min_size)
        self.samples_per_insert, self.min_size = samples_per_insert, min_size
        self.min_diff, self.max_diff = min_diff, max_diff
        self.inserts = self.samples = 0

    def __repr__(self) -> str:
        rule = f"samples_per_insert={self.samples_per_insert}, min_size={self.min_size}"
        return f"{type(self).__name__}({rule}, min_diff={self.min_diff:g}, max_diff={self.max_diff:g})"

    def may_insert(self, size: int, count: int = 1) -> int:
        """Return how many of ``count`` steps may be written to a table of ``size`` steps now, one after the other."""
        return bisect_left(range(count), True, key=lambda done: not self._can_insert(size, done + 1))

    def may_sample(self, size: int, count: int = 1) -> int:
        """Return how many of ``count`` steps may be sampled from a table of ``size`` steps now, one after the other."""
        return bisect_left(range(count), True, key=lambda done: not self._can_sample(size, done + 1))

    def _can_insert(self, size: int, count: int) -> bool:
        if size + count <= self.min_size:
            return True
        return (self.inserts + count) * self.samples_per_insert - self.samples <= self.max_diff

    def _can_sample(self, size: int, count: int) -> bool:
        if size < self.min_size:
            return False
        return self.inserts * self.samples_per_insert - self.samples - count >= self.min_diff

    def reset(self, inserts: int = 0) -> None:
        """Count from the start, for a table that has this many steps."""
        self.inserts, self.samples = inserts, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the counts."""
        return {"inserts": self.inserts, "samples": self.samples}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the counts of ``state_dict``."""
        self.inserts, self.samples = int(state["inserts"]), int(state["samples"])


class MinSize(RateLimiter):
    """Rate limiter that blocks sampling until a table has ``min_size`` steps, and never writing.

    Example:
        >>> limiter = rlx.buffer.MinSize(100)
        >>> limiter.may_sample(size=99), limiter.may_sample(size=100)
        (0, 1)
    """

    def __init__(self, min_size: int) -> None:
        super().__init__(1.0, min_size, -inf, inf)


class SampleToInsertRatio(RateLimiter):
    """Rate limiter that keeps the ratio of sampled to written steps, after the first ``min_size`` steps.

    Args:
        samples_per_insert: average number of times that a step is sampled.
        min_size: steps in the table before any is sampled.
        error_buffer: samples by which the ratio may be missed before writers, or samplers, are blocked; or the two
            limits of ``inserts * samples_per_insert - samples``.

    Raises:
        ValueError: the error buffer is smaller than one insert or one sample, or blocks samplers forever.

    Example:
        >>> limiter = rlx.buffer.SampleToInsertRatio(2, min_size=10, error_buffer=20)
        >>> limiter.may_insert(size=0, count=100)  # 20 samples are 10 inserts ahead of the 10 of min_size
        20
    """

    def __init__(self, samples_per_insert: float, min_size: int, error_buffer: _Number | tuple[float, float]) -> None:
        check_real("samples_per_insert", samples_per_insert)
        start = samples_per_insert * min_size
        near = (start - error_buffer, start + error_buffer) if isinstance(error_buffer, _Number) else error_buffer
        if near[1] - near[0] < 2 * max(1.0, samples_per_insert) or near[0] > start:
            raise ValueError(
                f"error_buffer {error_buffer} blocks all: expected {max(1.0, samples_per_insert):g} or more, or limits "
                f"that far on both sides of {start:g}"
            )
        super().__init__(samples_per_insert, min_size, *near)
