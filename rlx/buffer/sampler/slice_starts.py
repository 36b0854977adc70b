"""Slices: their length, the keys that separate trajectories, where they may start, and the marks of their ends."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, Literal, Self, TypedDict, get_args

import numpy as np
from numpy.typing import NDArray
from tensordict import NestedKey, unravel_key

from rlx.buffer.protocol import Rows, Storage, TrajectoryIndex
from rlx.errors import SamplingError, SliceTooLongError
from rlx.numbers import check_whole

SLICE_END = ("collector", "slice_end")
MASK = ("collector", "mask")
Span = bool | int | Sequence[bool | int]
Pad = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class Slicing:
    """How slices are cut; the arguments of ``SliceSampler`` that say so."""

    num_slices: int | None
    slice_len: int | None
    traj_key: NestedKey | None = None
    end_key: NestedKey | None = None
    end_keys: tuple[NestedKey, ...] | None = None
    truncated_key: NestedKey | None = ("next", "truncated")
    init_key: NestedKey | None = "is_init"
    strict_length: bool = True
    pad_output: bool = False
    whole_trajectories: bool = False
    start_at_reset: bool = False
    span: tuple[int | bool, ...] = (False, False)
    cache_values: bool = False
    pad: Pad | None = None

    def __post_init__(self) -> None:
        if self.pad not in (None, *get_args(Pad)):
            raise ValueError(f"pad {self.pad!r}: expected 'left' or 'right'")
        if self.pad and (self.pad_output or self.whole_trajectories or any(self.span)):
            raise TypeError("pad: expected neither pad_output, whole_trajectories nor span")
        if self.pad == "left" and self.start_at_reset:
            raise TypeError("pad 'left': expected no start_at_reset, as slices are drawn by their last step")
        if any(self.span) and (self.whole_trajectories or self.start_at_reset):
            raise TypeError("span: expected neither whole_trajectories nor start_at_reset")
        if len(self.span) != 2:
            raise TypeError(f"span {self.span}: expected a number, or two")
        for reach in self.span:
            check_whole("span", int(reach) if isinstance(reach, bool) else reach, 0)
        if self.end_key is not None and self.end_keys is not None:
            raise TypeError("expected either end_key or end_keys, found both")
        if (self.num_slices is None) == (self.slice_len is None):
            raise TypeError(
                f"expected either num_slices or slice_len, found num_slices={self.num_slices}, "
                f"slice_len={self.slice_len}"
            )
        if self.num_slices is not None:
            check_whole("num_slices", self.num_slices)
        if self.slice_len is not None:
            check_whole("slice_len", self.slice_len)

    @property
    def is_plain(self) -> bool:
        """Whether all slices have the requested length."""
        is_whole = self.strict_length and not (self.pad_output or self.whole_trajectories or any(self.span))
        return is_whole or self.pad is not None

    def shape(self, batch_size: int) -> tuple[int, int | None]:
        """Return the number of slices of a batch and their length; None for whole trajectories."""
        if self.num_slices is None:
            slices, rest = divmod(batch_size, self.slice_len or 1)
            wanted = f"slice_len ({self.slice_len})"
        elif self.whole_trajectories:
            return self.num_slices, None
        else:
            slices, rest = self.num_slices, batch_size % self.num_slices
            wanted = f"num_slices ({self.num_slices})"
        if rest or batch_size < 1:
            raise SamplingError(f"batch_size ({batch_size}) must be a positive multiple of {wanted}")
        return slices, self.slice_len or batch_size // slices

    def index(self, storage: Storage) -> TrajectoryIndex:
        """Return the storage's index by these keys; by the default ones if the named one is not stored."""
        ends: Any = self.end_key if self.end_keys is None else list(self.end_keys)
        try:
            return storage.index(self.traj_key, ends)
        except SamplingError:
            for traj_key, end_key in ((None, ends), (self.traj_key, None), (None, None)):
                with suppress(SamplingError):
                    return storage.index(traj_key, end_key)
            raise

    def reach(self, slice_len: int) -> tuple[int, int]:
        """Return the number of steps of a slice that may be before its trajectory, and after it."""
        left, right = (slice_len - 1 if reach is True else int(reach) for reach in self.span)
        if max(left, right) >= slice_len:
            raise ValueError(f"span {self.span}: expected less than the {slice_len} steps of a slice")
        return left, right

    def is_start(self, index: TrajectoryIndex, rows: Rows, slice_len: int) -> NDArray[np.bool_]:
        """Return [n] whether a slice may start at each row, so far as its length goes; with ``pad``, any may."""
        if self.pad:
            return np.ones(len(rows), bool)
        remaining, (_, right) = index.remaining(rows), self.reach(slice_len)
        fits: NDArray[np.bool_]
        if self.strict_length and not right:
            fits = remaining >= slice_len
            return fits
        steps = index.elapsed(rows) + remaining
        window = np.minimum(slice_len, steps)  # shorter trajectories are drawn whole
        fits = remaining >= window - np.minimum(right, window - 1)
        return fits & (steps >= slice_len) if self.strict_length else fits

    def cut(
        self,
        storage: Storage,
        index: TrajectoryIndex,
        starts: Rows,
        slice_len: int | None,
        at_most: Rows | None = None,
    ) -> tuple[Rows, dict[Any, NDArray[Any]]]:
        """Return [n] the rows of the slices that start at ``starts``, slice after slice, and the marks of their ends.

        Args:
            starts: [slices] where each begins; with ``pad="left"``, where it ends.
            slice_len: at most this many steps each; None: all that follow.
            at_most: [slices] maximal steps of each; None: ``slice_len``.
        """
        if self.pad and slice_len is not None:
            rows, mask = contexts(index, starts, slice_len, self.pad)
            place, count = np.arange(slice_len), mask.sum(axis=1, keepdims=True)
            first = slice_len - count if self.pad == "left" else np.zeros_like(count)
            is_first, is_last = (place <= first).reshape(-1), (place >= first + count - 1).reshape(-1)
            rows = rows.reshape(-1)
            return rows, {MASK: mask.reshape(-1)} | self.marks(storage, rows, is_first, is_last)
        rows = index.follow(starts, int(index.remaining(starts).max()) if slice_len is None else slice_len)
        if at_most is None and not self.pad_output and rows.size and rows.min() >= 0:
            is_first, is_last = _edges(*rows.shape)
            rows = rows.reshape(-1)
            return rows, self.marks(storage, rows, is_first=is_first, is_last=is_last)
        steps = (rows >= 0).sum(axis=1)
        if at_most is not None:
            steps = np.minimum(steps, at_most)
        if slice_len is None or not self.pad_output:
            rows = rows[:, : int(steps.max())]
        place = np.broadcast_to(np.arange(rows.shape[1]), rows.shape)
        is_real = place < steps[:, None]
        is_last = place >= steps[:, None] - 1
        if self.pad_output:
            last = rows[np.arange(len(rows)), steps - 1]
            rows = np.where(is_real, rows, last[:, None])
            info: dict[Any, NDArray[Any]] = {MASK: is_real.reshape(-1)}
            kept = np.ones_like(is_real)
        else:
            info, kept = {}, is_real
        rows = rows[kept]
        return rows, info | self.marks(storage, rows, is_first=(place == 0)[kept], is_last=is_last[kept])

    def marks(
        self, storage: Storage, rows: Rows, is_first: NDArray[np.bool_], is_last: NDArray[np.bool_]
    ) -> dict[Any, NDArray[Any]]:
        """Return the marks of steps [n] that are the first ones of slices, or the last ones."""
        ends = () if self.truncated_key is None else _flag_keys(self.truncated_key)
        init = () if self.init_key is None else (_plain(self.init_key),)
        stored = storage.get_flags(rows, (*ends, *init))
        marks = _ends({key: stored[key] for key in ends if key in stored}, ends[:2], is_last) if ends else {}
        return marks | {key: stored[key] | _beside(is_first, stored[key]) for key in init if key in stored}


