"""Offline learners of an Atari dataset: behaviour cloning, DQN, or CQL, on stacks of 4 frames.

``rlx download Pong/5`` gets a run of the DQN Replay Dataset; ``rlx collect ALE/Pong-v5 --policy
scripts/recipes/atari.py:follow_the_ball --steps 20000 --output pong`` makes a small one.
``python -m scripts.recipes.atari pong --loss cloning`` learns from it, collects greedy episodes into another dataset,
and prints their mean return beside that of the data. ``--prioritized`` draws steps by their errors.
"""

import argparse
import copy
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

import rlx
from rlx.buffer import Compose, FrameStack, NStep, PrioritizedSampler, ReplayBuffer
from rlx.collector import GymEnv
from scripts.recipes.dqn_log import Policy, nature_network

GAMMA, STACK, STEPS = 0.99, 4, 3
ALPHA = {"dqn": 0.0, "cql": 1.0}
NOOP, UP, DOWN = 0, 2, 3


def follow_the_ball(frames: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return actions [n] for frames [n, 84, 84] of Pong: move towards the height of the ball."""
    actions = np.full(len(frames), NOOP)
    for lane, frame in enumerate(frames):
        court = frame[14:77].astype(int)
        is_drawn = abs(court - np.median(court)) > 15
        ball, paddle = is_drawn[:, 12:72].nonzero()[0], is_drawn[:, 73:76].nonzero()[0]
        if not len(paddle):
            actions[lane] = DOWN
        elif len(ball) and abs(ball.mean() - paddle.mean()) > 4:
            actions[lane] = DOWN if ball.mean() > paddle.mean() else UP
    return actions


class Standardized(nn.Module):
    """Frames less their mean, over their deviation, pixel by pixel: without it, a network does not learn in thousands
    of updates where Pong's ball is."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, dataset: Any, seed: int) -> None:
        super().__init__()
        rows = np.random.default_rng(seed).choice(len(dataset), min(len(dataset), 1_000), replace=False)
        frames = dataset[np.sort(rows)]["observation"].float()
        self.register_buffer("mean", frames.mean(0))
        self.register_buffer("deviation", frames.std(0).clamp_min(8))

    def forward(self, frames: Tensor) -> Tensor:
        """Return the frames [n, 4, 84, 84] as numbers around zero."""
        return (frames.float() - self.mean) / self.deviation


def main(arguments: Sequence[str] | None = None) -> float:
    """Train, evaluate, and return the mean return of the evaluation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="Directory or id of an Atari dataset.")
    parser.add_argument("--game", default="ALE/Pong-v5", help="Environment of the evaluation.")
    parser.add_argument("--loss", choices=("cloning", *ALPHA), default="cloning")
    parser.add_argument("--prioritized", action="store_true", help="Draw steps by their errors (dqn, cql).")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--updates", type=int, default=5_000, help="Gradient steps.")
    parser.add_argument("--target-every", type=int, default=500, help="Gradient steps between target networks.")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--episodes", type=int, default=5, help="Episodes of the evaluation.")
    parser.add_argument("--steps", type=int, help="Steps of the evaluation, instead of episodes.")
    parser.add_argument("--output", type=Path, default=Path("evaluation"), help="Dataset of the evaluation.")
    options = parser.parse_args(arguments)
    if options.prioritized and options.loss == "cloning":
        parser.error("--prioritized: --loss cloning has no errors of values to draw by; give --loss dqn or cql")
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    began = time.monotonic()

    actions = int(GymEnv(options.game, frameskip=1)().action_space.n)  # type: ignore[attr-defined]
    dataset = rlx.open(options.dataset)
    network = nn.Sequential(Standardized(dataset, options.seed), *nature_network(actions)[1:])  # type: ignore[index]
    target = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=options.learning_rate)
    transform = Compose(FrameStack(STACK), NStep(STEPS, gamma=GAMMA))
    buffer = None
    if options.prioritized:
        sampler = PrioritizedSampler(len(dataset), alpha=0.6, beta=0.4, seed=options.seed)
        buffer = ReplayBuffer(storage=dataset, sampler=sampler, transform=transform, batch_size=32)
    batches = drawn(buffer) if buffer else epochs(rlx.loader(dataset, 32, transform=transform, seed=options.seed))

    for update in range(options.updates):
        batch, rows = next(batches)
        values = network(batch["observation"])
        if options.loss == "cloning":
            losses = functional.cross_entropy(values, batch["action"], reduction="none")
        else:
            error, gap = td_error(values, target, batch)
            losses = functional.huber_loss(error, torch.zeros_like(error), reduction="none") + ALPHA[options.loss] * gap
            if buffer:
                losses = losses * batch["priority_weight"]
                buffer.update_priority(rows, error.detach().abs())
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
        if update % options.target_every == 0:
            target.load_state_dict(network.state_dict())

    policy = Policy(network, actions)
    policy.epsilon = 0.0
    asked = {"steps": options.steps} if options.steps else {"episodes": options.episodes}
    rlx.collect(
        options.game, envs=1, policy=policy, seed=options.seed + 1, output=options.output, overwrite=True, **asked
    )
    found, recorded = (mean_return(rlx.open(path)) for path in (options.output, options.dataset))
    seconds = time.monotonic() - began
    print(f"{options.loss}, seed {options.seed}: mean return {found:.1f}, dataset {recorded:.1f}, {seconds:.0f} s")
    return found


def mean_return(dataset: Any) -> float:
    """Mean return of the trajectories."""
    return float(np.mean([episode["next", "reward"].sum() for episode in dataset]))


def epochs(loader: Any) -> Iterator[tuple[Any, Any]]:
    """Yield batches without end."""
    while True:
        for batch in loader:
            yield batch, None


def drawn(buffer: ReplayBuffer) -> Iterator[tuple[Any, Any]]:
    """Yield batches drawn by priority, and their rows."""
    while True:
        batch, info = buffer.sample(return_info=True)
        yield batch, info["index"]


def td_error(values: Tensor, target: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """Return errors of n-step returns [n], and what the values of all actions exceed that of the dataset's by [n]."""
    after = batch["next"]
    with torch.no_grad():
        best = target(after["observation"]).max(1).values
        goal = after["reward"][:, 0] + batch["gamma"][:, 0] * best * ~after["terminated"][:, 0]
    value = values.gather(1, batch["action"][:, None])[:, 0]
    return value - goal, values.logsumexp(1) - value


if __name__ == "__main__":
    main()
