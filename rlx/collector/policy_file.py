"""Policies by name: ``random``, ``module:name``, ``file.py:name``, ``file.pt2``, ``file.pt:module:factory``."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlx import named_object
from rlx.collector.environment import Environment
from rlx.collector.policy import EpsilonGreedy, Policy, RandomPolicy
from rlx.errors import CollectError


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A policy as a user names it; what it stands for is made where it is to run.

    Args:
        text: ``random``; ``module:name`` or ``file.py:name`` of a function of observations, or of a class or
            ``nn.Module`` that is one; a module that ``torch.export`` saved; or the state_dict of a module and what
            makes it, ``file.pt:module:factory``.
        epsilon: probability of a random action instead.
    """

    text: str = "random"
    epsilon: float = 0.0

    def policy(self, environment: Environment, seeds: Sequence[int]) -> Policy:
        """The policy for an environment.

        Raises:
            CollectError: there is none of that name, or it cannot be loaded.
        """
        if self.text == "random":
            return RandomPolicy(environment.action_space, seeds)
        policy = as_policy(_loaded(self.text))
        return EpsilonGreedy(policy, self.epsilon, environment.action_space, seeds) if self.epsilon else policy


def load_object(text: str) -> Any:
    """What ``module:name`` or ``file.py:name`` names.

    Raises:
        CollectError: there is no such module or name, or importing it failed.
    """
    return named_object.load_object(text, CollectError)


def as_policy(found: Any, device: str | None = None) -> Policy:
    """A function of observations, a class of them, or a torch module, as a policy.

    Args:
        found: which.
        device: where a module runs; where not given, where its parameters are.

    Raises:
        CollectError: it is none of these.
    """
    found = instance(found)
    if is_module(found):
        from rlx.collector.module_policy import ModulePolicy  # noqa: PLC0415  (torch takes seconds)

        return ModulePolicy(found, device)
    if not callable(found):
        raise CollectError(f"policy is a {type(found).__name__}: expected a function of observations")
    policy: Policy = found
    return policy


def instance(found: Any) -> Any:
    """What a class makes without arguments; anything else as it is.

    Raises:
        CollectError: it needs arguments.
    """
    if not isinstance(found, type):
        return found
    try:
        return found()
    except TypeError as exc:
        raise CollectError(f"policy class {found.__name__} cannot be made without arguments: {exc}") from exc


def is_module(found: Any) -> bool:
    """Whether it is a torch module."""
    # By name: a policy that is none does not make torch be imported.
    return any(
        f"{kind.__module__}.{kind.__qualname__}" == "torch.nn.modules.module.Module" for kind in type(found).__mro__
    )


def _loaded(text: str) -> Any:
    if text.endswith((".pt2", ".pt")):
        from rlx.collector.module_policy import load_exported  # noqa: PLC0415  (torch takes seconds)

        return load_exported(Path(text))
    weights, separator, factory = text.partition(".pt:")
    if separator:
        from rlx.collector.module_policy import load_weights  # noqa: PLC0415  (torch takes seconds)

        return load_weights(Path(weights + ".pt"), load_object(factory))
    return load_object(text)
