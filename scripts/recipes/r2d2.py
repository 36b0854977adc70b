"""R2D2 on CartPole without velocities: rlx carries the policy's state, and replays slices from the stored one.

``python -m scripts.recipes.r2d2`` prints the mean return of greedy episodes of the network that was best when it was
evaluated during training. As in Kapturowski et al. (2019): a recurrent Q-network starts from the state that is stored
with the first step of a slice, burns in without gradients, and learns n-step double Q-learning on the rest; slices are
drawn by a mix of their largest and mean error, and each environment explores with its own epsilon. Left out are the
dueling network and the rescaling of values. With ``--checkpoint DIRECTORY`` the same command continues a killed run.
"""

import argparse
import copy
import time
from collections.abc import Sequence
from typing import Any

import torch
from tensordict import NestedKey
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

import rlx
from rlx.buffer import LazyTensorStorage, PrioritizedSliceSampler, ReplayBuffer
from rlx.collector import Collector, SerialEnv
from scripts.recipes.dqn import digest
from scripts.recipes.recurrent_ppo import WithoutVelocities, evaluated

GAMMA, N_STEP, TAU = 0.99, 5, 0.01
BURN_IN, LEARN, SLICES = 10, 20, 32  # steps of a slice, and slices of a batch
ALPHA, BETA, ETA = 0.6, 0.4, 0.9  # of the priorities
EPSILON = 0.4, 8.0  # that of the first environment, and its power in the last one
KEYS: list[NestedKey] = [
    "observation",
    "action",
    "h",
    "is_init",
    *(("next", key) for key in ("observation", "reward", "done", "terminated", "truncated")),
]


class Network(nn.Module):
    """Values of both actions at consecutive steps.

    Args:
        hidden: numbers in the state of its GRU.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(2, hidden), nn.ReLU())
        self.memory = nn.GRU(hidden, hidden, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 2))

    def forward(self, observation: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """[n, steps, 2] values and [n, hidden] last states, of observations [n, steps, 2] and first states."""
        outputs, h = self.memory(self.encoder(observation), h[None])
        return self.head(outputs), h[0]


class Step(nn.Module):
    """One step of the policy, as a collector asks for it.

    Args:
        network: what it runs.
        epsilon: [n] probabilities of random actions, one of each environment; 0 is greedy.
    """

    def __init__(self, network: Network, epsilon: Tensor) -> None:
        super().__init__()
        self.network = network
        self.epsilon = epsilon

    def forward(self, observation: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [n] and the next states, of observations [n, 2] and states [n, hidden]."""
        values, h = self.network(observation[:, None], h)
        is_random = torch.rand(len(h)) < self.epsilon
        return torch.where(is_random, torch.randint(2, (len(h),)), values[:, 0].argmax(-1)), h


def policy(network: Network, epsilon: Tensor) -> TensorDictModule:
    """Reads ``h`` and writes ``("next", "h")``: so it is the policy's state, and zeros where an episode starts."""
    return TensorDictModule(Step(network, epsilon), in_keys=["observation", "h"], out_keys=["action", ("next", "h")])


