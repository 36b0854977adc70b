"""Policies: they choose the actions of n environments at once, from arrays."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rlx.collector.environment.space import Arrays, RandomPolicy, Space, leaves
from rlx.errors import CollectError
from rlx.numbers import array_of, check_real
from rlx.schema import name_of


class Situation(NamedTuple):
    """The inputs of a policy.

    Args:
        observation: [n, ...] arrays, or a tree of them as the observation space is.
        is_init: [n] bool, whether an episode starts with this step.
        state: [n, ...] by name: what the policy wrote as its state in the step before; its initial state where an
            episode starts.
    """

    observation: Any
    is_init: NDArray[np.bool_]
    state: Arrays


class Choice(NamedTuple):
    """The outputs of a policy in one step: arrays [n, ...] by name, the parts of a nested key joined by ``/``.

    Args:
        action: [n, ...] arrays, or a tree of them as the action space is.
        step: what it writes at the root beside the action, such as ``action_log_prob``.
        next: what it writes under ``next``.
        state: what it writes under ``next`` and reads at the root in the next step.
    """

    action: Any
    step: Mapping[str, NDArray[Any]] = {}
    next: Mapping[str, NDArray[Any]] = {}
    state: Mapping[str, NDArray[Any]] = {}


class Policy(Protocol):
    """Policy that chooses actions."""

    def initial_state(self, situation: Situation) -> Arrays:
        """Return [n, ...] by name: the state at the start of an episode, as far as it is known before the first step.

        Raises:
            CollectError: the shape of the state is unknown.
        """

    def __call__(self, situation: Situation, /) -> Choice:
        """Choose an action for every environment.

        Raises:
            CollectError: the policy reads a key without a source, or writes a value that cannot be kept.
        """


class FunctionPolicy:
    """A function of observations that returns actions, or actions and a dict of other outputs.

    Args:
        function: takes an array [n, ...], or a tree of them like the observation space.
        action_space: distinguishes a pair of actions from actions and a dict; without it, a pair is the latter.

    Example:
        >>> def act(observation):
        ...     return np.zeros(len(observation), np.int64), {"value": observation.sum(1)}
        >>> choice = FunctionPolicy(act)(Situation(np.ones((2, 3)), np.ones(2, bool), {}))
        >>> choice.action, choice.step
        (array([0, 0]), {'value': array([3., 3.])})
    """

    def __init__(self, function: Callable[[Any], Any], action_space: Space | None = None) -> None:
        self._function = function
        # Random actions of a few need neither a situation nor a check.
        self.draw = function if isinstance(function, RandomPolicy) and function.discrete is not None else None
        self._has_pairs = _is_pair_with_dict(action_space)

    def initial_state(self, situation: Situation) -> Arrays:  # noqa: ARG002  (it has none)
        """Return an empty dict: a function of observations has no state."""
        return {}

    def __call__(self, situation: Situation) -> Choice:
        """Choose an action for every environment."""
        found = self._function(situation.observation)
        if self._has_pairs or not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping)):
            return Choice(_on_host(found))
        action, more = found
        after = more.get("next", {})
        if not isinstance(after, Mapping):
            raise CollectError(f"policy gave a {type(after).__name__} as 'next': expected a dict")
        return Choice(_on_host(action), arrays_of({key: more[key] for key in more if key != "next"}), arrays_of(after))


def _on_host(tree: Any) -> Any:
    """Return actions with arrays in place of tensors, which may be on a device."""
    if isinstance(tree, Mapping):
        return {key: _on_host(part) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map(_on_host, tree))
    return array_of(tree) if hasattr(tree, "detach") else tree


class RandomActions:
    """Another policy with its actions replaced by random ones: its state and its other keys are as it writes them.

    Only ``*log_prob`` is NaN: it would be the probability of an action that was not taken.
    """

    def __init__(self, policy: Policy, random: RandomPolicy) -> None:
        self._policy = policy
        self._random = random

    def initial_state(self, situation: Situation) -> Arrays:
        """Return the initial state of the other policy."""
        return self._policy.initial_state(situation)

    def __call__(self, situation: Situation) -> Choice:
        """Choose an action for every environment."""
        choice = self._policy(situation)
        every = np.ones(len(situation.is_init), bool)
        return choice._replace(action=self._random(None), step=_without_log_prob(choice.step, every))


class EpsilonGreedy:
    """Another policy's actions, or random ones with probability epsilon, drawn per environment.

    Where an action is random, ``*log_prob`` is NaN; see ``RandomActions``.

    Args:
        policy: the other one; its actions are one array.
    """

    def __init__(self, policy: Policy, epsilon: float, action_space: Space, seeds: Sequence[int]) -> None:
        check_real("epsilon", epsilon, 0, 1, error=CollectError)
        if list(leaves(action_space, "action")) != ["action"]:
            raise CollectError(f"epsilon needs actions that are one array, found {action_space}")
        self._policy = policy
        self._epsilon = epsilon
        self._random = RandomPolicy(action_space, seeds)
        self._generators = [np.random.default_rng([seed, 1]) for seed in seeds]

    def initial_state(self, situation: Situation) -> Arrays:
        """Return the initial state of the other policy."""
        return self._policy.initial_state(situation)

    def __call__(self, situation: Situation) -> Choice:
        """Choose an action for every environment."""
        choice = self._policy(situation)
        chosen, drawn = np.asarray(choice.action), self._random(None)
        if chosen.shape != drawn.shape:
            return choice  # for the check of all actions to refuse
        is_random = np.array([rng.random() for rng in self._generators]) < self._epsilon
        action = np.where(is_random.reshape(-1, *(1 for _ in drawn.shape[1:])), drawn, chosen)
        return choice._replace(action=action, step=_without_log_prob(choice.step, is_random))


def arrays_of(tree: Mapping[Any, Any], name: str = "") -> Arrays:
    """Return the arrays of nested dicts, the parts of a key joined by ``/``.

    Example:
        >>> arrays_of({"value": [1.0], "params": {"loc": [0.0]}})
        {'value': array([1.]), 'params/loc': array([0.])}
    """
    found: Arrays = {}
    for key, part in tree.items():
        path = name + name_of(key if isinstance(key, tuple) else str(key))
        if isinstance(part, Mapping):
            found |= arrays_of(part, f"{path}/")
            continue
        array = array_of(part)
        found[path] = array.astype(object) if array.dtype.kind == "U" else array
    return found


def _without_log_prob(step: Mapping[str, NDArray[Any]], where: NDArray[np.bool_]) -> Mapping[str, NDArray[Any]]:
    if not where.any():
        return step
    unknown = {}
    for name, array in step.items():
        if name.endswith("log_prob") and array.dtype.kind == "f":
            unknown[name] = array.copy()
            unknown[name][where] = np.nan
    return {**step, **unknown}


def _is_pair_with_dict(space: Space | None) -> bool:
    return isinstance(space, spaces.Tuple) and len(space.spaces) == 2 and isinstance(space.spaces[1], spaces.Dict)
