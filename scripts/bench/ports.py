"""Eight projects that read experience: a batch by rlx, beside the same batch in plain numpy, as the project makes it.

python -m scripts.bench.ports [--steps 20000] [--rounds 15] [--json]

The projects hold all steps in arrays in memory; rlx reads a dataset on disk, whose files are in the page cache. Both
work in turns in one torch thread. Pictures are frames of Pong, vectors those of Pendulum. ``tests/docs/test_ports.py``
compares the values; ``docs/ports.md`` shows the lines.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase

import rlx
from rlx import buffer
from scripts.bench import timing
from scripts.bench.run import converted_run

Array = NDArray[Any]
Rows = NDArray[np.int64]
Batch = Mapping[str, Array]
GAMMA, STACK, N_STEP = 0.99, 4, 3


class Memory:
    """All steps of a dataset in arrays.

    Attributes:
        frames: [S + N, ...] observations: a trajectory has one more than steps.
        row: [S] row of each step's observation in ``frames``.
        first, last: [S] first and last step of each step's trajectory.
        action, reward, terminated: [S, ...].
    """

    def __init__(self, dataset: rlx.Dataset) -> None:
        self.length = np.asarray(dataset.trajectories.length)
        steps = dataset[:]
        number = np.repeat(np.arange(len(self.length)), self.length)
        end = np.cumsum(self.length)
        self.first, self.last = (end - self.length)[number], end[number] - 1
        self.row = np.arange(len(number)) + number
        observation, following = steps["observation"].numpy(), steps["next", "observation"].numpy()
        self.frames = np.empty((len(number) + len(end), *observation.shape[1:]), observation.dtype)
        self.frames[self.row] = observation
        self.frames[self.row[end - 1] + 1] = following[end - 1]
        self.action, self.reward = steps["action"].numpy(), steps["next", "reward"].numpy().reshape(-1)
        self.terminated = steps["next", "terminated"].numpy().reshape(-1)

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def elapsed(self) -> Rows:
        """[S] steps of the trajectory before each step."""
        return np.arange(len(self)) - self.first

    @cached_property
    def to_go(self) -> Array:
        """[S] sum of the rewards from each step to its trajectory's last."""
        found, total = np.zeros(len(self), np.float32), 0.0
        for step in reversed(range(len(self))):
            total = self.reward[step] + (0.0 if step == self.last[step] else total)
            found[step] = total
        return found

    @cached_property
    def stacked(self) -> Array:
        """[S, 4, ...] the last frames at each step, zeros before a trajectory's first; all at once, as kzl's code has
        them."""
        return self.stack(np.arange(len(self)))

    def stack(self, steps: Rows, frames: int = STACK, *, after: int = 0, zeros: bool = True) -> Array:
        """Return [..., frames, ...] the frames until ``after`` steps later; before a trajectory's first, zeros, or it
        again."""
        back = np.arange(frames - 1, -1, -1)
        place = (self.elapsed[steps] + after)[..., None] - back
        rows = (self.row[steps] - self.elapsed[steps])[..., None] + np.maximum(place, 0)
        found: Array = self.frames[rows]
        if zeros:
            found[place < 0] = 0
        return found

    def starts(self, steps: int) -> Rows:
        """Return the steps from which ``steps`` steps are in one trajectory."""
        return np.flatnonzero(np.arange(len(self)) + steps - 1 <= self.last)


# ---- kzl/decision-transformer, Atari: contexts of 30 stacks, and the returns that are left


def draw_contexts(memory: Memory, rng: np.random.Generator, count: int = 128, steps: int = 30) -> Rows:
    """Return [n, T] steps of contexts within trajectories."""
    return rng.choice(memory.starts(steps), count)[:, None] + np.arange(steps)


def plain_decision_transformer(memory: Memory, steps: Rows) -> Batch:
    """Return contexts of stacks as float32, from stacks that were made before, with the returns that are left."""
    each = [torch.tensor(memory.stacked[row[0] : row[-1] + 1], dtype=torch.float32) / 255 for row in steps]
    return {
        "states": torch.stack(each).numpy(),
        "actions": memory.action[steps],
        "returns": memory.to_go[steps],
        "timesteps": memory.elapsed[steps],
    }


# ---- google-research/batch_rl, Dopamine's buffer: n-step transitions between stacks, one after the other


def draw_transitions(memory: Memory, rng: np.random.Generator, count: int = 32) -> Rows:
    """Return [n] steps."""
    return rng.integers(len(memory), size=count)