def stream_marks(
    slicing: Slicing, storage: Storage, rows: Rows, is_first: NDArray[np.bool_], is_last: NDArray[np.bool_]
) -> dict[Any, NDArray[Any]]:
    """Return the marks of steps [n] of streams, as ``Slicing.marks`` does, where steps have no ``is_init``, too."""
    marks = slicing.marks(storage, rows, is_first, is_last)
    return marks if slicing.init_key is None else {slicing.init_key: is_first[:, None], **marks}


def contexts(index: TrajectoryIndex, rows: Rows, steps: int, pad: Pad) -> tuple[Rows, NDArray[np.bool_]]:
    """Return [n, steps] rows of contexts, and [n, steps] which of them are no padding.

    Args:
        rows: [n] the first real step of each with ``pad="right"``, the last one with ``pad="left"``. A context has the
            steps after it, or before it, as far as its trajectory goes; the one farthest from it fills the rest.
        steps: steps of a context.
    """
    found = index.follow(rows, steps) if pad == "right" else index.precede(rows, steps)
    is_real = found >= 0
    if is_real.all():
        return found, is_real
    count = is_real.sum(axis=1)
    farthest = found[np.arange(len(found)), count - 1 if pad == "right" else steps - count]
    return np.where(is_real, found, farthest[:, None]), is_real


