"""DQN on CartPole-v1: rlx collects, replays, with or without priorities, and resumes a killed run to the bit.

``python -m scripts.recipes.dqn`` prints the mean return of greedy episodes, 475 or more: of the network that was best
when it was evaluated during training. The hyper-parameters are those of RL Baselines3 Zoo for CartPole-v1. With
``--checkpoint DIRECTORY`` the same command continues a run that was killed; with ``--offline DATASET`` it learns from
a dataset first, then continues online in the same buffer.
"""

import argparse
import copy
import hashlib
import time
from collections.abc import Sequence
from typing import Any

import torch
from tensordict import NestedKey
from torch import Tensor, nn
from torch.nn import functional

import rlx
from rlx.buffer import LazyTensorStorage, PrioritizedSampler, RandomSampler, ReplayBuffer
from rlx.collector import Collector, SerialEnv

ENV, LONGEST = "CartPole-v1", 500
GAMMA, BATCH = 0.99, 64
FINAL_EPSILON, EXPLORATION = 0.04, 0.16
KEYS: list[NestedKey] = [
    "observation",
    "action",
    *(("next", key) for key in ("observation", "reward", "done", "terminated", "truncated")),
]


class Policy(nn.Module):
    """Epsilon-greedy actions of a Q-network.

    Args:
        network: gives the values of all actions.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.epsilon = 1.0

    def forward(self, observation: Tensor) -> Tensor:
        """Return actions [n] for observations [n, 4]."""
        values = self.network(observation)
        is_random = torch.rand(len(values)) < self.epsilon
        return torch.where(is_random, torch.randint(values.shape[1], (len(values),)), values.argmax(1))


class Best(nn.Module):
    """The network of the highest mean return so far, as part of a checkpoint.

    Args:
        network: the first one.
    """

    mean_return: Tensor

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = copy.deepcopy(network)
        self.register_buffer("mean_return", torch.tensor(-torch.inf))

    def compare(self, network: nn.Module, mean_return: float) -> None:
        """Keep the weights of a network, unless its mean return is lower."""
        if mean_return >= self.mean_return:
            self.network.load_state_dict(network.state_dict())
            self.mean_return.fill_(mean_return)


def main(arguments: Sequence[str] | None = None) -> float:
    """Train, evaluate, and return the mean return of the evaluation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--frames", type=int, default=50_000, help="Steps to collect.")
    parser.add_argument("--length", type=int, default=256, help="Steps between trainings.")
    parser.add_argument("--updates", type=int, default=128, help="Gradient steps per training.")
    parser.add_argument("--random-frames", type=int, default=1_000, help="Random steps at the start.")
    parser.add_argument("--capacity", type=int, default=100_000, help="Steps in the replay buffer.")
    parser.add_argument("--hidden", type=int, default=256, help="Units of each of two hidden layers.")
    parser.add_argument("--learning-rate", type=float, default=2.3e-3)
    parser.add_argument("--prioritized", action="store_true", help="Draw steps by their errors.")
    parser.add_argument("--offline", help="Dataset that the buffer starts with: learn from it, then go on online.")
    parser.add_argument("--offline-updates", type=int, default=5_000, help="Gradient steps before the first new step.")
    parser.add_argument("--episodes", type=int, default=20, help="Episodes of an evaluation.")
    parser.add_argument("--evaluate-every", type=int, default=2_560, help="Steps between evaluations.")
    parser.add_argument("--checkpoint", help="Directory from which a killed run continues.")
    parser.add_argument("--every", type=int, default=2_560, help="Steps between checkpoints.")
    parser.add_argument("--log", help="Dataset of the replay buffer at the end: rlx inspect --plot draws its returns.")
    parser.add_argument(
        "--save", help="Dataset of steps of the trained agent, with epsilon, for cql.py and decision_transformer.py."
    )
    parser.add_argument("--save-steps", type=int, default=20_000)
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    began = time.monotonic()

    network = nn.Sequential(
        nn.Linear(4, options.hidden), nn.ReLU(), nn.Linear(options.hidden, options.hidden), nn.ReLU(),
        nn.Linear(options.hidden, 2),
    )  # fmt: skip
    target, best = copy.deepcopy(network), Best(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=options.learning_rate)
    policy = Policy(network)
    sampler = (
        PrioritizedSampler(options.capacity, alpha=0.6, beta=0.4, seed=options.seed)
        if options.prioritized
        else RandomSampler(seed=options.seed)
    )
    buffer = ReplayBuffer(storage=LazyTensorStorage(options.capacity), sampler=sampler, batch_size=BATCH)
    collector = Collector(ENV, policy, frames_per_batch=options.length, total_frames=options.frames, seed=options.seed)
    modules = {"network": network, "target": target, "best": best}
    parts = {**modules, "optimizer": optimizer, "buffer": buffer, "collector": collector}
    checkpoint = rlx.Checkpoint(options.checkpoint, **parts) if options.checkpoint else None
    frames = checkpoint.restore() if checkpoint else 0
    saved = frames
    if options.offline and not frames:
        buffer.extend(rlx.open(options.offline)[:].select(*KEYS))
        for update in range(options.offline_updates):
            train(network, target, optimizer, buffer, conservative=1.0)
            if update % options.updates == 0:
                target.load_state_dict(network.state_dict())
        best.compare(network, evaluated(network, options.episodes, seed=options.seed + 1))

    while frames < options.frames:
        policy.epsilon = FINAL_EPSILON if options.offline else epsilon(frames, options.frames, options.random_frames)
        batch: Any = collector.next()  # [steps]
        buffer.extend(batch.select(*KEYS))
        frames += len(batch)
        if frames >= options.random_frames:
            for _ in range(options.updates):
                train(network, target, optimizer, buffer)
            target.load_state_dict(network.state_dict())
            if frames % options.evaluate_every < len(batch) or frames >= options.frames:
                best.compare(network, evaluated(network, options.episodes, seed=options.seed + 1))
        if checkpoint and (frames - saved >= options.every or frames >= options.frames):
            checkpoint.save(frames)
            saved = frames

    collector.shutdown()
    if checkpoint:
        checkpoint.close()
    if options.log:
        buffer.save_dataset(options.log, overwrite=True)
    policy = Policy(best.network)
    if options.save:
        policy.epsilon = FINAL_EPSILON
        rlx.collect(ENV, policy=policy, steps=options.save_steps, output=options.save, overwrite=True)
    found = evaluated(best.network, options.episodes, seed=options.seed + 2)  # episodes that did not choose it
    seconds = time.monotonic() - began
    print(f"seed {options.seed}: mean return {found:.1f} of {options.episodes} episodes, {seconds:.0f} s")
    print(f"weights {digest(network)}")
    return found