def plain_batch_rl(memory: Memory, steps: Rows) -> Batch:
    """Return n-step transitions between stacks, made one after the other as Dopamine's buffer makes them."""
    found: dict[str, list[Any]] = {"state": [], "action": [], "reward": [], "next_state": [], "terminal": []}
    for step in steps.tolist():
        last = min(step + N_STEP - 1, int(memory.last[step]))
        rewards = memory.reward[step : last + 1]
        found["state"].append(memory.stack(np.array(step)))
        found["action"].append(memory.action[step])
        found["reward"].append(np.sum(GAMMA ** np.arange(len(rewards)) * rewards))
        found["next_state"].append(memory.stack(np.array(last), after=1))
        found["terminal"].append(memory.terminated[last])
    return {name: np.array(values) for name, values in found.items()}


# ---- mila-iqia/SGI: windows for SPR, frames rolled into stacks


def draw_windows(memory: Memory, rng: np.random.Generator) -> Rows:
    """Return [16, 32] steps of windows within trajectories."""
    return draw_contexts(memory, rng, 16, 32)


def plain_sgi(memory: Memory, steps: Rows) -> Batch:
    """Return windows of stacks: their frames once, rolled as often as a stack has frames."""
    length = steps.shape[1]
    place = memory.elapsed[steps[:, :1]] + np.arange(1 - STACK, length)
    frames = memory.frames[memory.row[steps[:, :1]] + np.maximum(place, 0) - memory.elapsed[steps[:, :1]]]
    frames[place < 0] = 0
    observation = np.repeat(frames[:, :, None], STACK, 2)
    for back in range(1, STACK):
        observation[:, :, back] = np.roll(observation[:, :, back], -back, 1)
    return {
        "observation": observation[:, :length],
        "action": memory.action[steps],
        "reward": memory.reward[steps],
        "done": memory.terminated[steps],
    }


# ---- RL Unplugged and d4rl-atari: transitions between stacks with the next action


def draw_followed(memory: Memory, rng: np.random.Generator) -> Rows:
    """Return [256] steps."""
    return draw_transitions(memory, rng, 256)


def plain_rl_unplugged(memory: Memory, steps: Rows) -> Batch:
    """Return (s, a, r, d, s', a')."""
    is_last = steps == memory.last[steps]
    return {
        "state": memory.stack(steps),
        "action": memory.action[steps],
        "reward": memory.reward[steps],
        "discount": np.where(memory.terminated[steps], 0.0, GAMMA),
        "next_state": memory.stack(steps, after=1),
        "next_action": np.where(is_last, 0, memory.action[np.where(is_last, steps, steps + 1)]),
        "has_next_action": ~is_last,
    }


# ---- NM512/dreamerv3-torch: 16 streams of 64 steps that run on into another episode


def draw_streams(memory: Memory, rng: np.random.Generator, streams: int = 16, steps: int = 64) -> Rows:
    """Return [16, 64] steps: of an episode drawn by its length from one of its steps, then of others from their first
    ones."""
    first = np.cumsum(memory.length) - memory.length
    share = memory.length / memory.length.sum()
    found = np.empty((streams, steps), np.int64)
    for stream in found:
        size = 0
        while size < steps:
            episode = rng.choice(len(first), p=share)
            begin = 0 if size else int(rng.integers(memory.length[episode]))
            taken = min(steps - size, memory.length[episode] - begin)
            stream[size : size + taken] = first[episode] + begin + np.arange(taken)
            size += taken
    return found


def plain_dreamer(memory: Memory, steps: Rows) -> Batch:
    """Return the streams, each joined of pieces of episodes."""
    found: dict[str, list[Array]] = {"image": [], "action": [], "reward": [], "is_terminal": [], "is_first": []}
    for stream in steps:
        cuts = np.flatnonzero(memory.elapsed[stream[1:]] == 0) + 1
        pieces = [slice(part[0], part[-1] + 1) for part in np.split(stream, cuts)]
        rows = [slice(memory.row[piece.start], memory.row[piece.stop - 1] + 1) for piece in pieces]
        found["image"].append(np.concatenate([memory.frames[row].copy() for row in rows]))
        for name, values in (("action", memory.action), ("reward", memory.reward), ("is_terminal", memory.terminated)):
            found[name].append(np.concatenate([values[piece].copy() for piece in pieces]))
        is_first = np.zeros(len(stream), bool)
        is_first[[0, *cuts]] = True
        found["is_first"].append(is_first)
    return {name: np.stack(values) for name, values in found.items()}


# ---- nicklashansen/tdmpc2: slices of horizon + 1 observations


def draw_horizons(memory: Memory, rng: np.random.Generator) -> Rows:
    """Return [256, 3] steps."""
    return draw_contexts(memory, rng, 256, 3)


def plain_tdmpc2(memory: Memory, steps: Rows) -> Batch:
    """Return 256 slices of 3 steps with 4 observations."""
    row = memory.row[steps[:, :1]] + np.arange(steps.shape[1] + 1)
    return {"obs": memory.frames[row], "action": memory.action[steps], "reward": memory.reward[steps]}


