"""Policies by name, such as ``random`` or ``file.py:name``; any callable as a policy; and how policies explore."""

import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from rlx.collector.environment.space import Arrays, RandomPolicy, Space
from rlx.collector.environment.vector import VectorEnvironment
from rlx.collector.policy.protocol import Choice, EpsilonGreedy, FunctionPolicy, Policy, Situation
from rlx.errors import CollectError, OptionError, PolicyNotFoundError, check_installed
from rlx.transform.code import load_object as load_user_object
from rlx.wording import did_you_mean

_TENSORDICTS = ("TensorDict", "TensorDictBase")
_TURNS = threading.RLock()


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """Description of a policy, which is created in the process that runs it.

    Args:
        text: ``random``; ``module:name`` or ``file.py:name`` of a function of observations, a class or an
            ``nn.Module``; a file written by ``torch.export.save``; or a state_dict and the function that makes its
            module, ``file.pt:module:factory``.
        deterministic: whether a policy that has a distribution takes its mode (or mean) instead of sampling it.
        function: the policy itself; ``text`` is then only its name.
    """

    text: str = "random"
    epsilon: float = 0.0
    deterministic: bool = False
    function: Callable[..., Any] | None = None

    @classmethod
    def of(cls, policy: str | Callable[..., Any], epsilon: float = 0.0, deterministic: bool = False) -> Self:
        """Return the spec of a policy or of its name."""
        if isinstance(policy, str):
            return cls(policy, epsilon, deterministic)
        return cls(getattr(policy, "__qualname__", type(policy).__name__), epsilon, deterministic, policy)

    @property
    def is_random(self) -> bool:
        """Whether actions are drawn from the action space."""
        return self.text == "random" and self.function is None

    def policy(self, environment: VectorEnvironment, seeds: Sequence[int]) -> Policy:
        """Return the policy for an environment."""
        if self.is_random:
            return FunctionPolicy(RandomPolicy(environment.action_space, seeds))
        policy = as_policy(_loaded(self.text) if self.function is None else self.function, environment.action_space)
        return EpsilonGreedy(policy, self.epsilon, environment.action_space, seeds) if self.epsilon else policy


def load_object(text: str) -> Any:
    """Return the object that ``module:name`` or ``file.py:name`` names."""
    return load_user_object(text, CollectError, PolicyNotFoundError)


def as_policy(found: Any, action_space: Space | None = None, device: str | None = None) -> Policy:
    """Return a function of observations or of TensorDicts, a class of them, or a torch module, as a policy.

    Args:
        found: the policy. It takes TensorDicts if it has ``in_keys`` and ``out_keys``, or if its first argument is
            annotated as a TensorDict; a module otherwise takes tensors, and a function arrays, unless its first
            call fails with arrays but not with a TensorDict.
        action_space: space of one environment; see ``FunctionPolicy``.
        device: device of a module; that of its parameters by default.
    """
    found = instance(found)
    if not callable(found):
        raise CollectError(f"policy is of type {type(found).__name__}: expected a function of observations")
    if takes_tensordict(found):
        from rlx.collector.policy.tensordict import TensorDictPolicy  # tensordict takes seconds

        return TensorDictPolicy(found, device)
    if is_module(found):
        from rlx.collector.policy.module import ModulePolicy  # torch takes seconds

        return ModulePolicy(found, action_space, device)
    if has_torch():  # a function of TensorDicts needs torch for its actions
        return UnannotatedPolicy(found, action_space, device)
    return FunctionPolicy(found, action_space)


def has_torch() -> bool:
    """Return whether torch is already imported; importing it takes seconds."""
    return "torch" in sys.modules


def instance(found: Any) -> Any:
    """Return an instance of a class, created without arguments; return other objects unchanged."""
    if not isinstance(found, type):
        return found
    try:
        return found()
    except TypeError as exc:
        raise CollectError(f"policy class {found.__name__} cannot be made without arguments: {exc}") from exc


