"""Microseconds of CPU time to write and sample few steps at a time, as an online learner does, beside other buffers.

python -m scripts.bench.online [--quick] [--rounds 9] [--only floats ...] [--json]

Steps have an observation of four floats (``floats``), of a Dict of ten leaves (``dict``) or of a Pong frame of 84x84
bytes (``frames``), now and next, an action, a reward and three flags. Buffers are full, in the memory of one process,
and work in turns in one torch thread; the figure is the least of the rounds.

``rlx`` and ``TorchRL`` (``LazyTensorStorage``) take TensorDicts; ``rlx arrays``, ``rlx tensors`` and ``cpprb`` take
dicts of arrays, or of tensors, whose rewards and flags are scalars. ``SB3`` is Stable-Baselines3's ``ReplayBuffer`` or
``DictReplayBuffer``, which writes one step a call. ``loop`` is a step of CartPole, with the TensorDict or dict made of
what the environment returns, ``add`` and ``sample(32)``: a learner without learning makes 1,000,000 steps a second over
its figure. ``prioritized`` samples and updates 256 priorities of that many steps of one byte. ``compressed`` writes
frames to rlx's ``CompressedStorage``, beside its ``LazyTensorStorage``.

A dash is a buffer that is not installed or refuses the steps; stderr says why it refused.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from rlx.buffer import CompressedStorage, LazyTensorStorage, ReplayBuffer
from scripts.bench import peer, timing
from scripts.bench import prioritized as by_priority
from scripts.bench.play import play

Tree = dict[str, Any]
Call = Callable[[int], object]
Row = dict[str, float | None]

STEPS, EPISODE, BLOCK, BATCH = 3200, 200, 200, 32
LOOP_CAPACITY = 50_000
DRAWN = 256
PRIORITIZED = {"rlx": "rlx", "rlx arrays": "rlx_arrays", "TorchRL": "torchrl", "cpprb": "cpprb"}

# The two times that each ratio is of; above 1, rlx is faster.
RATIOS = {
    "TorchRL / rlx": ("TorchRL", "rlx"),
    "TorchRL / arrays": ("TorchRL", "rlx arrays"),
    "TorchRL / tensors": ("TorchRL", "rlx tensors"),
    "SB3 / arrays": ("SB3", "rlx arrays"),
    "cpprb / arrays": ("cpprb", "rlx arrays"),
    "cpprb / rlx": ("cpprb", "rlx"),
    "rlx / compressed": ("rlx", "compressed"),
}
# The table that a ratio is asked of, its floor and its goal.
FLOORS = {
    "TorchRL / rlx": ("online", 1.0, 2.0),
    "TorchRL / arrays": ("online", 2.5, None),
    "SB3 / arrays": ("online", None, 1.0),
    "cpprb / arrays": ("online", None, 0.5),
    "cpprb / rlx": ("prioritized", 1.0, 1.5),
    "rlx / compressed": ("compressed", 0.6, 0.8),
}


# ---- the steps


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """A function's results for every leaf, nested as the leaves are."""
    return {key: mapped(function, each) for key, each in tree.items()} if isinstance(tree, dict) else function(tree)


def trajectories(observations: Any) -> Tree:
    """Steps [n], in whole episodes, from n + 1 observations in a row."""
    count = len(next(iter(observations.values())) if isinstance(observations, dict) else observations) - 1
    done = np.arange(1, count + 1) % EPISODE == 0

    def after(leaf: Any) -> Any:
        following = leaf[1:].copy()
        following[done] = leaf[0]  # the last observation of an episode is not the first of the next one
        return following

    return {
        "observation": mapped(lambda leaf: leaf[:-1], observations),
        "action": np.arange(count) % 2,
        "next": {
            "observation": mapped(after, observations),
            "reward": np.ones(count, np.float32),
            "terminated": done,
            "truncated": np.zeros(count, bool),
            "done": done.copy(),
        },
    }


def floats(count: int) -> NDArray[np.float32]:
    """Four floats, as of CartPole."""
    return np.random.default_rng(0).random((count, 4), np.float32)


