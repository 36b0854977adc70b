"""Statistics of arrays that are added piece by piece: minimum, maximum, mean, standard deviation and quantiles."""

import numpy as np
from numpy.typing import NDArray

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_SAMPLE_BYTES = 2**18
_MIN_SAMPLE = 16
Statistics = dict[str, list[float]]


class VectorStatistics:
    """Statistics of each component of vectors [D]; quantiles of every k-th vector, a sample of about 256 kB at most.

    Only finite numbers count. A component without any has 0; a statistic beyond the largest float is that float.
    """

    def __init__(self, size: int) -> None:
        self._count = 0
        self._finite = np.zeros(size, np.int64)
        self._low, self._high = np.full(size, np.inf), np.full(size, -np.inf)
        self._mean, self._squares = np.zeros(size), np.zeros(size)
        self._sample = np.empty((max(_MIN_SAMPLE, _SAMPLE_BYTES // max(1, 8 * size)), size))
        self._sampled, self._every = 0, 1

    def add(self, rows: NDArray[np.generic]) -> None:
        """Add vectors [n, D]."""
        values = rows.astype(np.float64)
        if not len(values):
            return
        self._take(values)
        self._count += len(values)
        is_finite = np.isfinite(values)
        count = is_finite.sum(0)
        self._low = np.minimum(self._low, np.where(is_finite, values, np.inf).min(0))
        self._high = np.maximum(self._high, np.where(is_finite, values, -np.inf).max(0))
        # Chan's method of joining means and sums of squares is exact for large means.
        total = np.maximum(self._finite + count, 1)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = np.where(is_finite, values, 0).sum(0) / np.maximum(count, 1)
            apart = np.where(count > 0, mean - self._mean, 0)
            self._squares += (np.where(is_finite, values - mean, 0) ** 2).sum(0)
            self._squares += apart**2 * self._finite * count / total
            self._mean += apart * count / total
        self._finite += count

    def described(self) -> Statistics:
        """Return the statistics [D], and ``count`` [1]; requires at least one vector."""
        is_known = self._finite > 0
        with np.errstate(over="ignore", invalid="ignore"):
            deviation = np.sqrt(self._squares / np.maximum(self._finite, 1))
        found = {
            "min": np.where(is_known, self._low, 0),
            "max": np.where(is_known, self._high, 0),
            "mean": self._mean,
            "std": deviation,
            "count": np.array([self._count]),
            **dict(zip(QUANTILES, _quantiles(self._sample[: self._sampled]), strict=True)),
        }
        return {name: np.nan_to_num(column).tolist() for name, column in found.items()}

    def _take(self, values: NDArray[np.float64]) -> None:
        """Keep every k-th of the vectors, counted from the first one ever; when the buffer is full, k doubles."""
        taken = values[-self._count % self._every :: self._every]
        while self._sampled + len(taken) > len(self._sample):
            kept = self._sample[: self._sampled : 2]
            taken = taken[self._sampled % 2 :: 2]
            self._sampled, self._every = len(kept), 2 * self._every
            self._sample[: self._sampled] = kept.copy()
        self._sample[self._sampled : self._sampled + len(taken)] = taken
        self._sampled += len(taken)


def _quantiles(sample: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return [Q, D] quantiles of the finite numbers of every column; 0 for a column without any."""
    shares, is_finite = list(QUANTILES.values()), np.isfinite(sample)
    with np.errstate(over="ignore", invalid="ignore"):
        if is_finite.all():
            return np.quantile(sample, shares, axis=0)
        columns = [column[kept] for column, kept in zip(sample.T, is_finite.T, strict=True)]
        return np.stack([np.quantile(one, shares) if len(one) else np.zeros(len(shares)) for one in columns], 1)


class PictureStatistics:
    """Exact statistics of each channel of uint8 pictures [H, W, C], scaled to [0, 1]."""

    def __init__(self, channels: int) -> None:
        self._count = 0
        self._seen = np.zeros((channels, 256), np.int64)

    def add(self, pictures: NDArray[np.generic]) -> None:
        """Add pictures [n, H, W, C]."""
        self._count += len(pictures)
        for channel, seen in enumerate(self._seen):
            seen += np.bincount(pictures[..., channel].reshape(-1), minlength=256)

    def described(self) -> dict[str, list[list[list[float]]] | list[int]]:
        """Return the statistics [C, 1, 1], and ``count`` [1]; requires at least one picture."""
        values = np.arange(256) / 255
        weights = self._seen / self._seen.sum(1, keepdims=True)
        mean = weights @ values
        reached = np.cumsum(weights, axis=1)
        found = {
            "min": values[(self._seen > 0).argmax(1)],
            "max": values[255 - (self._seen[:, ::-1] > 0).argmax(1)],
            "mean": mean,
            "std": np.sqrt((weights * (values - mean[:, None]) ** 2).sum(1)),
            **{name: values[(reached >= share - 1e-12).argmax(1)] for name, share in QUANTILES.items()},
        }
        return {"count": [self._count], **{name: [[[value]] for value in row.tolist()] for name, row in found.items()}}