def main(arguments: Sequence[str] | None = None) -> float:
    """Train, evaluate, and return the mean return of the evaluation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--frames", type=int, default=60_000, help="Steps to collect.")
    parser.add_argument("--lanes", type=int, default=8, help="Environments side by side.")
    parser.add_argument("--length", type=int, default=32, help="Steps of each environment between trainings.")
    parser.add_argument("--updates", type=int, default=20, help="Gradient steps per training.")
    parser.add_argument("--first-frames", type=int, default=2_000, help="Steps before the first training.")
    parser.add_argument("--capacity", type=int, default=100_000, help="Steps in the replay buffer.")
    parser.add_argument("--hidden", type=int, default=64, help="Numbers in the state of the GRU.")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--episodes", type=int, default=20, help="Episodes of an evaluation.")
    parser.add_argument("--evaluate-every", type=int, default=2_560, help="Steps between evaluations.")
    parser.add_argument("--checkpoint", help="Directory from which a killed run continues.")
    parser.add_argument("--every", type=int, default=2_560, help="Steps between checkpoints.")
    parser.add_argument("--log", help="Dataset of the replay buffer at the end: rlx inspect --plot draws its returns.")
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    began = time.monotonic()

    network = Network(options.hidden)
    target, best = copy.deepcopy(network), copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=options.learning_rate)
    size = options.lanes * options.length
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(options.capacity, ndim=2),  # [lanes, time]
        # Slices end early at the ends of episodes, so that last steps are drawn as often as others. init_key=None:
        # only the first steps of episodes are marked by is_init, not those of slices.
        sampler=PrioritizedSliceSampler(
            options.capacity,
            ALPHA,
            BETA,
            slice_len=BURN_IN + LEARN,
            strict_length=False,
            pad_output=True,
            span=(False, True),
            init_key=None,
            seed=options.seed,
        ),
        batch_size=SLICES * (BURN_IN + LEARN),
    )
    collector = Collector(
        SerialEnv(options.lanes, WithoutVelocities),
        policy(network, EPSILON[0] ** torch.linspace(1, EPSILON[1], options.lanes)),
        frames_per_batch=size,
        total_frames=options.frames,
        seed=options.seed,
    )
    parts = {"network": network, "target": target, "best": best, "optimizer": optimizer}
    parts |= {"buffer": buffer, "collector": collector}
    checkpoint = rlx.Checkpoint(options.checkpoint, **parts) if options.checkpoint else None
    frames = saved = checkpoint.restore() if checkpoint else 0
    highest = checkpoint.values.get("highest", 0.0) if checkpoint else 0.0
    with collector:
        batch: Any  # [lanes, length]
        for batch in collector:
            buffer.extend(batch.select(*KEYS))
            frames += batch.numel()
            if frames >= min(options.first_frames, options.frames):
                for _ in range(options.updates):
                    train(network, target, optimizer, buffer)
                collector.update_policy_weights_()
                if frames % options.evaluate_every < batch.numel() or frames >= options.frames:
                    found = greedy(network, options.episodes, options.seed + 1)
                    print(f"{frames:,} steps, {time.monotonic() - began:.0f} s: mean return {found:.1f}", flush=True)
                    if found >= highest:
                        highest = found
                        best.load_state_dict(network.state_dict())
            if checkpoint and (frames - saved >= options.every or frames >= options.frames):
                checkpoint.save(frames, highest=highest)
                saved = frames

    if checkpoint:
        checkpoint.close()
    if options.log:
        buffer.save_dataset(options.log, exclude=["h"], overwrite=True)
    found = greedy(best, options.episodes, options.seed + 2)  # episodes that did not choose it
    seconds = time.monotonic() - began
    print(f"seed {options.seed}: mean return {found:.1f} of {options.episodes} episodes, {seconds:.0f} s")
    print(f"weights {digest(network)}")
    return found


def train(network: Network, target: Network, optimizer: torch.optim.Optimizer, buffer: ReplayBuffer) -> None:
    """Take one gradient step on a batch of slices, and update their priorities."""
    flat, info = buffer.sample(return_info=True)
    batch: Any = flat.reshape(SLICES, -1)  # [slices, steps]
    after = batch["next"]
    observation = torch.cat((batch["observation"][:, :1], after["observation"]), 1)  # one step more than the actions
    at_reset = batch["is_init"][:, 0]  # [slices, 1]: its state is zeros, as always: nothing to burn in
    values = unrolled(network, observation, batch["h"][:, 0], at_reset)
    with torch.no_grad():
        best = values[:, 1:].argmax(-1, keepdim=True)
        following = unrolled(target, observation, batch["h"][:, 0], at_reset)[:, 1:].gather(2, best).squeeze(-1)
        reward, done, terminated = (after[name].squeeze(-1) for name in ("reward", "done", "terminated"))
        goal = n_step_goals(reward, following, terminated, done)
    value = values[:, :-1].gather(2, batch["action"][:, :, None]).squeeze(-1)
    learns = batch["collector", "mask"].reshape(goal.shape) & (at_reset | (torch.arange(goal.shape[1]) >= BURN_IN))
    error = (goal - value) * learns
    weight = batch["priority_weight"][:, 0]
    # Relative to the batch: the smallest priority of all is nearly 0, that of a slice with nothing to learn.
    weight = weight / weight.max()
    loss = (weight * error.square().sum(1)).sum() / learns.sum().clamp(min=1)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(network.parameters(), 10.0)
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), network.parameters(), strict=True):
            slow.lerp_(fast, TAU)
    error = error.detach().abs()
    mean = error.sum(1) / learns.sum(1).clamp(min=1)
    # The priority of a slice is that of its first step.
    buffer.update_priority(info["index"].reshape(SLICES, -1)[:, 0], ETA * error.amax(1) + (1 - ETA) * mean)


def unrolled(network: Network, observation: Tensor, h: Tensor, at_reset: Tensor) -> Tensor:
    """Values [slices, steps, 2] from the stored states; gradients end at the burn-in, unless an episode starts."""
    first, h = network(observation[:, :BURN_IN], h)
    rest, _ = network(observation[:, BURN_IN:], torch.where(at_reset, h, h.detach()))
    return torch.cat((first, rest), 1)


def n_step_goals(reward: Tensor, following: Tensor, terminated: Tensor, done: Tensor) -> Tensor:
    """[slices, steps] discounted rewards of n steps, and the value after them.

    Args:
        reward: [slices, steps]
        following: [slices, steps] values of the observations that the steps lead to.
        terminated: [slices, steps] whether no value follows.
        done: [slices, steps] whether the sum ends: the episode, or the slice.
    """
    then = goal = following
    for _ in range(N_STEP):
        goal = reward + GAMMA * then * ~terminated
        then = torch.where(done, following, goal.roll(-1, 1))
    return goal


def greedy(network: Network, episodes: int, seed: int) -> float:
    """Mean return of the first episode in each of as many environments, with greedy actions."""
    return evaluated(policy(network, torch.zeros(episodes)), episodes, seed)


if __name__ == "__main__":
    main()