def leaves(count: int) -> Tree:
    """Ten leaves of one to five floats."""
    rng = np.random.default_rng(0)
    return {f"sensor_{leaf}": rng.random((count, leaf % 5 + 1), np.float32) for leaf in range(10)}


def frames(count: int) -> NDArray[np.uint8]:
    """Frames of Pong."""
    return play("Pong", count + 8).frames[:count]


OBSERVATIONS: dict[str, Callable[[int], Any]] = {"floats": floats, "dict": leaves, "frames": frames}


# ---- the forms that buffers take, of several steps or of one


def tensors(steps: Any) -> Any:
    """Tensors instead of arrays."""
    return mapped(torch.as_tensor, steps)


def tensordict(steps: Tree) -> TensorDict:
    """A TensorDict, with rewards and flags of shape [..., 1]."""
    shape, after = np.shape(steps["action"]), tensors(steps["next"])
    observation = after.pop("observation")
    outcome = {key: leaf.unsqueeze(-1) for key, leaf in after.items()}
    return TensorDict(
        {
            "observation": tensors(steps["observation"]),
            "action": torch.as_tensor(steps["action"]),
            "next": TensorDict({"observation": observation, **outcome}, shape),
        },
        shape,
    )


def columns(steps: Tree, prefix: str = "") -> Tree:
    """The leaves by one name each, as cpprb takes them."""
    flat = {}
    for key, leaf in steps.items():
        flat.update(columns(leaf, f"{prefix}{key}_") if isinstance(leaf, dict) else {f"{prefix}{key}": leaf})
    return flat


def transitions(steps: Tree) -> list[tuple[Any, ...]]:
    """The arguments of Stable-Baselines3's ``add``, of every step."""
    count = np.size(steps["action"])
    rows = mapped(lambda leaf: np.reshape(leaf, (count, 1, *np.shape(leaf)[np.ndim(steps["action"]) :])), steps)

    def row(number: int) -> tuple[Any, ...]:
        step = mapped(lambda leaf: leaf[number], rows)
        after = step["next"]
        return (
            step["observation"],
            after["observation"],
            step["action"],
            after["reward"],
            after["done"],
            [{"TimeLimit.truncated": bool(after["truncated"][0])}],
        )

    return [row(number) for number in range(count)]


# ---- the buffers


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer, and the form of the steps it takes."""

    form: Callable[[Tree], Any]
    add: Callable[[Any], object]
    extend: Callable[[Any], object]
    sample: Callable[[int], object]


def rlx_of(form: Callable[[Tree], Any], storage: Callable[[int], Any] = LazyTensorStorage) -> Callable[[Tree], Buffer]:
    """Makes rlx's buffer for as many steps as it is shown."""

    def make(steps: Tree) -> Buffer:
        buffer = ReplayBuffer(storage=storage(len(steps["action"])))
        return Buffer(form, buffer.add, buffer.extend, buffer.sample)

    return make


def torchrl(steps: Tree) -> Buffer:
    """TorchRL's."""
    data = peer.data()
    buffer = data.ReplayBuffer(storage=data.LazyTensorStorage(len(steps["action"])), batch_size=BATCH)
    return Buffer(tensordict, buffer.add, buffer.extend, buffer.sample)


def cpprb(steps: Tree) -> Buffer:
    """cpprb's."""
    from cpprb import ReplayBuffer as TheirBuffer  # noqa: PLC0415

    fields = {key: {"shape": leaf.shape[1:] or 1, "dtype": leaf.dtype} for key, leaf in columns(steps).items()}
    buffer = TheirBuffer(len(steps["action"]), fields)

    def write(given: Tree) -> None:
        buffer.add(**given)

    return Buffer(columns, write, write, buffer.sample)


def stable_baselines3(steps: Tree) -> Buffer:
    """Stable-Baselines3's."""
    from gymnasium.spaces import Box, Dict, Discrete  # noqa: PLC0415
    from stable_baselines3.common import buffers  # noqa: PLC0415

    def box(leaf: Any) -> Box:
        return Box(0, 255 if leaf.dtype == np.uint8 else np.inf, leaf.shape[1:], leaf.dtype)

    spaces = mapped(box, steps["observation"])
    kind, space = (
        (buffers.DictReplayBuffer, Dict(spaces)) if isinstance(spaces, dict) else (buffers.ReplayBuffer, spaces)
    )
    buffer = kind(len(steps["action"]), space, Discrete(2), device="cpu")

    def extend(given: list[tuple[Any, ...]]) -> None:
        for step in given:
            buffer.add(*step)

    return Buffer(transitions, extend, extend, buffer.sample)


