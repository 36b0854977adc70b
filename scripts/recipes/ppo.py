"""PPO on CartPole-v1: rlx collects, with the log-probabilities of the policy; TorchRL's GAE and ClipPPOLoss learn.

``python -m scripts.recipes.ppo`` prints the mean return of greedy episodes, 475 or more after half a minute. The
hyper-parameters are those of RL Baselines3 Zoo for CartPole-v1, but for the clip range, which is constant here.
"""

import argparse
import time
from collections.abc import Sequence
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.modules import ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from rlx.collector import Collector, SerialEnv

ENV, LONGEST = "CartPole-v1", 500


def main(arguments: Sequence[str] | None = None) -> float:
    """Train, evaluate, and return the mean return of the evaluation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--frames", type=int, default=100_000, help="Steps to collect.")
    parser.add_argument("--lanes", type=int, default=8, help="Environments side by side.")
    parser.add_argument("--length", type=int, default=32, help="Steps of each environment per batch.")
    parser.add_argument("--epochs", type=int, default=20, help="Passes over each batch.")
    parser.add_argument("--minibatch", type=int, default=256, help="Steps per gradient step.")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="Decays linearly to 0.")
    parser.add_argument("--episodes", type=int, default=20, help="Episodes of the evaluation.")
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    began = time.monotonic()

    actor = ProbabilisticActor(
        TensorDictModule(network(2), in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
    )
    critic = ValueOperator(network(1), in_keys=["observation"])
    advantage = GAE(gamma=0.98, lmbda=0.8, value_network=critic, average_gae=True)
    loss = ClipPPOLoss(actor, critic, clip_epsilon=0.2, entropy_coeff=0.0, critic_coeff=0.5)
    optimizer = torch.optim.Adam(loss.parameters(), lr=options.learning_rate)
    size = options.lanes * options.length
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, max(1, options.frames // size))

    collector = Collector(
        SerialEnv(options.lanes, ENV), actor, frames_per_batch=size, total_frames=options.frames, seed=options.seed
    )
    with collector:
        batch: Any  # [lanes, length]
        for batch in collector:
            advantage(batch)
            steps = batch.reshape(-1)
            for _ in range(options.epochs):
                for chosen in torch.randperm(len(steps)).split(options.minibatch):
                    losses = loss(steps[chosen])
                    total = sum(value for name, value in losses.items() if name.startswith("loss_"))
                    optimizer.zero_grad()
                    total.backward()
                    nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                    optimizer.step()
            decay.step()
            collector.update_policy_weights_()

    found = evaluated(actor, options.episodes, options.seed + 1)
    seconds = time.monotonic() - began
    print(f"seed {options.seed}: mean return {found:.1f} of {options.episodes} episodes, {seconds:.0f} s")
    return found


def network(outputs: int) -> nn.Module:
    """Two hidden layers, orthogonal weights."""
    layers = [nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)]
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    for layer, gain in zip(linear, (2**0.5, 2**0.5, 0.01 if outputs > 1 else 1.0), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


def evaluated(policy: nn.Module, episodes: int, seed: int) -> float:
    """Mean return of the first episode in each of as many environments, with the most likely actions."""
    env, frames = SerialEnv(episodes, ENV), episodes * LONGEST
    collector = Collector(
        env, policy, frames_per_batch=frames, total_frames=frames, seed=seed, exploration_type="deterministic"
    )
    with collector:
        batch: Any = collector.next()  # [episodes, 500]
    done = batch["next", "done"].int()
    is_first = done.cumsum(1) - done == 0
    return float((batch["next", "reward"] * is_first).sum() / episodes)


if __name__ == "__main__":
    main()
