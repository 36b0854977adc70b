"""Values that environments and policies give: copied into the dtypes of their spaces, or refused."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rlx.collector.environment.space import Arrays, Space, dtype_of, flatten, leaves, part_name
from rlx.errors import CollectError
from rlx.numbers import array_of
from rlx.traces import definition

logger = logging.getLogger(__name__)
_WHOLE = "biu"
_MOST = 1 << 63  # int64 holds the whole numbers below
_EXACT = 1 << 53  # float64 holds all whole numbers up to here
# The types of almost all rewards and flags, which need no further check.
_REWARDS, _FLAGS = (float, np.float32), (bool, np.bool_)
_FLOAT64: np.dtype[Any] = np.dtype(np.float64)
# The methods that give values: of environments, those that users of TorchRL write too; of policies, modules' first.
STEPS, RESETS, CHOOSES = ("step", "_step"), ("reset", "_reset"), ("forward", "__call__")
SCALARS = int, float, str, np.generic


class At(NamedTuple):
    """A step, 0 for a reset, and the number of the environment; None for that of each row."""

    step: int
    env: int | None = None

    def __str__(self) -> str:
        step = f"in step {self.step}" if self.step else "in reset"
        return step if self.env is None else f"{step} of environment {self.env}"


class Cast(NamedTuple):
    """Values in another dtype.

    Args:
        values: the values.
        changed: bool, those that are other numbers now, such as infinities.
        rounded: bool, those that are only rounded, from one floating-point dtype to another.
    """

    values: NDArray[Any]
    changed: NDArray[np.bool_]
    rounded: NDArray[np.bool_]


def cast(values: NDArray[Any], dtype: np.dtype[Any]) -> Cast:
    """Return numbers in another dtype, and which of them it changes.

    Example:
        >>> cast(np.array([44, 300]), np.dtype("uint8")).changed
        array([False,  True])
        >>> cast(np.array([0.5, 0.1, 1e300]), np.dtype("float32"))[1:]
        (array([False, False,  True]), array([False,  True, False]))
    """
    with np.errstate(all="ignore"):
        found = values.astype(dtype)
        back = found.astype(values.dtype)
        if values.dtype.kind in _WHOLE:
            changed = (back != values) | ((found < 0) != (values < 0))
            if dtype.kind == "f":  # beyond the limits of whole numbers, the way back is not defined
                changed |= np.abs(found) >= 2.0 ** (8 * values.dtype.itemsize - (values.dtype.kind == "i"))
            return Cast(found, changed, np.zeros_like(changed))
        differs = back != values  # also NaN, which whole numbers do not have
        changed = differs if dtype.kind != "f" else differs & np.isfinite(values) & ~np.isfinite(found)
    return Cast(found, changed, differs & ~changed & ~np.isnan(values))


class Intake:
    """Intake of the values of an environment or a policy.

    Args:
        giver: who gives them, for messages.
        source: the environment or the policy itself, for messages.
        is_policy: whether it is a policy.

    Attributes:
        remarks: number of steps by what was kept although nothing declares it, or not kept, since the last ``drain``.
    """

    def __init__(self, giver: str, source: Any = None, *, is_policy: bool = False) -> None:
        self.giver = giver
        self.source = source
        self._is_policy = is_policy
        self.remarks: dict[str, int] = {}

    def error(self, said: str, at: At | None = None, *, hint: str | None = None) -> CollectError:
        """Return the error for what it gave, with its name, the step, and file and line of the method that gave it.

        Args:
            said: what follows its name.
            at: where it was given; None if that is said, or unknown.
            hint: of the error.
        """
        methods = CHOOSES if self._is_policy else RESETS if at is not None and not at.step else STEPS
        where = definition(self.source, *methods)
        return CollectError(f"{self.giver} {said}{'' if at is None else f', {at}'}{where}", hint=hint)

    def remark(self, remark: str, steps: int) -> None:
        """Add to the number of steps of a remark."""
        self.remarks[remark] = self.remarks.get(remark, 0) + steps

    def drain(self) -> dict[str, int]:
        """Return the remarks since the last call."""
        drained, self.remarks = self.remarks, {}
        return drained

    def taker(self, space: Space, name: str) -> Taker:
        """Return what takes over the values of a space.

        Args:
            name: of the field.
        """
        if isinstance(space, spaces.Dict):
            return _Keys(self, space, name, {k: self.taker(p, part_name(space, name, k)) for k, p in space.items()})
        if isinstance(space, spaces.Tuple):
            return _Parts(self, space, name, [self.taker(part, f"{name}/{i}") for i, part in enumerate(space.spaces)])
        return (_Text if isinstance(space, spaces.Text) else _Leaf)(self, space, name)

    def outcome(self, reward: Any, terminated: Any, truncated: Any, at: At) -> tuple[float, bool, bool]:
        """Return the reward and the flags of one environment; see ``rewards`` and ``flags``."""
        if (
            (isinstance(reward, _REWARDS) or (type(reward) is int and -_EXACT <= reward <= _EXACT))
            and isinstance(terminated, _FLAGS)
            and isinstance(truncated, _FLAGS)
        ):
            return float(reward), bool(terminated), bool(truncated)
        ended = bool(self.flags("terminated", terminated, at)), bool(self.flags("truncated", truncated, at))
        return float(self.rewards(reward, at)), *ended

    def rewards(self, given: Any, at: At, rows: tuple[int, ...] = (), dtype: np.dtype[Any] = _FLOAT64) -> NDArray[Any]:
        """Return the rewards of n environments, or of one, as floating-point numbers; an array of them is not copied.

        Args:
            rows: as for ``Taker``.
            dtype: of whole numbers; others keep theirs.

        Raises:
            CollectError: it is no number, or a whole one that the dtype would change.
        """
        array = self._numbers("reward", given, "expected a number", at, rows)
        return array if array.dtype.kind == "f" else self.cast("reward", array, dtype, at, len(rows))

    def flags(self, name: str, given: Any, at: At, rows: tuple[int, ...] = ()) -> NDArray[np.bool_]:
        """Return the flags of n environments, or of one; an array of them is not copied.

        Raises:
            CollectError: a flag is neither True nor False, nor 1 nor 0.
        """
        array = self._numbers(name, given, "expected True or False", at, rows)
        if array.dtype == np.bool_:
            return array
        if (wrong := (array != 0) & (array != 1)).any():
            at = At(at.step, int(wrong.argmax())) if rows else at
            raise self.error(f"gave {name} {array[wrong][0].item()!r}, expected True or False", at)
        return array.astype(bool)

    def _numbers(self, name: str, given: Any, expected: str, at: At, rows: tuple[int, ...]) -> NDArray[Any]:
        if type(given) is np.ndarray:
            array = given
        else:
            try:
                array = array_of(given)
                if array.dtype.kind == "O" and not rows and float(given) == given:  # such as 2**64, or a Fraction
                    array = np.asarray(float(given))
            except (TypeError, ValueError, RuntimeError, OverflowError):
                array = np.asarray(None)
        if not rows and array.size == 1:
            array = array.reshape(())
        if array.shape != rows or array.dtype.kind not in "biuf":
            found = f"of {array.dtype}{list(array.shape)}" if array.shape else repr(given)
            raise self.error(f"gave {name} {found}, {f'expected {[*rows]}' if rows else expected}", at)
        return array

    def cast(self, name: str, values: NDArray[Any], dtype: np.dtype[Any], at: At | None, dims: int = 1) -> NDArray[Any]:
        """Return a copy in another dtype; count what is rounded.

        Args:
            dims: dimensions before those of a value: environments, and steps from ``at`` on.

        Raises:
            CollectError: it changes a value, other than by rounding a floating-point number to another.
        """
        if values.dtype.kind == dtype.kind == "f":
            with np.errstate(all="ignore"):
                same = values.astype(dtype)
            if (same == values).all():
                return same
        found = cast(values, dtype)
        self.check(name, values, found, at, dims)
        if found.rounded.any():
            steps = found.rounded.reshape(*values.shape[:dims], -1).any(-1) if values.ndim > dims else found.rounded
            self.remark(f"{name}: {values.dtype} rounded to {dtype}", int(steps.sum()))
        return found.values

    def check(self, name: str, values: NDArray[Any], found: Cast, at: At | None, dims: int = 1) -> None:
        """Raise CollectError if a cast has changed a value; see ``cast``."""
        if not found.changed.any():
            return
        first = tuple(np.argwhere(found.changed)[0].tolist())
        if at is not None and dims:
            at = At(at.step + (first[1] if dims > 1 else 0), first[0])
        dtype = found.values.dtype
        raise self.error(
            f"gave {name} {values[first].item()!r} of {values.dtype}, which {dtype} would change to "
            f"{found.values[first].item()!r}",
            at,
            hint=f"{name} should be {dtype} in the first place, or declared to be {values.dtype}",
        )


class Taker:
    """Takes over the values of a space: returns a copy of each, in the space's dtypes."""

    def __init__(self, intake: Intake, space: Space, name: str) -> None:
        self._intake = intake
        self._space = space
        self._name = name

    def __call__(self, value: Any, at: At | None, rows: tuple[int, ...] = ()) -> Any:
        """Return a copy of a value, in the space's dtypes.

        Args:
            value: arrays, tensors, numbers or lists of them, in a tree like the space.
            at: where it was given, for messages.
            rows: (n,) if the values of n environments are stacked.

        Raises:
            CollectError: it lacks a part, or has another shape or kind; or its cast changes a value.
        """
        raise NotImplementedError

    def empty(self, n: int) -> Any:
        """Return a tree of arrays [n, ...] for ``put``; not of a space with texts."""
        raise NotImplementedError

    def put(self, value: Any, rows: Any, env: int, step: int) -> None:
        """Write the value of one environment into its row of the arrays of ``empty``.

        Raises:
            CollectError: as by ``__call__``.
        """
        raise NotImplementedError

    def _refused(self, said: str, at: At | None) -> CollectError:
        return self._intake.error(f"gave {said}", at)


