"""SAC on Pendulum-v1: rlx collects and replays, and resumes a killed run to the bit.

``python -m scripts.recipes.sac`` prints the mean return of greedy episodes, -200 or more. Twin critics and an entropy
coefficient that is tuned, as in Haarnoja et al. (2018); the learning rate is that of RL Baselines3 Zoo.
"""

import argparse
import copy
import hashlib
import time
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import rlx
from rlx.buffer import LazyTensorStorage, RandomSampler, ReplayBuffer
from rlx.collector import Collector, SerialEnv

ENV, LONGEST = "Pendulum-v1", 200
OBSERVATION, ACTION, LARGEST = 3, 1, 2.0  # numbers in an observation and an action, and the largest action
GAMMA, TAU, BATCH = 0.99, 0.005, 256


class Actor(nn.Module):
    """Gaussian actions, squashed into the range of the environment.

    Args:
        hidden: units of each of two layers.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.network = network(OBSERVATION, hidden, 2 * ACTION)
        self.is_greedy = False

    def forward(self, observation: Tensor) -> Tensor:
        """Return actions [n, 1] for observations [n, 3]."""
        return self.sample(observation)[0]

    def sample(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions [n, 1], and their log-probabilities [n]."""
        mean, log_std = self.network(observation).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        raw = mean if self.is_greedy else normal.rsample()
        # Of the derivative of tanh, in the form that does not round to 0.
        correction = 2 * (torch.log(torch.tensor(2.0)) - raw - functional.softplus(-2 * raw))
        log_prob = (normal.log_prob(raw) - correction - torch.log(torch.tensor(LARGEST))).sum(-1)
        return LARGEST * torch.tanh(raw), log_prob


class Critic(nn.Module):
    """Values of actions, by two networks.

    Args:
        hidden: units of each of two layers.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.networks = nn.ModuleList(network(OBSERVATION + ACTION, hidden, 1) for _ in range(2))

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        """Return values [2, n]."""
        joined = torch.cat((observation, action), -1)
        return torch.stack([one(joined)[:, 0] for one in self.networks])


def main(arguments: Sequence[str] | None = None) -> float:
    """Train, evaluate, and return the mean return of the evaluation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--frames", type=int, default=10_000, help="Steps to collect.")
    parser.add_argument("--length", type=int, default=4, help="Steps, and gradient steps, at a time.")
    parser.add_argument("--random-frames", type=int, default=400, help="Random steps at the start.")
    parser.add_argument("--capacity", type=int, default=100_000, help="Steps in the replay buffer.")
    parser.add_argument("--hidden", type=int, default=256, help="Units of each of two hidden layers.")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--episodes", type=int, default=20, help="Episodes of the evaluation.")
    parser.add_argument("--checkpoint", help="Directory from which a killed run continues.")
    parser.add_argument("--every", type=int, default=1_000, help="Steps between checkpoints.")
    parser.add_argument("--log", help="Dataset of the replay buffer at the end: rlx inspect --plot draws its returns.")
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    began = time.monotonic()

    actor, critic = Actor(options.hidden), Critic(options.hidden)
    target = copy.deepcopy(critic)
    log_alpha = nn.ParameterList([nn.Parameter(torch.zeros(()))])
    optimizer = torch.optim.Adam(
        chain(actor.parameters(), critic.parameters(), log_alpha.parameters()), lr=options.learning_rate
    )
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(options.capacity), sampler=RandomSampler(seed=options.seed), batch_size=BATCH
    )
    collector = Collector(
        ENV,
        actor,
        frames_per_batch=options.length,
        total_frames=options.frames,
        init_random_frames=options.random_frames,
        seed=options.seed,
    )
    parts = {
        "actor": actor, "critic": critic, "target": target, "log_alpha": log_alpha,
        "optimizer": optimizer, "buffer": buffer, "collector": collector,
    }  # fmt: skip
    checkpoint = rlx.Checkpoint(options.checkpoint, **parts) if options.checkpoint else None
    frames = checkpoint.restore() if checkpoint else 0

    while frames < options.frames:
        batch: Any = collector.next()  # [steps]
        buffer.extend(batch)
        frames += len(batch)
        if frames > options.random_frames:
            for _ in range(options.length):
                train(actor, critic, target, log_alpha[0], optimizer, buffer.sample())
        if checkpoint and (frames % options.every == 0 or frames >= options.frames):
            checkpoint.save(frames)

    collector.shutdown()
    if checkpoint:
        checkpoint.close()
    if options.log:
        buffer.save_dataset(options.log, overwrite=True)
    found = evaluated(actor, options.episodes, options.seed + 1)
    seconds = time.monotonic() - began
    raw = b"".join(tensor.numpy().tobytes() for tensor in actor.state_dict().values())
    print(f"seed {options.seed}: mean return {found:.1f} of {options.episodes} episodes, {seconds:.0f} s")
    print(f"weights {hashlib.blake2b(raw, digest_size=8).hexdigest()}")
    return found


def train(
    actor: Actor, critic: Critic, target: Critic, log_alpha: Tensor, optimizer: torch.optim.Optimizer, batch: Any
) -> None:
    """Take one gradient step of actor, critics and entropy coefficient on a batch."""
    observation, after, alpha = batch["observation"], batch["next"], log_alpha.detach().exp()
    with torch.no_grad():
        action, log_prob = actor.sample(after["observation"])
        value = target(after["observation"], action).min(0).values - alpha * log_prob
        goal = after["reward"][:, 0] + GAMMA * value * ~after["terminated"][:, 0]
    critic_loss = (critic(observation, batch["action"]) - goal).square().mean(1).sum()

    critic.requires_grad_(False)
    action, log_prob = actor.sample(observation)
    actor_loss = (alpha * log_prob - critic(observation, action).min(0).values).mean()
    critic.requires_grad_(True)
    alpha_loss = -log_alpha * (log_prob.detach() - ACTION).mean()

    optimizer.zero_grad()
    (critic_loss + actor_loss + alpha_loss).backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), critic.parameters(), strict=True):
            slow.lerp_(fast, TAU)


def network(inputs: int, hidden: int, outputs: int) -> nn.Module:
    """Two hidden layers."""
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
    )


def evaluated(actor: Actor, episodes: int, seed: int) -> float:
    """Mean return of an episode in each of as many environments, with the most likely actions."""
    actor.is_greedy = True
    frames = episodes * LONGEST
    with Collector(
        SerialEnv(episodes, ENV), actor, frames_per_batch=frames, total_frames=frames, seed=seed
    ) as collector:
        batch: Any = collector.next()  # [episodes, 200]
    return float(batch["next", "reward"].sum() / episodes)


if __name__ == "__main__":
    main()
