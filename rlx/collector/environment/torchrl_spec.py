"""TorchRL's specs as gymnasium spaces, known by the names of their classes: rlx does not import TorchRL."""

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from rlx.collector.environment.space import Space
from rlx.errors import CollectError

# Longer than any text of an observation: gymnasium wants a limit, TorchRL knows none.
_MAX_TEXT = 1 << 20


class OneHot(spaces.Box):
    """Numbers below ``nvec``, one-hot encoded and concatenated; samples are one-hot too.

    Args:
        nvec: how many values each number may take.
        dtype: of the 0s and 1s.

    Example:
        >>> OneHot([2, 3]).sample().sum()
        np.int64(2)
    """

    def __init__(self, nvec: "list[int]", dtype: "np.dtype[Any] | type[Any]" = np.int64) -> None:
        self.nvec = tuple(nvec)
        super().__init__(0, 1, (sum(nvec),), dtype)

    def sample(self, mask: None = None, probability: None = None) -> NDArray[Any]:  # noqa: ARG002  (gymnasium's)
        """Return a one-hot array per number, drawn uniformly, joined."""
        return np.concatenate([np.eye(n, dtype=self.dtype)[self.np_random.integers(n)] for n in self.nvec])


def space_of(spec: Any, name: str) -> Space:
    """Return the gymnasium space of the values that a spec of one environment describes.

    Args:
        spec: a ``torchrl.data.TensorSpec`` without a batch dimension.
        name: what messages call it.

    Raises:
        CollectError: no gymnasium space describes the same values.
    """
    kinds = {kind.__name__ for kind in type(spec).__mro__}
    if "Composite" in kinds and "Stacked" not in kinds:
        return spaces.Dict({key: space_of(part, f"{name}/{key}") for key, part in spec.items()})
    if "NonTensor" in kinds:
        if isinstance(spec.example_data, str):
            return spaces.Text(_MAX_TEXT, min_length=0)
        raise _unknown(spec, name)
    try:
        dtype = torch.empty(0, dtype=spec.dtype).numpy().dtype
    except TypeError as exc:
        raise _unknown(spec, name) from exc
    shape = tuple(spec.shape)
    if "MultiOneHot" in kinds and len(shape) == 1:
        return OneHot([box.n for box in spec.space], dtype)
    if "OneHot" in kinds and len(shape) == 1:
        return OneHot([spec.space.n], dtype)
    if "MultiCategorical" in kinds and dtype.kind in "iu":
        nvec = np.broadcast_to([box.n for box in spec.space], shape)
        return spaces.MultiDiscrete(nvec.astype(np.int64), dtype.type)
    if kinds & {"OneHot", "Binary", "MultiCategorical"} or ("Categorical" in kinds and dtype == np.bool_):
        return _box(0, 1, shape, dtype)
    if "Categorical" in kinds and dtype.kind in "iu" and spec.space.n > 0:
        if shape:
            return spaces.MultiDiscrete(np.full(shape, spec.space.n, np.int64), dtype.type)
        return spaces.Discrete(spec.space.n, dtype=dtype.type)
    if "Unbounded" in kinds or "UnboundedContinuous" in kinds or "UnboundedDiscrete" in kinds:
        low, high = (-np.inf, np.inf) if dtype.kind == "f" else _limits(dtype)
        return _box(low, high, shape, dtype)
    if "Bounded" in kinds or "BoundedContinuous" in kinds:
        bounds = spec.space.low, spec.space.high
        lowest, highest = (np.broadcast_to(bound.cpu().numpy(), shape) for bound in bounds)
        return _box(lowest, highest, shape, dtype)
    raise _unknown(spec, name)


def _limits(dtype: "np.dtype[Any]") -> tuple[int, int]:
    if dtype == np.bool_:
        return 0, 1
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def _box(low: Any, high: Any, shape: tuple[int, ...], dtype: "np.dtype[Any]") -> spaces.Box:
    return spaces.Box(low, high, shape, dtype)


def _unknown(spec: Any, name: str) -> CollectError:
    return CollectError(
        f"{name} has a {type(spec).__name__} spec of {spec.dtype}{list(spec.shape)}, which no gymnasium space describes"
    )