# ---- seohongpark/ogbench: goals of the same trajectory and of others, pictures in stacks of 3


def draw_goals(memory: Memory, rng: np.random.Generator) -> Rows:
    """Return [256, 3] a step, and the steps of its value goal and of its actor goal."""
    steps = rng.integers(len(memory), size=256)
    last = memory.last[steps]
    ahead = np.minimum(steps + rng.geometric(1 - GAMMA, 256), last)
    value = np.where(rng.random(256) < 0.5 / 0.8, ahead, rng.integers(len(memory), size=256))
    value = np.where(rng.random(256) < 0.2, steps, value)
    between = rng.random(256)
    actor = np.round(np.minimum(steps + 1, last) * between + last * (1 - between)).astype(np.int64)
    return np.stack([steps, value, actor], 1)


def plain_ogbench(memory: Memory, steps: Rows) -> Batch:
    """Return observations and goals; reward 0 where the value goal is reached, else -1."""
    step, value, actor = steps.T
    reached = step == value
    return {
        "observations": memory.stack(step, 3, zeros=False),
        "next_observations": memory.stack(step, 3, after=1, zeros=False),
        "actions": memory.action[step],
        "value_goals": memory.stack(value, 3, zeros=False),
        "actor_goals": memory.stack(actor, 3, zeros=False),
        "rewards": reached - 1.0,
        "masks": 1.0 - reached,
    }


# ---- tinkoff-ai/CORL: contexts padded on the right (Decision Transformer); the best tenth (%BC); transitions (IQL)


def draw_padded(memory: Memory, rng: np.random.Generator, count: int = 64, steps: int = 20) -> Rows:
    """Return [64, 20] steps from any step on, -1 where its trajectory has ended."""
    found = rng.integers(len(memory), size=count)[:, None] + np.arange(steps)
    return np.where(found <= memory.last[found[:, :1]], found, -1)


def plain_corl(memory: Memory, steps: Rows) -> Batch:
    """Return normalized states, actions and returns, zeros where there is no step."""
    found: dict[str, list[Array]] = {"states": [], "actions": [], "returns": [], "timesteps": [], "mask": []}
    flat = memory.frames[memory.row]
    mean, deviation = flat.mean(0), flat.std(0) + 1e-6
    for context in steps:
        real = context[context >= 0]
        some, padding = slice(real[0], real[-1] + 1), len(context) - len(real)
        states = (memory.frames[memory.row[some]] - mean) / deviation
        found["states"].append(np.pad(states, ((0, padding), (0, 0))))
        found["actions"].append(np.pad(memory.action[some], ((0, padding), (0, 0))))
        found["returns"].append(np.pad(memory.to_go[some], (0, padding)))
        found["timesteps"].append(memory.elapsed[real[0]] + np.arange(len(context)))
        found["mask"].append(np.pad(np.ones(len(real), bool), (0, padding)))
    return {name: np.stack(values) for name, values in found.items()}


# ---- by rlx: what docs/ports.md shows


def decision_transformer(data: Any) -> Any:
    """Contexts of 30 stacks, from any step on that has 29 others after it in its trajectory."""
    stacked = buffer.FrameStack(4, padding="zeros")
    return rlx.loader(
        data,
        batch_size=128 * 30,
        slice_len=30,
        replacement=True,
        transform=buffer.Compose(stacked, buffer.ReturnToGo(), buffer.Timestep(), buffer.ToFloat()),
        keys=["observation", "action", "return_to_go", "timestep", "index"],
    )


def batch_rl(data: Any) -> Any:
    """Transitions over 3 steps between stacks, with zeros before an episode's first frame."""
    transitions = buffer.Compose(buffer.FrameStack(4, padding="zeros"), buffer.NStep(3, gamma=0.99))
    return rlx.loader(data, batch_size=32, replacement=True, transform=transitions)


def sgi(data: Any) -> Any:
    """Windows of 32 stacks within trajectories."""
    return rlx.loader(
        data,
        batch_size=16 * 32,
        slice_len=32,
        replacement=True,
        transform=buffer.FrameStack(4, padding="zeros"),
        keys=["observation", "action", ("next", "reward"), ("next", "terminated"), "index"],
    )


def rl_unplugged(data: Any) -> Any:
    """Transitions between stacks with the next action, and whether there is one."""
    transitions = buffer.Compose(buffer.FrameStack(4, padding="zeros"), buffer.NextAction())
    return rlx.loader(data, batch_size=256, replacement=True, transform=transitions)


def dreamer(data: Any) -> Any:
    """Streams of 64 steps that run on into other episodes; `is_init` is where one begins."""
    return rlx.loader(
        data,
        batch_size=16 * 64,
        slice_len=64,
        stream=True,
        replacement=True,
        keys=["observation", "action", ("next", "reward"), ("next", "terminated"), "index"],
    )


