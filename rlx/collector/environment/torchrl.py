"""TorchRL's environments as gymnasium's: known by the names of their classes, so that rlx does not depend on TorchRL.

The keys of the observation spec are observations, under their own names; a key that no spec declares is in gymnasium's
``info``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from tensordict import TensorDict, TensorDictBase

from rlx.collector.environment.autoreset import AutoresetMode
from rlx.collector.environment.space import Fields, Space
from rlx.errors import CollectError
from rlx.store.foreign_types import discrete

# Longer than any text of an observation: gymnasium wants a limit, TorchRL knows none.
_MAX_TEXT = 1 << 20
_FLAGS = ("done", "terminated", "truncated")


class OneHot(spaces.Box):
    """Numbers below ``nvec``, one-hot encoded and concatenated; samples are one-hot too.

    Args:
        dtype: of the 0s and 1s.

    Example:
        >>> OneHot([2, 3]).sample().sum()
        np.int64(2)
    """

    def __init__(self, nvec: list[int], dtype: np.dtype[Any] | type[Any] = np.int64) -> None:
        self.nvec = tuple(nvec)
        super().__init__(0, 1, (sum(nvec),), dtype)

    def sample(self, mask: None = None, probability: None = None) -> NDArray[Any]:  # noqa: ARG002  (gymnasium's)
        """Return a one-hot array per number, drawn uniformly, joined."""
        return np.concatenate([np.eye(n, dtype=self.dtype)[self.np_random.integers(n)] for n in self.nvec])


def space_of(spec: Any, name: str) -> Space:
    """Return the gymnasium space of the values that a spec of one environment describes.

    Args:
        spec: a ``torchrl.data.TensorSpec`` without a batch dimension.
    """
    kinds = _kinds(spec)
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
        return discrete(spec.space.n, 0, dtype)
    if "Unbounded" in kinds:
        low, high = (-np.inf, np.inf) if dtype.kind == "f" else _limits(dtype)
        return _box(low, high, shape, dtype)
    if "Bounded" in kinds:
        bounds = spec.space.low, spec.space.high
        lowest, highest = (np.broadcast_to(bound.cpu().numpy(), shape) for bound in bounds)
        return _box(lowest, highest, shape, dtype)
    raise _unknown(spec, name)


def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    if dtype == np.bool_:
        return 0, 1
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def _box(low: Any, high: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> spaces.Box:
    return spaces.Box(low, high, shape, dtype)


def _unknown(spec: Any, name: str) -> CollectError:
    return CollectError(
        f"{name} has a {type(spec).__name__} spec of {spec.dtype}{list(spec.shape)}, which no gymnasium space describes"
    )


def adapted(env: Any) -> TorchRLEnv | TorchRLVectorEnv:
    """Return a torchrl.envs.EnvBase as a ``gymnasium.Env``, or as a ``VectorEnv`` where it has a batch dimension."""
    return TorchRLVectorEnv(env) if env.batch_size else TorchRLEnv(env)


class _Adapter:
    """Adapter that converts TensorDicts to arrays and back.

    Args:
        env: n environments of shape ``batch_size``.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.name = _name(env)
        self.batch = tuple(env.batch_size)
        self.action_space = _action_space(env, self.name)
        self.observation_space, self._keys = _observation_space(env, self.name)
        _check_one_each(env, self.name)
        declared = {_first(key) for key in (*env.full_observation_spec.keys(), *env.full_state_spec.keys())}
        self._declared = declared | {"reward", *_FLAGS, "_reset"}
        self._root: TensorDictBase | None = None

    @torch.no_grad()
    def reset(self, seed: int | None, mask: NDArray[np.bool_] | None) -> TensorDictBase:
        if seed is not None:
            self.env.set_seed(seed)
        if mask is None or self._root is None or mask.all():
            self._root = self.env.reset()
        else:
            shape = self.env.full_done_spec["done"].shape
            which = torch.from_numpy(mask.copy()).reshape(self.batch).to(self.env.device)
            asked = self._root.copy().set("_reset", which.reshape(*self.batch, *(1 for _ in shape[len(self.batch) :])))
            self._root = self.env.reset(asked, select_reset_only=True).exclude("_reset")
        return self._root

    @torch.no_grad()
    def step(self, action: Any) -> tuple[TensorDictBase, TensorDictBase]:
        """Return the outcome of the action, and the input of the next choice: after a reset, where an episode ended."""
        if self._root is None:
            raise CollectError(f"{self.name}: reset it before the first step")
        stepped = self._root.copy().set("action", self._tensors(action, self.env.full_action_spec["action"]))
        stepped, self._root = self.env.step_and_maybe_reset(stepped)
        return stepped["next"], self._root

    def observation(self, steps: TensorDictBase) -> Any:
        """Return the arrays of the observation; copies, as some environments write into the same memory again."""
        if not isinstance(self.observation_space, Fields):
            return self._rows(steps[self._keys[0]])
        return {key: self._rows(steps[key]) for key in self._keys}

    def extras(self, following: TensorDictBase) -> dict[str, Any]:
        return {key: self._rows(following[key]) for key in following.keys() if key not in self._declared}  # noqa: SIM118

    def flags(self, following: TensorDictBase) -> tuple[NDArray[Any], NDArray[Any]]:
        done = self._column(following["done"])
        terminated = self._column(following["terminated"]) if "terminated" in following else done
        truncated = self._column(following["truncated"]) if "truncated" in following else done & ~terminated
        return terminated, truncated

    def reward(self, following: TensorDictBase) -> NDArray[Any]:
        return self._column(following["reward"])

    def _column(self, values: torch.Tensor) -> NDArray[Any]:
        return values.cpu().numpy().reshape(self._rows_shape).copy()

    @property
    def _rows_shape(self) -> tuple[int, ...]:
        return (int(np.prod(self.batch)),) if self.batch else ()

    def _rows(self, values: Any) -> Any:
        if isinstance(values, torch.Tensor):
            rows = values.detach().cpu().numpy().copy()
            return rows.reshape((*self._rows_shape, *rows.shape[len(self.batch) :]))
        if isinstance(values, TensorDictBase):
            return {key: self._rows(values[key]) for key in values.keys()}  # noqa: SIM118
        return tuple(values) if isinstance(values, list) else values

    def _tensors(self, action: Any, spec: Any) -> Any:
        if isinstance(action, Mapping):
            parts = {key: self._tensors(part, spec[key]) for key, part in action.items()}
            return TensorDict(parts, self.batch, device=self.env.device)
        return torch.as_tensor(np.asarray(action), dtype=spec.dtype, device=spec.device).reshape(spec.shape)