class _Keys(Taker):
    def __init__(self, intake: Intake, space: Space, name: str, parts: Mapping[str, Taker]) -> None:
        super().__init__(intake, space, name)
        self._parts = dict(parts)

    def __call__(self, value: Any, at: At | None, rows: tuple[int, ...] = ()) -> Any:
        try:
            taken = {key: part(value[key], at, rows) for key, part in self._parts.items()}
        except (KeyError, TypeError, IndexError) as exc:
            raise self._lacking(value, at) from exc
        if len(value) > len(taken):
            self._remark(value, rows[0] if rows else 1)
        return taken

    def empty(self, n: int) -> Any:
        return {key: part.empty(n) for key, part in self._parts.items()}

    def put(self, value: Any, rows: Any, env: int, step: int) -> None:
        try:
            for key, part in self._parts.items():
                part.put(value[key], rows[key], env, step)
        except (KeyError, TypeError, IndexError) as exc:
            raise self._lacking(value, At(step, env)) from exc
        if len(value) > len(self._parts):
            self._remark(value, 1)

    def _lacking(self, value: Any, at: At | None) -> CollectError:
        found = ", ".join(map(repr, value)) if isinstance(value, Mapping) else f"a {type(value).__name__}"
        return self._refused(f"{self._name} with {found}, expected {', '.join(map(repr, self._parts))}", at)

    def _remark(self, value: Mapping[str, Any], steps: int) -> None:
        for key in value.keys() - self._parts.keys():
            self._intake.remark(f"{self._name}: key {key!r} is not in its space, and not kept", steps)


