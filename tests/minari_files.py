"""Minari datasets written by Minari itself."""

import warnings
from collections.abc import Sequence
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pytest
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer

# Releases before 0.5.4 write whatever looks like pictures as JPEG.
_CHOOSES_JPEG = "jpeg_encoding" in signature(minari.create_dataset_from_buffers).parameters
IMAGE = spaces.Box(0, 255, (40, 36, 3), np.uint8)
GREY = spaces.Box(0, 255, (40, 36), np.uint8)
VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)
DICT = spaces.Dict({"achieved_goal": spaces.Box(-1, 1, (2,), np.float64), "inner": spaces.Dict({"vector": VECTOR})})
TUPLE = spaces.Tuple((VECTOR, spaces.Discrete(5)))


def write_dataset(
    root: Path,
    id: str,
    *,
    lengths: Sequence[int] = (4, 1, 7),
    observation: gymnasium.Space[Any] = VECTOR,
    action: gymnasium.Space[Any] | None = None,
    with_infos: bool = True,
    jpeg: bool = False,
    data_format: str = "hdf5",
    **described: Any,
) -> Path:
    """The directory of a new dataset below a Minari root, of random steps."""
    chosen = action or spaces.Discrete(6)
    for seed, space in enumerate((observation, chosen)):
        space.seed(seed)
    random = np.random.default_rng(0)
    episodes = [
        _episode(number, length, observation, chosen, random, with_infos) for number, length in enumerate(lengths)
    ]
    with datasets_at(root), warnings.catch_warnings(action="ignore"):
        minari.create_dataset_from_buffers(
            id,
            episodes,
            observation_space=observation,
            action_space=chosen,
            data_format=data_format,
            **({"jpeg_encoding": jpeg} if _CHOOSES_JPEG else {}),
            **described,
        )
    return root / id


@contextmanager
def datasets_at(root: Path) -> Any:
    """Minari finds and writes its datasets below this directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(root))
        yield


def read_dataset(root: Path, id: str) -> list[Any]:
    """The episodes as Minari's own reader gives them."""
    with datasets_at(root):
        return list(minari.load_dataset(id).iterate_episodes())


def record_cart_pole(root: Path, id: str, *, steps: int = 200) -> list[Any]:
    """CartPole's episodes under a random policy, as Minari's reader gives them."""
    env = gymnasium.make("CartPole-v1", max_episode_steps=20)
    env.action_space.seed(1)
    buffers: list[EpisodeBuffer] = []
    seed = 0
    while sum(len(buffer) for buffer in buffers) < steps:
        observation, _ = env.reset(seed=seed)
        rows: dict[str, list[Any]] = {"observations": [observation]}
        done = False
        while not done:
            action = env.action_space.sample()
            observation, reward, terminated, truncated, _ = env.step(action)
            named = {
                "observations": observation,
                "actions": action,
                "rewards": reward,
                "terminations": terminated,
                "truncations": truncated,
            }
            for name, value in named.items():
                rows.setdefault(name, []).append(value)
            done = terminated or truncated
        buffers.append(EpisodeBuffer(id=len(buffers), seed=seed, **rows))
        seed += 1
    with datasets_at(root), warnings.catch_warnings(action="ignore"):
        minari.create_dataset_from_buffers(id, buffers, env=env, data_format="hdf5")
    return read_dataset(root, id)


def _episode(
    number: int,
    length: int,
    observation: gymnasium.Space[Any],
    action: gymnasium.Space[Any],
    random: np.random.Generator,
    with_infos: bool,
) -> EpisodeBuffer:
    ends = [step == length - 1 for step in range(length)]
    never: list[bool] = [False] * length
    infos = {"score": random.random(length + 1), "deep": {"count": np.arange(length + 1), "name": ["x"] * (length + 1)}}
    return EpisodeBuffer(
        id=number,
        seed=number,
        observations=_columns([observation.sample() for _ in range(length + 1)]),
        actions=_columns([action.sample() for _ in range(length)]),
        rewards=random.random(length).tolist(),
        terminations=ends if number % 2 == 0 else never,
        truncations=never if number % 2 == 0 else ends,
        infos=infos if with_infos else None,
    )


def _columns(rows: list[Any]) -> Any:
    """What Minari keeps an episode's samples as: dicts and tuples of lists."""
    if isinstance(rows[0], dict):
        return {key: _columns([row[key] for row in rows]) for key in rows[0]}
    if isinstance(rows[0], tuple):
        return tuple(_columns(list(column)) for column in zip(*rows, strict=True))
    return rows
