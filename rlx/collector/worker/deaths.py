"""Deaths of workers: said, counted, and after too many of one worker the end of the run."""

import logging
from collections import Counter

from rlx.engine.actor import ActorDiedError
from rlx.errors import WorkerLostError

logger = logging.getLogger(__name__)
MOST_DEATHS = 3


class Deaths:
    """How often each worker died since its last progress: only steps that are kept count as progress."""

    def __init__(self) -> None:
        self._counts = Counter[int]()

    def add(self, worker: int, death: ActorDiedError, lost: str) -> None:
        """Say that a worker died, and that another takes its place.

        Args:
            worker: its number.
            death: how.
            lost: the loss, in words.

        Raises:
            WorkerLostError: it died ``MOST_DEATHS`` times without progress.
        """
        self._counts[worker] += 1
        if self._counts[worker] >= MOST_DEATHS:
            raise WorkerLostError(
                f"worker {worker} died {self._counts[worker]} times without progress, the last time so: {death}",
                hint="its environment or policy ends the process or hangs; or memory is short: use fewer workers",
            ) from death
        logger.warning("worker %d died (%s): another takes its place, %s", worker, death, lost)

    def made_progress(self, worker: int) -> None:
        """Reset the count of a worker."""
        self._counts[worker] = 0