def tdmpc2(data: Any) -> Any:
    """Slices of 3 steps; the last next observation is the fourth one."""
    return rlx.loader(data, batch_size=256 * 3, slice_len=3, replacement=True)


def ogbench(data: Any) -> Any:
    """Transitions between stacks with goals for value and actor, and the reward of the first."""

    def reward(batch: TensorDictBase) -> Any:
        return (batch["steps_to_goal"] == 0).float() - 1

    value = buffer.Goals(
        {"value_goal": "observation", "value_step": "index"},
        current=0.2,
        geometric=0.5,
        random=0.3,
        steps_key="steps_to_goal",
        reward_fn=reward,
    )
    actor = buffer.Goals({"actor_goal": "observation", "actor_step": "index"}, uniform=1.0)
    return rlx.loader(
        data, batch_size=256, replacement=True, transform=buffer.Compose(buffer.FrameStack(3), value, actor)
    )


def corl(data: Any) -> Any:
    """Contexts of 20 steps from any step on, padded on the right; `("collector", "mask")` marks the real ones."""
    return rlx.loader(
        data,
        batch_size=64 * 20,
        slice_len=20,
        pad="right",
        replacement=True,
        transform=buffer.Compose(buffer.ReturnToGo(), buffer.Timestep(), buffer.Normalize(data)),
        keys=["observation", "action", "return_to_go", "timestep", "index"],
    )


@dataclass(frozen=True)
class Port:
    """One project.

    Args:
        project: its name.
        data: which steps it is tried on: ``pictures`` or ``vectors``.
        draw: of a memory and a generator, [n] or [n, T] the steps of a batch, as the project draws them.
        plain: of a memory and steps, the batch in plain numpy.
        rlx: of a dataset, a loader.
        floor: least that the time of plain numpy is of rlx's.
    """

    project: str
    data: str
    draw: Callable[[Memory, np.random.Generator], Rows]
    plain: Callable[[Memory, Rows], Batch]
    rlx: Callable[[Any], Any]
    floor: float | None = None


PORTS = (
    Port("kzl/decision-transformer", "pictures", draw_contexts, plain_decision_transformer, decision_transformer, 1.0),
    Port("google-research/batch_rl", "pictures", draw_transitions, plain_batch_rl, batch_rl, 1.0),
    Port("mila-iqia/SGI", "pictures", draw_windows, plain_sgi, sgi, 0.6),
    Port("RL Unplugged, d4rl-atari", "pictures", draw_followed, plain_rl_unplugged, rl_unplugged),
    Port("NM512/dreamerv3-torch", "pictures", draw_streams, plain_dreamer, dreamer, 1.0),
    Port("nicklashansen/tdmpc2", "vectors", draw_horizons, plain_tdmpc2, tdmpc2),
    Port("seohongpark/ogbench", "pictures", draw_goals, plain_ogbench, ogbench, 1.0),
    Port("tinkoff-ai/CORL", "vectors", draw_padded, plain_corl, corl),
)


def endless(loader: Any) -> Iterator[Any]:
    """Yield the batches of one epoch after the other."""
    for again in repeat(loader):
        yield from again


def measure(port: Port, dataset: Any, memory: Memory, rounds: int) -> dict[str, Any]:
    """Return milliseconds a batch, and how many times as long plain numpy takes."""
    rng, loader = np.random.default_rng(0), port.rlx(dataset)
    loader._prefetch = 0  # a thread that reads ahead would work in the other's turn
    batches = endless(loader)
    ours, plain = timing.interleaved(
        2 + rounds, lambda _: next(batches), lambda _: port.plain(memory, port.draw(memory, rng)), repeats=3
    )
    found = {"rlx_ms": timing.median_ms(ours[2:]), "plain_ms": timing.median_ms(plain[2:]), "floor": port.floor}
    return {**found, **timing.times_faster(ours[2:], plain[2:])}


def main() -> None:
    """Time all ports, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=15)
    options = timing.parse(parser)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        run = converted_run(Path(folder), "Pong", options.steps, 1, with_peer=False)
        rlx.collect("Pendulum-v1", steps=options.steps, output=f"{folder}/pendulum", seed=0, envs=4)
        data = {"pictures": rlx.open(run.ours / "Pong/1"), "vectors": rlx.open(f"{folder}/pendulum")}
        memories = {name: Memory(dataset) for name, dataset in data.items()}
        _ = memories["pictures"].stacked
        rows = {port.project: measure(port, data[port.data], memories[port.data], options.rounds) for port in PORTS}
    timing.report({"tables": {"ports": rows}}, options)


if __name__ == "__main__":
    main()