class _Parts(Taker):
    def __init__(self, intake: Intake, space: Space, name: str, parts: Sequence[Taker]) -> None:
        super().__init__(intake, space, name)
        self._parts = list(parts)

    def __call__(self, value: Any, at: At | None, rows: tuple[int, ...] = ()) -> Any:
        return tuple([part(one, at, rows) for part, one in zip(self._parts, self._checked(value, at), strict=True)])

    def empty(self, n: int) -> Any:
        return tuple(part.empty(n) for part in self._parts)

    def put(self, value: Any, rows: Any, env: int, step: int) -> None:
        if type(value) is not tuple or len(value) != len(self._parts):
            value = self._checked(value, At(step, env))
        for part, one, column in zip(self._parts, value, rows, strict=True):
            part.put(one, column, env, step)

    def _checked(self, value: Any, at: At | None) -> Any:
        if not isinstance(value, Sequence | np.ndarray) or len(value) != len(self._parts):
            raise self._refused(f"{self._name} {value!r}, expected {len(self._parts)} parts", at)
        return value


class _Text(Taker):
    def __call__(self, value: Any, at: At | None, rows: tuple[int, ...] = ()) -> Any:
        texts = list(value) if rows and isinstance(value, Sequence | np.ndarray) else [value]
        if len(texts) != (rows[0] if rows else 1) or not all(isinstance(text, str) for text in texts):
            raise self._refused(f"{self._name} {value!r}, expected text", at)
        return tuple(texts) if rows else value


