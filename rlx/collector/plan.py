"""How the steps that workers make become batches."""

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