class Sliced:
    """Base of samplers of slices: the arguments that say how slices are cut, as attributes, and the index they need."""

    slicing: Slicing

    num_slices = property(attrgetter("slicing.num_slices"))
    slice_len = property(attrgetter("slicing.slice_len"))
    traj_key = trajectory_key = property(attrgetter("slicing.traj_key"))
    end_key = property(attrgetter("slicing.end_key"))
    end_keys = property(attrgetter("slicing.end_keys"))
    truncated_key = property(attrgetter("slicing.truncated_key"))
    init_key = property(attrgetter("slicing.init_key"))
    strict_length = property(attrgetter("slicing.strict_length"))
    pad = property(attrgetter("slicing.pad"))
    pad_output = property(attrgetter("slicing.pad_output"))
    whole_trajectories = property(attrgetter("slicing.whole_trajectories"))
    start_at_reset = property(attrgetter("slicing.start_at_reset"))
    span = property(attrgetter("slicing.span"))
    cache_values = property(attrgetter("slicing.cache_values"))
    draws_slices = True

    def index(self, storage: Storage) -> TrajectoryIndex:
        """Return the index of a storage's trajectories by the keys of the slices."""
        return self.slicing.index(storage)


class StreamOptions(TypedDict, total=False):
    """Arguments that samplers of streams take, too; see ``SliceSampler``."""

    num_slices: int | None
    slice_len: int | None
    traj_key: NestedKey | None
    end_key: NestedKey | None
    end_keys: Sequence[NestedKey] | None
    trajectory_key: NestedKey | None
    truncated_key: NestedKey | None
    init_key: NestedKey | None


class SliceOptions(StreamOptions, total=False):
    """Arguments that every sampler of slices takes; see ``SliceSampler``."""

    strict_length: bool
    pad_output: bool
    pad: Pad | None
    cache_values: bool


class WholeOptions(SliceOptions, total=False):
    """Arguments of samplers that draw trajectories: their slices may be whole, or start where episodes do."""

    whole_trajectories: bool
    start_at_reset: bool


class SpanOptions(SliceOptions, total=False):
    """Arguments of samplers whose slices may reach beyond their trajectory."""

    span: Span


def check_options(sampler: object, options: Mapping[str, Any], known: type, reason: str) -> None:
    """Raise TypeError if there are options that a sampler does not take; ``reason`` says why."""
    if foreign := sorted(options.keys() - known.__annotations__.keys()):
        raise TypeError(f"{type(sampler).__name__} takes no {foreign[0]}: {reason}")


def slicing_of(
    *,
    num_slices: int | None = None,
    slice_len: int | None = None,
    traj_key: NestedKey | None = None,
    trajectory_key: NestedKey | None = None,
    end_keys: Sequence[NestedKey] | None = None,
    span: Span = False,
    **options: Any,
) -> Slicing:
    """Return how slices are cut, by the arguments of a sampler; ``options`` are fields of ``Slicing``."""
    if traj_key is not None and trajectory_key is not None:
        raise TypeError("expected either traj_key or trajectory_key, found both")
    return Slicing(
        num_slices,
        slice_len,
        traj_key=trajectory_key if traj_key is None else traj_key,
        end_keys=None if end_keys is None else tuple(end_keys),
        span=tuple(span) if isinstance(span, Sequence) else (span, span),
        **options,
    )