class _Leaf(Taker):
    def __init__(self, intake: Intake, space: Space, name: str) -> None:
        super().__init__(intake, space, name)
        self._dtype = dtype_of(space)
        self._shape = tuple(space.shape or ())
        self._is_whole = self._dtype == np.int64 and not self._shape

    def __call__(self, value: Any, at: At | None, rows: tuple[int, ...] = ()) -> Any:
        dtype, shape = self._dtype, (*rows, *self._shape) if rows else self._shape
        if type(value) is np.ndarray and value.dtype == dtype and value.shape == shape:
            return value.copy()
        if self._is_whole and type(value) is int and -_MOST <= value < _MOST:
            return np.int64(value)
        try:
            array = value if type(value) is np.ndarray else array_of(value)
        except (TypeError, ValueError, RuntimeError) as exc:  # such as lists of several lengths
            raise self._refused(
                f"a {type(value).__name__}: expected {self._name} of {self._space} ({exc})", at
            ) from exc
        if array.dtype == dtype and array.shape == shape:
            return array.copy()
        is_alike = np.can_cast(array.dtype, dtype, "same_kind") or (array.dtype.kind in _WHOLE and dtype.kind in _WHOLE)
        if array.shape != shape or not is_alike:
            found, expected = f"{array.dtype}{list(array.shape)}", f"{dtype}{list(shape)} for {self._space}"
            shown = "" if is_alike or array.size == 0 else f", found {array.flat[0]!r}"
            raise self._refused(f"{self._name} of {found}, expected {expected}{shown}", at)
        return self._intake.cast(self._name, array, dtype, at, len(rows))

    def empty(self, n: int) -> Any:
        return np.empty((n, *self._shape), self._dtype)

    def put(self, value: Any, rows: Any, env: int, step: int) -> None:
        if (
            value.dtype == self._dtype and value.shape == self._shape
            if type(value) is np.ndarray
            else self._is_whole and type(value) is int and -_MOST <= value < _MOST
        ):
            rows[env] = value
        else:
            rows[env] = self(value, At(step, env))


class ActionCheck:
    """Converter of a policy's outputs to actions that fit the space; raises if they do not.

    Args:
        policy: intake of the policy's values, whose errors name it.
    """

    def __init__(self, action_space: Space, num_envs: int, policy: Intake | None = None) -> None:
        self._space = action_space
        self._num_envs = num_envs
        self._leaves = leaves(action_space, "action")
        self._policy = policy or Intake("policy", is_policy=True)
        self._take = self._policy.taker(action_space, "action")
        leaf = self._leaves.get("action")
        # The start, number and dtype of actions that are one number of a few.
        self._discrete: tuple[int, int, np.dtype[Any]] | None = None
        if isinstance(leaf, spaces.Discrete):
            self._discrete = int(leaf.start), int(leaf.n), dtype_of(leaf)

    def __call__(self, actions: Any, step: int = 1) -> tuple[Any, Arrays]:
        """Return copies for the environments, which may write into them, and the arrays by the names of their fields.

        Args:
            actions: of all environments.
            step: number of the step, for messages.

        Raises:
            CollectError: they do not fit, or their cast changes one other than by rounding.
        """
        if self._discrete is not None and type(actions) is np.ndarray:
            start, n, dtype = self._discrete
            if actions.dtype == dtype and actions.shape == (self._num_envs,):
                numbers = actions.tolist()
                if start <= min(numbers) and max(numbers) < start + n:
                    return actions.copy(), {"action": actions}
        taken = self._take(actions, At(step), (self._num_envs,))
        fitting = flatten(self._space, "action", taken)
        for name, leaf in self._leaves.items():
            if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete):
                inside = inside_of(leaf)
                if inside is not None and not inside(fitting[name]).all():
                    raise self._policy.error(f"gave {name} {fitting[name].tolist()}: expected numbers of {leaf}")
        return taken, fitting


