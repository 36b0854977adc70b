"""Steps an Environment by hand: TED TensorDicts in and out, one step at a time."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase

from rlx.collector.environment.space import ActionCheck, Arrays, RandomPolicy, flatten
from rlx.collector.environment.vector import Environment
from rlx.errors import CollectError

FLAGS = ("done", "terminated", "truncated")


class TedStepper:
    """An environment and where it stands; see ``TedEnv``.

    Args:
        environment: the environment to step; it resets by itself where an episode ends, and this hides it.
    """

    def __init__(self, environment: Environment) -> None:
        n = environment.num_envs
        self.environment = environment
        self.batch = (n,) if environment.is_batched else ()
        self._fit_actions = ActionCheck(environment.action_space, n)
        seeds = _seeds(int(np.random.SeedSequence().generate_state(1)[0]), n)
        self._random = RandomPolicy(environment.action_space, seeds)
        self._now = self._flat(environment.reset(seeds))
        self._is_fresh = np.ones(n, bool)  # begun by the environment itself, and not given out yet
        self._has_ended = np.zeros(n, bool)

    def set_seed(self, seed: int, *, is_static: bool) -> int:
        """Seed every copy; return the number that follows."""
        n = self.environment.num_envs
        seeds = [seed] * n if is_static else _seeds(seed, n)
        self._random = RandomPolicy(self.environment.action_space, seeds)
        self._now = self._flat(self.environment.reset(seeds))
        # As with TorchRL, seeding is a reset, and the first episode begins with another.
        self._is_fresh[:] = self._has_ended[:] = False
        return seed if is_static else _next_seed(seeds[-1])

    def reset(self, steps: TensorDictBase | None) -> TensorDictBase:
        """Return first observations of the copies that ``_reset`` names, or of all."""
        which = np.ones(self.environment.num_envs, bool)
        if steps is not None and (asked := steps.get("_reset", None)) is not None:
            which = asked.cpu().numpy().reshape(-1)
        if (due := which & ~self._is_fresh).any():
            self._now = self._flat(self.environment.reset_some(due))
        self._is_fresh[which] = self._has_ended[which] = False
        began = self._ted(self._now).update({name: self._column(np.zeros(len(which), bool)) for name in FLAGS})
        return began if steps is None else steps.exclude("_reset", *FLAGS).update(began)

    def step(self, steps: TensorDictBase) -> TensorDictBase:
        """Take ``action`` and write ``next``."""
        if self._has_ended.any():
            copy = int(np.flatnonzero(self._has_ended)[0])
            raise CollectError(f"the episode of copy {copy} of {self.environment.name} has ended: reset it first")
        self._is_fresh[:] = False
        actions, _ = self._fit_actions(self._actions(steps))
        outcome = self.environment.step(actions)
        self._now = self._flat(outcome.observation)
        following = {name: rows.copy() for name, rows in self._now.items()}
        for env, observation in outcome.final_observation.items():
            for name, row in flatten(self.environment.observation_space, "observation", observation).items():
                following[name][env] = row
        ended = outcome.terminated | outcome.truncated
        self._has_ended = ended.copy()
        self._is_fresh = ended.copy() if outcome.recorded is None else np.zeros_like(ended)
        columns: Arrays = {"reward": np.asarray(outcome.reward, np.float32), "terminated": outcome.terminated}
        columns |= {"truncated": outcome.truncated, "done": ended}
        made = self._ted(following).update({name: self._column(rows) for name, rows in columns.items()})
        preset = steps.get("next", None)  # a policy's state
        return steps.set("next", made if preset is None else preset.copy().update(made))

    def step_mdp(self, steps: TensorDictBase) -> TensorDictBase:
        """Return the root of the step after this one."""
        return steps.exclude("next").update(steps["next"].exclude("reward"))

    def step_and_maybe_reset(self, steps: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """Return the step, and the root of the next one."""
        steps = self.step(steps)
        root = self.step_mdp(steps)
        if self._has_ended.any():
            root = self.reset(root.set("_reset", steps["next", "done"].clone()))
        return steps, root

    def rand_action(self, steps: TensorDictBase | None) -> TensorDictBase:
        """Write random actions."""
        found = flatten(self.environment.action_space, "action", self._random(None))
        return (TensorDict({}, self.batch) if steps is None else steps).update(self._ted(found))

    def rollout(
        self,
        max_steps: int,
        policy: Callable[..., Any] | None,
        *,
        start: TensorDictBase | None,
        auto_reset: bool,
        stops_at_end: bool,
        set_truncated: bool,
    ) -> TensorDictBase:
        """Return steps [*batch, T]."""
        if max_steps < 1:
            raise CollectError(f"max_steps={max_steps}: expected at least 1")
        if not auto_reset and start is None:
            raise CollectError("auto_reset=False: expected the tensordict where the rollout continues")
        root = self.reset(None) if start is None else start
        if start is not None and self._has_ended.any():
            root = self.reset(start.copy().set("_reset", self._column(self._has_ended)))
        made: list[TensorDictBase] = []
        while len(made) < max_steps:
            stepped = self.step(self._acted(policy, root.copy()))
            made.append(stepped)
            if stops_at_end and self._has_ended.any():
                break
            root = self.step_mdp(stepped)
            if self._has_ended.any() and len(made) < max_steps:
                root = self.reset(root.set("_reset", stepped["next", "done"].clone()))
        # Lazy where a key is not in every step, as a state that the policy reads from the second step on.
        steps = LazyStackedTensorDict.maybe_dense_stack(made, len(self.batch))
        steps.names = [*(None for _ in self.batch), "time"]
        if set_truncated:
            for name in ("truncated", "done"):
                steps["next", name][..., -1, :] = True
        return steps

    def _acted(self, policy: Callable[..., Any] | None, root: TensorDictBase) -> TensorDictBase:
        if policy is None:
            return self.rand_action(root)
        if isinstance(policy, torch.nn.Module) and not hasattr(policy, "in_keys"):
            return root.set("action", policy(root["observation"]))
        found = policy(root)
        if not isinstance(found, TensorDictBase) or "action" not in found:
            given = "no action" if isinstance(found, TensorDictBase) else f"a {type(found).__name__}"
            raise CollectError(f"policy gave {given}: expected the TensorDict with 'action'")
        return root.update(found)

    def _actions(self, steps: TensorDictBase) -> Any:
        """Return the actions [n, ...] as the space has them."""
        if (action := steps.get("action", None)) is None:
            raise CollectError("expected 'action' in the TensorDict", hint="env.rand_action(tensordict) writes one")
        return _tree(action if self.batch else action.unsqueeze(0), self.environment.action_space)

    def _flat(self, observation: Any) -> Arrays:
        flat = flatten(self.environment.observation_space, "observation", observation)
        return {name: np.array(rows) for name, rows in flat.items()}

    def _column(self, rows: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(rows)).reshape(*self.batch, 1).clone()

    def _ted(self, fields: Arrays) -> TensorDictBase:
        """Return fields [n, ...] as a TensorDict; copies."""
        made = TensorDict({}, self.batch)
        for name, rows in fields.items():
            tensor = torch.from_numpy(rows.copy())
            made[tuple(name.split("/"))] = tensor if self.batch else tensor[0]
        return made


def _tree(action: Any, space: Any) -> Any:
    if isinstance(parts := getattr(space, "spaces", None), Mapping):
        return {key: _tree(action[key], part) for key, part in parts.items()}
    if isinstance(parts, tuple):
        return tuple(_tree(action[str(number)], part) for number, part in enumerate(parts))
    return action.detach().cpu().numpy()


def _seeds(seed: int, count: int) -> list[int]:
    seeds = [seed]
    while len(seeds) < count:
        seeds.append(_next_seed(seeds[-1]))
    return seeds


def _next_seed(seed: int) -> int:
    """Return the number after another in TorchRL's sequences of seeds.

    Example:
        >>> _next_seed(0)
        795726461
    """
    return int.from_bytes(np.random.default_rng(seed).bytes(8), "big") % (2**32 - 1)
