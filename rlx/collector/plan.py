"""How the steps that workers make become batches: sizes, and what each worker contributes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlx.collector.ted import CatResults
from rlx.errors import CollectError

TrajFormat = Literal["padded", "cat"]


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of how steps become batches; see ``Collector`` and ``MultiCollector`` for arguments not listed here.

    Args:
        frames: of a batch, each worker's part of them; of whole episodes, how many it makes at once, if that is said.
        total_frames: as there.
        trajs_per_batch: as there.
        traj_format: as there.
        init_random_frames: as there.
        reset_at_each_iter: as there.
        set_truncated: as there.
        track_policy_version: as there.
        cat_results: as there.
        is_sync: as there.
        preemptive_threshold: as there.

    Raises:
        CollectError: it is not said how large batches are, or no size can be that.
    """

    frames: Sequence[int] | None
    total_frames: int
    trajs_per_batch: int | None
    traj_format: TrajFormat
    init_random_frames: int
    reset_at_each_iter: bool
    set_truncated: bool
    track_policy_version: bool
    cat_results: CatResults = 0
    is_sync: bool = True
    preemptive_threshold: float | None = None

    def __post_init__(self) -> None:
        if self.frames is None and self.trajs_per_batch is None:
            raise CollectError("expected frames_per_batch or trajs_per_batch")
        if self.trajs_per_batch is not None and self.trajs_per_batch < 1:
            raise CollectError(f"batches of {self.trajs_per_batch} trajectories: expected at least 1")
        if self.traj_format not in ("padded", "cat"):
            raise CollectError(f"traj_format {self.traj_format!r}: expected 'padded' or 'cat'")

    @property
    def slots(self) -> int:
        """Orders that a worker may have at once: two, one of them ahead, unless workers run in rounds."""
        return 1 if self.is_sync else 2

    @property
    def is_cut(self) -> bool:
        """Whether the last step of every batch is flagged truncated."""
        return self.reset_at_each_iter or self.set_truncated


@dataclass(frozen=True, slots=True)
class Quota:
    """The steps that one worker contributes to a batch.

    Args:
        worker: its number.
        length: steps of each of its environments.
        envs: how many environments count; those after them are left out.
    """

    worker: int
    length: int
    envs: int

    @property
    def steps(self) -> int:
        """Steps that count."""
        return self.length * self.envs


def quotas_for(left: int | None, lengths: Sequence[int], envs: Sequence[int]) -> list[Quota]:
    """Return each worker's quota of the next batch, so that never more steps are made than asked for.

    Where not everybody can have as many as usual, those with the longest quotas get shorter ones; where not everybody
    can make one, the first workers do; where not even the first can, its first environments do.

    Args:
        left: steps that are wanted yet; at least 1. None: no end of them.
        lengths: steps of an environment in a usual batch, of each worker.
        envs: environments of each worker.

    Example:
        >>> [quota.steps for quota in quotas_for(100, [5, 5], [4, 4])]
        [20, 20]
        >>> [quota.steps for quota in quotas_for(27, [5, 5], [4, 4])]
        [12, 12]
        >>> quotas_for(7, [5, 5], [4, 4])
        [Quota(worker=0, length=1, envs=4)]
        >>> quotas_for(3, [5, 5], [4, 4])
        [Quota(worker=0, length=1, envs=3)]
    """
    longest = max(lengths)
    if left is not None:
        while longest > 0 and sum(_steps(longest, lengths, envs)) > left:
            longest -= 1
    if longest > 0:
        return [Quota(w, min(longest, length), n) for w, (length, n) in enumerate(zip(lengths, envs, strict=True))]
    quotas: list[Quota] = []
    rest = left or 0
    for worker, n in enumerate(envs):
        if n > rest:
            break
        quotas.append(Quota(worker, 1, n))
        rest -= n
    return quotas or [Quota(0, 1, rest)]


def _steps(longest: int, lengths: Sequence[int], envs: Sequence[int]) -> list[int]:
    return [min(longest, length) * n for length, n in zip(lengths, envs, strict=True)]