class TorchRLEnv(gymnasium.Env[Any, Any]):
    """One environment of TorchRL; it is closed with this.

    Args:
        env: a ``torchrl.envs.EnvBase`` without a batch dimension.
    """

    def __init__(self, env: Any) -> None:
        self._adapter = _Adapter(env)
        self.torchrl_name = self._adapter.name
        self.observation_space = self._adapter.observation_space
        self.action_space = self._adapter.action_space
        self._begun: TensorDictBase | None = None  # of an episode that TorchRL has begun ahead of its reset

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Return the first observation of an episode: of the one that TorchRL began when the last one ended, if it
        did."""
        super().reset(seed=seed, options=options)
        root = self._begun if seed is None and self._begun is not None else self._adapter.reset(seed, None)
        self._begun = None
        return self._adapter.observation(root), self._adapter.extras(root)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Return gymnasium's five."""
        following, root = self._adapter.step(action)
        terminated, truncated = (bool(flag) for flag in self._adapter.flags(following))
        self._begun = root if terminated or truncated else None
        observation, extras = self._adapter.observation(following), self._adapter.extras(following)
        return observation, self._adapter.reward(following)[()], terminated, truncated, extras

    def close(self) -> None:
        """Close the environment."""
        _close(self._adapter.env)


class TorchRLVectorEnv(VectorEnv[Any, Any, Any]):
    """A batch of TorchRL's environments, of any batch size, as n environments; it is closed with this.

    TorchRL's ``set_seed`` takes one number, from which it makes those of all environments.

    Args:
        env: a ``torchrl.envs.EnvBase`` with batch dimensions.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012  (gymnasium's type)

    def __init__(self, env: Any) -> None:
        self._adapter = _Adapter(env)
        self.torchrl_name = self._adapter.name
        self.num_envs = int(np.prod(self._adapter.batch))
        self.single_observation_space: Any = self._adapter.observation_space
        self.single_action_space: Any = self._adapter.action_space

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Return [n, ...] observations, after resetting those that ``options["reset_mask"]`` names, or all."""
        mask = None if options is None else options.get("reset_mask")
        root = self._adapter.reset(seed if seed is None or isinstance(seed, int) else seed[0], mask)
        return self._adapter.observation(root), self._adapter.extras(root)

    def step(self, actions: Any) -> tuple[Any, NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Return gymnasium's five, of autoreset mode SAME_STEP."""
        following, root = self._adapter.step(actions)
        terminated, truncated = self._adapter.flags(following)
        info = self._adapter.extras(following)
        if (terminated | truncated).any():
            info["final_obs"] = self._adapter.observation(following)
        return self._adapter.observation(root), self._adapter.reward(following), terminated, truncated, info

    def close_extras(self, **_: Any) -> None:
        """Close the environments."""
        _close(self._adapter.env)


def _close(env: Any) -> None:
    if not env.is_closed:
        env.close()


def _name(env: Any) -> str:
    *_, base = _nested(env)
    return f"torchrl's {type(base).__name__}"


def _nested(env: Any) -> Iterator[Any]:
    while "TransformedEnv" in _kinds(env):
        yield env
        env = env.base_env
    yield env


def _kinds(thing: Any) -> set[str]:
    return {kind.__name__ for kind in type(thing).__mro__}


def _action_space(env: Any, name: str) -> Space:
    specs = env.full_action_spec_unbatched
    if list(specs.keys()) != ["action"]:
        raise CollectError(f"{name} takes {', '.join(map(str, env.action_keys))}: expected 'action' alone")
    return space_of(specs["action"], "action")


def _observation_space(env: Any, name: str) -> tuple[Space, list[str]]:
    """Return the space, and its keys: ``observation`` alone as it is, any others as fields of their own."""
    left_out = set(_supplied(env))
    specs = {key: spec for key, spec in env.full_observation_spec_unbatched.items() if key not in left_out}
    if not specs:
        raise CollectError(f"{name} has no observations")
    if list(specs) == ["observation"]:
        return space_of(specs["observation"], "observation"), ["observation"]
    return Fields({key: space_of(spec, key) for key, spec in specs.items()}), list(specs)


def _supplied(env: Any) -> Iterator[str]:
    """Yield keys of what rlx's collectors do themselves: ``is_init``, and a policy's state, zeros where an episode
    starts.
    """
    for transform in (
        part for one in _nested(env) if "TransformedEnv" in _kinds(one) for part in _parts(one.transform)
    ):
        if "InitTracker" in _kinds(transform) and transform.init_key == "is_init":
            yield "is_init"
        if "TensorDictPrimer" in _kinds(transform) and not transform.random:
            values = transform.default_value
            if isinstance(values, Mapping):
                zeros = (key for key, value in values.items() if isinstance(value, int | float) and value == 0)
                yield from map(_first, zeros)


def _parts(transform: Any) -> Iterator[Any]:
    if "Compose" not in _kinds(transform):
        yield transform
        return
    for part in transform:
        yield from _parts(part)


def _check_one_each(env: Any, name: str) -> None:
    n = int(np.prod(tuple(env.batch_size)))
    for key, spec in (*_items(env.full_reward_spec, {"reward"}, name), *_items(env.full_done_spec, set(_FLAGS), name)):
        if spec.shape.numel() != n:
            raise CollectError(f"{name} gives {key} {list(spec.shape)}: expected one for each of {n} environments")


def _items(specs: Any, known: set[str], name: str) -> Iterator[tuple[str, Any]]:
    for key, spec in specs.items(True, True):
        if key not in known:
            raise CollectError(f"{name} gives {key!r}: expected {', '.join(sorted(known))} of one agent")
        yield key, spec


def _first(key: Any) -> str:
    return key[0] if isinstance(key, tuple) else str(key)
