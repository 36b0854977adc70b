"""One example of RLDS: an episode of T + 1 rows, of whose last row only the observation counts."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.block import Block
from rlx.errors import CorruptShardError
from rlx.formats.common.fields import check_field
from rlx.formats.common.rows.episodes import observed_blocks
from rlx.formats.common.tf_example import Feature as Values
from rlx.formats.rlds.layout import CUT, EPISODE_ID, FIRST, LAST, TERMINAL, Feature, MalformedFeatureError
from rlx.schema import Schema

SPLIT = "split"


class Episode:
    """An episode.

    Args:
        values: of the example.
        features: how every field but the flags is kept in it.
        split: that it belongs to, for the field of that name; None without such a field.
    """

    def __init__(
        self,
        values: Mapping[str, Values],
        features: Mapping[str, Feature],
        schema: Schema,
        place: int,
        split: str | None = None,
    ) -> None:
        self._values = values
        self._features = features
        self._schema = schema
        self._split = split
        is_last = self._flags(LAST)
        self.steps = len(is_last) - 1
        if self.steps < 0:
            raise MalformedFeatureError(f"steps/{LAST}: expected at least one step, found none")
        if is_last[:-1].any():
            raise MalformedFeatureError(f"steps/{LAST}: expected it of the last step only")
        terminal, first = self._flags(TERMINAL), self._flags(FIRST)
        if not len(terminal) == len(first) == len(is_last):
            raise MalformedFeatureError(
                f"steps/{TERMINAL}, steps/{FIRST}: expected {len(is_last):,} rows, "
                f"found {len(terminal):,} and {len(first):,}"
            )
        self._terminated, self._from_reset = bool(terminal[-1]), bool(first[0])
        self._number = self._number_at(EPISODE_ID, place)
        self._is_cut = bool(self._number_at(CUT, 0)) and not self._terminated
        for name, feature in features.items():
            found = feature.count(self._feature(name))
            if found != self.steps + 1:
                raise MalformedFeatureError(f"steps/{name}: expected {self.steps + 1:,} rows, found {found:,}")

    def blocks(self) -> Iterator[Block]:
        """Yield the episode, in pieces."""
        return observed_blocks(
            self._schema,
            self._rows,
            steps=self.steps,
            number=self._number,
            terminated=self._terminated,
            from_reset=self._from_reset,
            cut=self._is_cut,
        )

    def _rows(self, name: str, start: int, stop: int) -> NDArray[Any]:
        if name not in self._features:
            return np.full(stop - start, self._split, object)
        try:
            rows = self._features[name].rows(self._feature(name), start, stop)
        except MalformedFeatureError as exc:
            raise MalformedFeatureError(f"steps/{name}: {exc}") from exc
        try:
            check_field(name, self._schema[name], rows, f"steps/{name}", start)
        except CorruptShardError as exc:
            raise MalformedFeatureError(str(exc)) from exc  # reported with the record's number
        return rows

    def _feature(self, name: str) -> Values:
        values = self._values.get(f"steps/{name}")
        if values is None:
            raise MalformedFeatureError(f"steps/{name}: expected {self.steps + 1:,} rows, found none")
        return values

    def _flags(self, name: str) -> NDArray[np.bool_]:
        values = self._values.get(f"steps/{name}")
        if not isinstance(values, np.ndarray) or values.dtype != np.int64:
            raise MalformedFeatureError(f"steps/{name}: expected one flag per step, found none")
        flags: NDArray[np.bool_] = values != 0
        return flags

    def _number_at(self, name: str, otherwise: int) -> int:
        values = self._values.get(name)
        is_number = isinstance(values, np.ndarray) and values.dtype == np.int64 and len(values) == 1
        return int(values[0]) if is_number and isinstance(values, np.ndarray) else otherwise