def copied(value: Any) -> Any:
    """Return a value with copies of its arrays and tensors; other objects are the same."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, SCALARS):
        return value
    if isinstance(value, Mapping):
        return {key: copied(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(map(copied, value)) if type(value) in (tuple, list) else tuple(map(copied, value))
    return value.clone() if hasattr(value, "clone") and hasattr(value, "detach") else value


def inside_of(leaf: Space) -> Callable[[NDArray[Any]], NDArray[np.bool_]] | None:
    """Return a function that tells which numbers of values [..., *shape] are in a space; None if its dtype holds no
    others.

    Example:
        >>> inside_of(spaces.Box(-1, 1, (1,)))(np.array([[0.5], [7], [np.nan]])).tolist()
        [[True], [False], [False]]
    """
    low: Any
    high: Any
    if isinstance(leaf, spaces.Box):
        low, high = leaf.low, leaf.high
    elif isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete):
        low, high = leaf.start, leaf.start + (leaf.n if isinstance(leaf, spaces.Discrete) else leaf.nvec) - 1
    elif isinstance(leaf, spaces.MultiBinary):
        low, high = 0, 1
    else:
        return None
    dtype = dtype_of(leaf)
    if dtype.kind == "f" and not (np.isfinite(low).any() or np.isfinite(high).any()):
        return lambda values: ~np.isnan(values)
    if dtype.kind == "b" or (
        dtype.kind in "iu" and np.all(low == np.iinfo(dtype).min) and np.all(high == np.iinfo(dtype).max)
    ):
        return None
    # NaN is within no limits.
    return lambda values: (values >= low) & (values <= high)


class Inspection:
    """Remarks on values that are kept although they are odd: observations outside their space, rewards not finite.

    Attributes:
        names: of the observations whose dtype holds others than their space.
    """

    def __init__(self, intake: Intake, observation_space: Space) -> None:
        self._intake = intake
        self._inside = {
            name: inside
            for name, leaf in leaves(observation_space, "observation").items()
            if (inside := inside_of(leaf)) is not None
        }
        self.names = list(self._inside)

    def __call__(self, arrays: Mapping[str, NDArray[Any]], made: NDArray[np.bool_] | None = None) -> None:
        """Count the odd ones among arrays [n, ...] by name; or of [n, T, ...], those that ``made`` [n, T] names."""
        for name, rows in arrays.items():
            inside = np.isfinite if name == "reward" else self._inside.get(name)
            if inside is None or (right := inside(rows)).all():
                continue
            wrong = ~right.all(tuple(range(1 if made is None else 2, right.ndim)))
            if steps := int((wrong if made is None else wrong & made).sum()):
                self._intake.remark(f"{name}: {'NaN or infinite' if name == 'reward' else 'outside its space'}", steps)


class Remarks:
    """Counts of the remarks of all workers; the first of each is logged.

    Attributes:
        counts: number of steps by remark.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, remarks: Mapping[str, int]) -> None:
        """Add the remarks of an ``Intake``."""
        for remark, steps in remarks.items():
            if remark not in self.counts:
                logger.warning("the environment's %s; later ones are only counted", remark)
            self.counts[remark] += steps
