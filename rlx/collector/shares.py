"""How the steps of a batch are shared out to workers, so that never more are made than were asked for."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Share:
    """One worker's share of a batch.

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


def share_out(left: int | None, lengths: Sequence[int], envs: Sequence[int]) -> list[Share]:
    """Return the shares of the next batch.

    Where not everybody can have as many as usual, those with the longest shares get shorter ones; where not everybody
    can make one, the first workers do; where not even the first can, its first environments do.

    Args:
        left: steps that are wanted yet; at least 1. None: no end of them.
        lengths: steps of an environment in a usual batch, of each worker.
        envs: environments of each worker.

    Example:
        >>> [share.steps for share in share_out(100, [5, 5], [4, 4])]
        [20, 20]
        >>> [share.steps for share in share_out(27, [5, 5], [4, 4])]
        [12, 12]
        >>> share_out(7, [5, 5], [4, 4])
        [Share(worker=0, length=1, envs=4)]
        >>> share_out(3, [5, 5], [4, 4])
        [Share(worker=0, length=1, envs=3)]
    """
    longest = max(lengths)
    if left is not None:
        while longest > 0 and sum(_steps(longest, lengths, envs)) > left:
            longest -= 1
    if longest > 0:
        return [Share(w, min(longest, length), n) for w, (length, n) in enumerate(zip(lengths, envs, strict=True))]
    shares: list[Share] = []
    rest = left or 0
    for worker, n in enumerate(envs):
        if n > rest:
            break
        shares.append(Share(worker, 1, n))
        rest -= n
    return shares or [Share(0, 1, rest)]


def _steps(longest: int, lengths: Sequence[int], envs: Sequence[int]) -> list[int]:
    return [min(longest, length) * n for length, n in zip(lengths, envs, strict=True)]