def epsilon(frames: int, total: int, random_frames: int) -> float:
    """Probability of random actions: 1 at first, then from 1 down to the final one."""
    if frames < random_frames:
        return 1.0
    return max(FINAL_EPSILON, 1.0 - (1.0 - FINAL_EPSILON) * frames / (EXPLORATION * total))


def train(
    network: nn.Module,
    target: nn.Module,
    optimizer: torch.optim.Optimizer,
    buffer: ReplayBuffer,
    conservative: float = 0.0,
) -> None:
    """Take one gradient step on a batch; offline, values of actions that it does not have are pushed down (CQL)."""
    batch, info = buffer.sample(return_info=True)
    after = batch["next"]
    with torch.no_grad():
        best = target(after["observation"]).max(1).values
        goal = after["reward"][:, 0] + GAMMA * best * ~after["terminated"][:, 0]
    values = network(batch["observation"])
    value = values.gather(1, batch["action"][:, None])[:, 0]
    losses = functional.smooth_l1_loss(value, goal, reduction="none")
    if conservative:
        losses = losses + conservative * (values.logsumexp(1) - value)
    weights = batch.get("priority_weight", None)
    optimizer.zero_grad()
    (losses if weights is None else losses * weights).mean().backward()
    nn.utils.clip_grad_norm_(network.parameters(), 10.0)
    optimizer.step()
    if weights is not None:
        buffer.update_priority(info["index"], (goal - value).abs().detach())


def evaluated(network: nn.Module, episodes: int, seed: int) -> float:
    """Mean return of the first episode in each of as many environments, with greedy actions."""
    policy = Policy(network)
    policy.epsilon = 0.0
    frames = episodes * LONGEST
    with Collector(
        SerialEnv(episodes, ENV), policy, frames_per_batch=frames, total_frames=frames, seed=seed
    ) as collector:
        batch: Any = collector.next()  # [episodes, 500]
    done = batch["next", "done"].int()
    is_first = done.cumsum(1) - done == 0
    return float((batch["next", "reward"] * is_first).sum() / episodes)


def digest(network: nn.Module) -> str:
    """Return a hash of all weights: equal for equal bits."""
    raw = b"".join(tensor.numpy().tobytes() for tensor in network.state_dict().values())
    return hashlib.blake2b(raw, digest_size=8).hexdigest()


if __name__ == "__main__":
    main()