BUFFERS: dict[str, Callable[[Tree], Buffer]] = {
    "rlx": rlx_of(tensordict),
    "rlx arrays": rlx_of(dict),
    "rlx tensors": rlx_of(tensors),
    "TorchRL": torchrl,
    "SB3": stable_baselines3,
    "cpprb": cpprb,
}


# ---- the work: each fills a buffer, and returns what is measured


def adds(buffer: Buffer, steps: Tree) -> Call:
    """One step a call, the same ones again."""
    parts = [buffer.form(mapped(itemgetter(number), steps)) for number in range(len(steps["action"]))]
    for part in parts:
        buffer.add(part)
    return lambda number: buffer.add(parts[number % len(parts)])


def extends(buffer: Buffer, steps: Tree, size: int) -> Call:
    """So many steps a call, the same ones again."""
    fill(buffer, steps)
    parts = blocks(buffer, steps, size)
    return lambda number: buffer.extend(parts[number % len(parts)])


def samples(buffer: Buffer, steps: Tree, size: int) -> Call:
    """So many random steps a call."""
    fill(buffer, steps)
    return lambda _: buffer.sample(size)


def fill(buffer: Buffer, steps: Tree) -> None:
    """Writes the steps three times: rings have wrapped, and storages have learned what they learn at first."""
    for part in 3 * blocks(buffer, steps, BLOCK):
        buffer.extend(part)


def blocks(buffer: Buffer, steps: Tree, size: int) -> list[Any]:
    """The steps in parts of this size, in the buffer's form."""
    starts = range(0, len(steps["action"]) - size + 1, size)
    return [buffer.form(mapped(itemgetter(slice(start, start + size)), steps)) for start in starts]


def loop(buffer: Buffer, steps: Tree) -> Call:  # noqa: ARG001  (it makes its own)
    """A step of a DQN learner on CartPole a call, less the learning."""
    env = gymnasium.make("CartPole-v1")
    env.action_space.seed(0)
    observation = env.reset(seed=0)[0]

    def act() -> None:
        nonlocal observation
        action = env.action_space.sample()
        following, reward, terminated, truncated, _ = env.step(action)
        outcome = {
            "observation": following,
            "reward": np.float32(reward),
            "terminated": np.bool_(terminated),
            "truncated": np.bool_(truncated),
            "done": np.bool_(terminated or truncated),
        }
        buffer.add(buffer.form({"observation": observation, "action": action, "next": outcome}))
        observation = env.reset()[0] if terminated or truncated else following

    def learn(_: int) -> None:
        act()
        buffer.sample(BATCH)

    for _ in range(BATCH):
        act()
    return learn


# The work, and how often a turn does it.
WORK: dict[str, tuple[Callable[[Buffer, Tree], Call], int]] = {
    "add": (adds, 100),
    "extend 1": (partial(extends, size=1), 100),
    "extend 32": (partial(extends, size=32), 50),
    "extend 256": (partial(extends, size=256), 10),
    "sample 32": (partial(samples, size=32), 100),
    "sample 256": (partial(samples, size=256), 50),
}


# ---- the measurement


def measured(work: str, makers: Mapping[str, Callable[[], Call]], rounds: int, repeats: int) -> Row:
    """Microseconds a call of every buffer that is installed and takes the steps, and their ratios."""
    calls: dict[str, Call] = {}
    for name, make in makers.items():
        try:
            call = make()
            call(0)
        except ModuleNotFoundError:
            continue
        except Exception as error:  # what a buffer says of a form that it does not take
            print(f"{work}, {name}: {type(error).__name__}: {error}", file=sys.stderr)
        else:
            calls[name] = call
    taken = timing.interleaved(rounds, *calls.values(), repeats=repeats, clock=time.process_time)
    found = {name: min(seconds) * 1e6 for name, seconds in zip(calls, taken, strict=True)}
    row: Row = {name: round(found[name], 1) if name in found else None for name in (*BUFFERS, "compressed")}
    for title, (theirs, ours) in RATIOS.items():
        row[title] = round(found[theirs] / found[ours], 2) if theirs in found and ours in found else None
    return row


