"""Offline learners of a dataset of CartPole-v1: conservative Q-learning, or behaviour cloning.

``python -m scripts.recipes.dqn --save demos`` makes a dataset with an agent that it trains;
``python -m scripts.recipes.cql demos`` learns from it alone (Kumar et al., 2020), and prints the mean return of greedy
episodes beside that of the dataset. ``--clone`` imitates the actions instead.
"""

import argparse
import copy
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import rlx
from rlx.collector import Collector, SerialEnv

ENV, LONGEST = "CartPole-v1", 500
GAMMA, ALPHA, TAU = 0.99, 1.0, 0.005


def main(arguments: Sequence[str] | None = None) -> float:
    """Train, evaluate, and return the mean return of the evaluation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="Directory or id of a dataset of CartPole-v1.")
    parser.add_argument("--clone", action="store_true", help="Behaviour cloning.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--updates", type=int, default=5_000, help="Gradient steps.")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=128, help="Units of each of two hidden layers.")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--episodes", type=int, default=20, help="Episodes of the evaluation.")
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    began = time.monotonic()

    hidden = options.hidden
    network = nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 2))
    target = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=options.learning_rate)
    dataset = rlx.open(options.dataset)
    loader = rlx.loader(dataset, options.batch_size, seed=options.seed)

    updates = 0
    while updates < options.updates:
        for batch in loader:  # an epoch
            loss = cloning_loss(network, batch) if options.clone else cql_loss(network, target, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for slow, fast in zip(target.parameters(), network.parameters(), strict=True):
                    slow.lerp_(fast, TAU)
            updates += 1
            if updates == options.updates:
                break

    found = evaluated(network, options.episodes, options.seed + 1)
    returns = sum(float(episode["next", "reward"].sum()) for episode in dataset) / len(dataset.trajectories.length)
    seconds = time.monotonic() - began
    name = "behaviour cloning" if options.clone else "CQL"
    print(
        f"{name}, seed {options.seed}: mean return {found:.1f} of {options.episodes} episodes, "
        f"dataset {returns:.1f}, {seconds:.0f} s"
    )
    return found


def cloning_loss(network: nn.Module, batch: Any) -> Tensor:
    """Cross-entropy of the dataset's actions."""
    return functional.cross_entropy(network(batch["observation"]), batch["action"])


def cql_loss(network: nn.Module, target: nn.Module, batch: Any) -> Tensor:
    """Error of double Q-learning, and what the values of other actions exceed those of the dataset's."""
    after = batch["next"]
    with torch.no_grad():
        best = network(after["observation"]).argmax(1, keepdim=True)
        following = target(after["observation"]).gather(1, best)[:, 0]
        goal = after["reward"][:, 0] + GAMMA * following * ~after["terminated"][:, 0]
    values = network(batch["observation"])
    value = values.gather(1, batch["action"][:, None])[:, 0]
    conservative: Tensor = (values.logsumexp(1) - value).mean()
    return functional.smooth_l1_loss(value, goal) + ALPHA * conservative


def evaluated(network: nn.Module, episodes: int, seed: int) -> float:
    """Mean return of the first episode in each of as many environments, with greedy actions."""

    def act(observation: Any) -> Any:
        with torch.no_grad():
            return network(torch.from_numpy(observation)).argmax(1).numpy()

    frames = episodes * LONGEST
    with Collector(SerialEnv(episodes, ENV), act, frames_per_batch=frames, total_frames=frames, seed=seed) as collector:
        batch: Any = collector.next()  # [episodes, 500]
    done = batch["next", "done"].int()
    is_first = done.cumsum(1) - done == 0
    return float((batch["next", "reward"] * is_first).sum() / episodes)


if __name__ == "__main__":
    main()