@lru_cache(maxsize=16)
def _edges(slices: int, length: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return [slices * length] which steps are the first of whole slices, and which the last."""
    place = np.tile(np.arange(length), slices)
    is_first, is_last = place == 0, place == length - 1
    is_first.flags.writeable = is_last.flags.writeable = False
    return is_first, is_last


@lru_cache(maxsize=64)
def _flag_keys(truncated_key: NestedKey) -> tuple[NestedKey, NestedKey, NestedKey]:
    key = _plain(truncated_key)
    parent = () if isinstance(key, str) else key[:-1]
    return key, _plain((*parent, "done")), _plain((*parent, "terminated"))


@lru_cache(maxsize=64)
def _plain(key: NestedKey) -> NestedKey:
    plain: NestedKey = unravel_key(key)  # type: ignore[no-untyped-call]
    return plain


def _ends(
    stored: Mapping[NestedKey, NDArray[np.bool_]], marked: Sequence[NestedKey], is_last: NDArray[np.bool_]
) -> dict[Any, NDArray[Any]]:
    """Return the flags to be marked with the ends of the slices marked, and which of the marks were added."""
    is_open = np.ones(len(is_last), bool)
    for flags in stored.values():
        is_open &= ~flags.reshape(len(flags), -1).all(axis=1)
    added = is_last & is_open
    bare = np.zeros((len(is_last), 1), bool)
    marks = {key: flags | _beside(added, flags) for key, flags in ((k, stored.get(k, bare)) for k in marked)}
    return marks | {SLICE_END: added[:, None]}


def _beside(flags: NDArray[np.bool_], like: NDArray[Any]) -> NDArray[np.bool_]:
    """Return [n, 1, ...] the flags [n], with as many dimensions as ``like``."""
    return flags.reshape(-1, *(1,) * (like.ndim - 1))


Weighting = Literal["step", "trajectory"]
_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class SliceStarts:
    """Every valid start of a storage, counted by trajectory; takes time proportional to the trajectories.

    Attributes:
        firsts: [N] the first row of every trajectory that has a valid start.
        steps: [N] the stored steps of each.
        counts: [N] how many starts each has: its first row and those that follow it. With a span, the first ones are
            before its first row.
        ends: [N] how many it and those before it have.
        left: number of steps of a slice that may be before its trajectory.
    """

    firsts: Rows
    steps: NDArray[np.int64]
    counts: NDArray[np.int64]
    ends: NDArray[np.int64]
    generation: int
    slice_len: int | None
    left: int = 0

    @classmethod
    def count(cls, index: TrajectoryIndex, slicing: Slicing, slice_len: int | None) -> Self:
        """Count them."""
        firsts, steps = index.trajectories()
        if not len(firsts):
            raise SamplingError("cannot draw slices: the storage is empty")
        counts = _starts_by_length(steps, slicing, slice_len)
        if slice_len is not None and not counts.any():
            raise _no_fit(steps, slicing, slice_len)
        if slicing.start_at_reset:
            counts = np.minimum(counts, index.at_reset(firsts))
            if not counts.any():
                raise SamplingError("start_at_reset: no stored episode has its first step")
        some = counts > 0
        left = 0 if slice_len is None else slicing.reach(slice_len)[0]
        return cls(firsts[some], steps[some], counts[some], np.cumsum(counts[some]), index.generation, slice_len, left)

    def draw(
        self, index: TrajectoryIndex, rng: np.random.Generator, slices: int, weighting: Weighting
    ) -> tuple[Rows, Rows | None]:
        """Return [slices] starts: each with the same probability, or of trajectories with the same probability.

        Also [slices] how many steps each may have at most, or None if all may have as many.
        """
        if weighting == "trajectory":
            return self.within(index, rng, rng.integers(len(self.firsts), size=slices))
        return self.nth(index, rng.integers(self.ends[-1], size=slices))

    def nth(self, index: TrajectoryIndex, places: Rows) -> tuple[Rows, Rows | None]:
        """Return [n] these of all starts, in the order of the trajectories; as ``draw``."""
        trajectories = np.searchsorted(self.ends, places, side="right")
        before = self.ends[trajectories] - self.counts[trajectories]
        return self._at(index, trajectories, places - before)

    def within(self, index: TrajectoryIndex, rng: np.random.Generator, trajectories: Rows) -> tuple[Rows, Rows | None]:
        """Return [n] a start of each of these trajectories, each of its starts with the same probability;
        as ``draw``."""
        return self._at(index, trajectories, rng.integers(self.counts[trajectories]))

    def _at(self, index: TrajectoryIndex, trajectories: Rows, places: Rows) -> tuple[Rows, Rows | None]:
        firsts = self.firsts[trajectories]
        if not self.left or self.slice_len is None:
            return index.after(firsts, places), None
        window = np.minimum(self.slice_len, self.steps[trajectories])
        starts = places - np.minimum(self.left, window - 1)
        return index.after(firsts, np.maximum(starts, 0)), window + np.minimum(starts, 0)


def draw_by_rejection(
    index: TrajectoryIndex, rng: np.random.Generator, slicing: Slicing, slices: int, slice_len: int
) -> Rows:
    """Return [at most slices] valid starts, each with the same probability: random stored steps that pass the
    check.

    It takes time proportional to the slices, not to the stored steps, and gives up where few steps are valid starts.
    """
    found: list[Rows] = []
    missing, tries = slices, _tries(slices)
    for _ in range(_ROUNDS):
        rows = index.row_at(rng.integers(len(index), size=tries))
        found.append(rows[slicing.is_start(index, rows, slice_len)][:missing])
        missing -= len(found[-1])
        if not missing:
            break
        tries *= 2
    return np.concatenate(found)


def first_tries(
    index: TrajectoryIndex, draws: Iterable[np.random.Generator], slicing: Slicing, slices: int, slice_len: int
) -> tuple[Rows, NDArray[np.bool_]]:
    """Return [draws, slices] the starts that ``draw_by_rejection`` finds in one round, and [draws] where it needs no
    other."""
    tries = _tries(slices)
    rows = index.row_at(np.concatenate([rng.integers(len(index), size=tries) for rng in draws]))
    fits = slicing.is_start(index, rows, slice_len).reshape(-1, tries)
    first = np.argsort(~fits, axis=1, kind="stable")[:, :slices]
    return np.take_along_axis(rows.reshape(-1, tries), first, axis=1), fits.sum(axis=1) >= slices


def _tries(slices: int) -> int:
    return slices + slices // 4 + 8


def _starts_by_length(steps: NDArray[np.int64], slicing: Slicing, slice_len: int | None) -> NDArray[np.int64]:
    """Return [N] how many steps can start a slice in a trajectory of each length."""
    if slicing.whole_trajectories:
        fits = np.ones_like(steps, bool) if slice_len is None else steps <= slice_len
        return fits.astype(np.int64)
    if slicing.pad:
        return steps.copy()
    length = slice_len or 1
    windows = np.minimum(length, steps)  # shorter trajectories are drawn whole, where they are drawn
    beyond = sum(np.minimum(reach, windows - 1) for reach in slicing.reach(length))
    fits = steps >= length if slicing.strict_length else np.ones_like(steps, bool)
    return np.where(fits, steps - windows + 1 + beyond, 0)


def _no_fit(steps: NDArray[np.int64], slicing: Slicing, slice_len: int) -> SamplingError:
    if slicing.whole_trajectories:
        return SamplingError(
            f"whole trajectories of at most {slice_len} steps asked for, the shortest of {len(steps)} has {steps.min()}"
        )
    return SliceTooLongError(
        f"slices of {slice_len} steps asked for, the longest of {len(steps)} trajectories has {steps.max()}",
        hint="request shorter slices; a sampler with strict_length=False also draws shorter trajectories",
    )