def prepared(
    makers: Mapping[str, Callable[[Tree], Buffer]], work: Callable[[Buffer, Tree], Call], steps: Tree
) -> dict[str, Callable[[], Call]]:
    """What makes each buffer and prepares its work."""
    return {name: lambda make=make: work(make(steps), steps) for name, make in makers.items()}  # type: ignore[misc]


def online(kind: str, rounds: int, share: int) -> Iterator[tuple[str, Row]]:
    """The rows of steps of one kind."""
    steps = trajectories(OBSERVATIONS[kind](STEPS // min(share, 8) + 1))
    for work, (prepare, repeats) in WORK.items():
        name = f"{kind} {work}"
        yield name, measured(name, prepared(BUFFERS, prepare, steps), rounds, -(-repeats // share))


def cartpole(kind: str, rounds: int, share: int) -> Iterator[tuple[str, Row]]:
    """The row of the learner."""
    steps = trajectories(floats(LOOP_CAPACITY + 1))
    yield kind, measured(kind, prepared(BUFFERS, loop, steps), rounds, 300 // share)


def prioritized(kind: str, rounds: int, share: int) -> Iterator[tuple[str, Row]]:
    """A row for each capacity, or for the smallest."""
    for capacity in by_priority.CAPACITIES[: 1 if share > 1 else None]:
        name = f"{kind} {capacity:,}"
        makers = {title: partial(drawn_and_updated, subject, capacity) for title, subject in PRIORITIZED.items()}
        yield name, measured(name, makers, rounds, 100 // share)


def drawn_and_updated(subject: str, capacity: int) -> Call:
    """What draws a batch by priority, and updates its priorities."""
    draw, update = by_priority.SUBJECTS[subject](capacity, DRAWN)
    return lambda _: update(draw())


def compressed(kind: str, rounds: int, share: int) -> Iterator[tuple[str, Row]]:
    """The row of writes."""
    steps = trajectories(frames(STEPS // min(share, 8) + 1))
    makers = {"rlx": rlx_of(tensordict), "compressed": rlx_of(tensordict, CompressedStorage)}
    work, repeats = WORK["extend 256"]
    yield f"{kind} extend 256", measured(kind, prepared(makers, work, steps), rounds, -(-repeats // share))


# The table, and what gives the rows.
KINDS: dict[str, tuple[str, Callable[[str, int, int], Iterator[tuple[str, Row]]]]] = {
    **dict.fromkeys(OBSERVATIONS, ("online", online)),
    "loop": ("online", cartpole),
    "prioritized": ("prioritized", prioritized),
    "compressed": ("compressed", compressed),
}


def floors(tables: Mapping[str, Mapping[str, Row]]) -> dict[str, dict[str, Any]]:
    """The lowest ratio that each floor and goal is about, and the row that has it."""
    result = {}
    for title, (table, floor, goal) in FLOORS.items():
        there = {name: row[title] for name, row in tables.get(table, {}).items() if row[title] is not None}
        name = min(there, key=lambda name: there[name] or 0, default=None)
        result[title] = {"floor": floor, "goal": goal, "lowest": there[name] if name else None, "in": name}
    return result


def main() -> None:
    """Prints the tables, and the lowest ratio of each floor."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small buffers and few calls: to see that it works")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), help="some of the work")
    options = timing.parse(parser)
    torch.set_num_threads(1)
    rounds, share = (1, 50) if options.quick else (options.rounds, 1)
    tables: dict[str, dict[str, Any]] = {}
    for kind in options.only:
        table, rows = KINDS[kind]
        tables.setdefault(table, {}).update(rows(kind, rounds, share))
    timing.report({"tables": {**tables, "floors": floors(tables)}}, options)


if __name__ == "__main__":
    main()