def is_module(found: Any) -> bool:
    """Return whether it is a torch module."""
    # By name, so that other policies do not import torch.
    return any(
        f"{kind.__module__}.{kind.__qualname__}" == "torch.nn.modules.module.Module" for kind in type(found).__mro__
    )


def takes_tensordict(function: Callable[..., Any]) -> bool:
    """Return whether a function takes and gives TensorDicts: it has ``in_keys``, or its first argument is annotated so.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> def act(td: TensorDict) -> TensorDict:
        ...     return td.set("action", torch.zeros(td.shape))
        >>> takes_tensordict(act), takes_tensordict(lambda observation: observation)
        (True, False)
    """
    if hasattr(function, "in_keys") and hasattr(function, "out_keys"):
        return True
    called: Callable[..., Any] = getattr(function, "forward", function) if is_module(function) else function
    try:
        parameters = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):  # some functions of C have no signature
        return False
    annotation = parameters[0].annotation if parameters else None
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return name.split(".")[-1] in _TENSORDICTS


class UnannotatedPolicy:
    """A function without annotations: called with arrays, or with a TensorDict if its first call fails.

    Args:
        function: of observations, or of a TensorDict.
    """

    def __init__(
        self, function: Callable[[Any], Any], action_space: Space | None = None, device: str | None = None
    ) -> None:
        self._function = function
        self._device = device
        self._of_arrays = FunctionPolicy(function, action_space)
        self._policy: Policy | None = None

    def initial_state(self, situation: Situation) -> Arrays:
        """Return the initial state that the function declares."""
        declares = any(hasattr(self._function, name) for name in ("initial_state", "make_tensordict_primer"))
        return self._of_tensordicts.initial_state(situation) if declares else {}

    def __call__(self, situation: Situation) -> Choice:
        """Choose an action for every environment."""
        if self._policy is not None:
            return self._policy(situation)
        try:
            choice, self._policy = self._of_arrays(situation), self._of_arrays
        except Exception as exc:
            try:
                choice, self._policy = self._of_tensordicts(situation), self._of_tensordicts
            except Exception:
                raise exc from None
        return choice

    @cached_property
    def _of_tensordicts(self) -> Policy:
        from rlx.collector.policy.tensordict import TensorDictPolicy  # tensordict takes seconds

        return TensorDictPolicy(self._function, self._device)


def _loaded(text: str) -> Any:
    if ".pt" in text:
        check_installed("torch", f"policy {text!r} needs torch", "torch")
    if text.endswith((".pt2", ".pt")):
        from rlx.collector.policy.module import load_exported  # torch takes seconds

        return load_exported(Path(text))
    weights, separator, factory = text.partition(".pt:")
    if separator:
        from rlx.collector.policy.module import load_weights  # torch takes seconds

        return load_weights(Path(weights + ".pt"), load_object(factory))
    if ":" not in text:
        raise OptionError(
            f"policy {text!r}: expected random, module:name or file.py:name", hint=did_you_mean(text, ["random"])
        )
    return load_object(text)


@contextmanager
def exploring(exploration_type: str) -> Iterator[None]:
    """Let policies of tensordict and TorchRL in this thread sample, or not, as ``exploration_type`` says.

    Args:
        exploration_type: name of an ``InteractionType``, such as ``"RANDOM"`` or ``"DETERMINISTIC"``.
    """
    if "tensordict" not in sys.modules:  # then no policy asks how to explore, and importing it takes seconds
        yield
        return
    from tensordict.nn import InteractionType, set_interaction_type  # not imported here

    kind = InteractionType[exploration_type]
    turns: AbstractContextManager[Any] = nullcontext()
    try:
        explores = set_interaction_type(kind, thread_local=True)
    except TypeError:  # an older tensordict has one type for all threads: they take turns
        explores, turns = set_interaction_type(kind), _TURNS
    with turns, explores:
        yield
