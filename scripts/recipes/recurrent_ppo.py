"""Recurrent PPO on CartPole without velocities: rlx carries the policy's state, and stores it with every step.

``python -m scripts.recipes.recurrent_ppo`` prints the mean return of greedy episodes, 400 or more after some minutes;
with ``--no-memory`` the same learner, whose GRU is a linear layer, stays far below.
"""

import argparse
import time
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from rlx.collector import Collector, SerialEnv

HIDDEN = 64
GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.2
# Policy and value share a network: with returns of a hundred the loss of the values would drown that of the policy.
REWARD_SCALE = 0.05
LONGEST = 500


class WithoutVelocities(gymnasium.ObservationWrapper):
    """CartPole-v1 that shows positions of cart and pole alone."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """The cart's position and the pole's angle, the latter in units of the largest one allowed."""
        return observation[[0, 2]] * np.array([1 / 2.4, 1 / 0.21], np.float32)


class Network(nn.Module):
    """Logits and values of one step, and the state after it.

    Args:
        has_memory: whether a GRU sees the state; otherwise a linear layer takes its place, and the state is ignored.
    """

    def __init__(self, *, has_memory: bool) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(2, HIDDEN), nn.Tanh())
        self.memory = nn.GRUCell(HIDDEN, HIDDEN) if has_memory else None
        self.instead = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.Tanh())
        self.actor = nn.Linear(HIDDEN, 2)
        self.critic = nn.Linear(HIDDEN, 1)
        nn.init.orthogonal_(self.actor.weight, 0.01)

    def forward(self, observation: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[n, 2] logits, [n] values and [n, hidden] states of observations [n, 2] and states [n, hidden]."""
        seen = self.encoder(observation)
        h = self.instead(seen) if self.memory is None else self.memory(seen, h)
        return self.actor(h), self.critic(h).squeeze(-1), h


class Step(nn.Module):
    """One step of the policy, as a collector asks for it.

    Args:
        network: what it runs.
        greedy: whether it takes the most likely action.
    """

    def __init__(self, network: Network, *, greedy: bool = False) -> None:
        super().__init__()
        self.network = network
        self.greedy = greedy

    def forward(self, observation: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        """Actions, their log-probabilities, values and the next state."""
        logits, value, h = self.network(observation, h)
        choice = torch.distributions.Categorical(logits=logits)
        action = logits.argmax(-1) if self.greedy else choice.sample()
        return action, choice.log_prob(action), value, h


def policy(network: Network, *, greedy: bool = False) -> TensorDictModule:
    """Reads ``h`` and writes ``("next", "h")``: so it is the policy's state, and zeros where an episode starts."""
    written: list[NestedKey] = ["action", "action_log_prob", "state_value", ("next", "h")]
    step = Step(network, greedy=greedy)
    return TensorDictModule(step, in_keys=["observation", "h"], out_keys=written)


def main(arguments: Sequence[str] | None = None) -> float:
    """Train, evaluate, and return the mean return of the evaluation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-memory", action="store_true", help="A linear layer in the place of the GRU.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--frames", type=int, default=150_000, help="Steps to collect.")
    parser.add_argument("--lanes", type=int, default=32, help="Environments side by side.")
    parser.add_argument("--length", type=int, default=64, help="Steps of each environment per batch.")
    parser.add_argument("--epochs", type=int, default=4, help="Passes over each batch.")
    parser.add_argument("--minibatch", type=int, default=8, help="Lanes per gradient step.")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="Decays linearly to 0.")
    parser.add_argument("--episodes", type=int, default=20, help="Episodes of the evaluation.")
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    began = time.monotonic()

    network = Network(has_memory=not options.no_memory)
    optimizer = torch.optim.Adam(network.parameters(), lr=options.learning_rate, eps=1e-5)
    size = options.lanes * options.length
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, max(1, options.frames // size))
    collector = Collector(
        SerialEnv(options.lanes, WithoutVelocities),
        policy(network),
        frames_per_batch=size,
        total_frames=options.frames,
        seed=options.seed,
    )
    with collector:
        batch: Any  # [lanes, length]
        for number, batch in enumerate(collector):
            if number % 10 == 0:
                ended = int(batch["next", "done"].sum())
                print(f"{number * size:,} steps: an episode ends every {batch.numel() / max(1, ended):.0f}", flush=True)
            advantage = advantages(network, batch)
            target = advantage + batch["state_value"]
            advantage = (advantage - advantage.mean()) / advantage.std()
            for _ in range(options.epochs):
                for lanes in torch.randperm(len(batch)).split(options.minibatch):
                    loss = ppo_loss(network, batch[lanes], advantage[lanes], target[lanes])
                    optimizer.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(network.parameters(), 0.5)
                    optimizer.step()
            decay.step()
            collector.update_policy_weights_()

    found = evaluated(policy(network, greedy=True), options.episodes, options.seed + 1)
    seconds = time.monotonic() - began
    memory = "without" if options.no_memory else "with"
    print(
        f"seed {options.seed}, {memory} memory: mean return {found:.1f} of {options.episodes} episodes, {seconds:.0f} s"
    )
    return found


@torch.no_grad()
def advantages(network: Network, batch: TensorDictBase) -> Tensor:
    """[lanes, length] generalised advantages; a step that was truncated looks ahead by the value of what it led to."""
    after = batch["next"]
    _, value, _ = network(after["observation"].flatten(0, 1), after["h"].flatten(0, 1))
    reward, done, terminated = (after[name].squeeze(-1).float() for name in ("reward", "done", "terminated"))
    error = REWARD_SCALE * reward + GAMMA * value.reshape(reward.shape) * (1 - terminated) - batch["state_value"]
    found, running = torch.zeros_like(error), torch.zeros(len(error))
    for t in reversed(range(error.shape[1])):
        running = error[:, t] + GAMMA * LAMBDA * (1 - done[:, t]) * running
        found[:, t] = running
    return found


def ppo_loss(network: Network, batch: TensorDictBase, advantage: Tensor, target: Tensor) -> Tensor:
    """Clipped policy loss, value loss and entropy, of a network that runs over the lanes from their stored states."""
    observation, is_init = batch["observation"], batch["is_init"].reshape(*batch.shape, 1)
    h = batch["h"][:, 0]
    logits, values = [], []
    for t in range(batch.shape[1]):
        h = torch.where(is_init[:, t], 0.0, h)
        step_logits, value, h = network(observation[:, t], h)
        logits.append(step_logits)
        values.append(value)
    choice = torch.distributions.Categorical(logits=torch.stack(logits, 1))
    ratio = (choice.log_prob(batch["action"]) - batch["action_log_prob"]).exp()
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
    entropy: Tensor = choice.entropy().mean()
    return 0.5 * (torch.stack(values, 1) - target).square().mean() - gain - 0.01 * entropy


def evaluated(policy: nn.Module, episodes: int, seed: int) -> float:
    """Mean return of the first episode in each of as many environments."""
    env, frames = SerialEnv(episodes, WithoutVelocities), episodes * LONGEST
    with Collector(env, policy, frames_per_batch=frames, total_frames=frames, seed=seed) as collector:
        batch: Any = collector.next()  # [episodes, 500]
    done = batch["next", "done"].int()
    is_first = done.cumsum(1) - done == 0
    return float((batch["next", "reward"] * is_first).sum() / episodes)


if __name__ == "__main__":
    main()
