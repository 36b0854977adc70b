"""Dopamine's DQN on an Atari game, every step of which goes into a dataset: the DQN Replay Dataset, made anew.

``python -m scripts.recipes.dqn_log ALE/Pong-v5 --output pong --checkpoint run`` trains for 50 million steps and writes
50 shards, with the hyper-parameters that Dopamine publishes for that dataset. The same command continues a run that was
killed, to the bit. Shards hold raw rewards; a learner clips them.
"""

import argparse
import copy
import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.nn import functional

import rlx
from rlx.buffer import CompressedStorage, FrameStack, RandomSampler, ReplayBuffer
from rlx.collector import Collector, GymEnv
from rlx.datasets.base import is_complete

STACK, LONGEST = 4, 27_000
GAMMA, BATCH, UPDATE_EVERY = 0.99, 32, 4


class Policy(nn.Module):
    """Epsilon-greedy actions of a Q-network on the last frames of one environment, which it remembers.

    Args:
        network: gives the values of all actions.
        actions: how many there are.
    """

    frames: Tensor
    in_keys, out_keys = ("observation", "is_init"), ("action",)

    def __init__(self, network: nn.Module, actions: int) -> None:
        super().__init__()
        self.network, self.actions = network, actions
        self.epsilon = 1.0
        self.register_buffer("frames", torch.zeros(1, STACK, 84, 84, dtype=torch.uint8))

    def forward(self, step: TensorDictBase) -> TensorDictBase:
        """Write an action."""
        frame = step["observation"][:, None]
        older = frame.expand(-1, STACK - 1, -1, -1) if step["is_init"].any() else self.frames[:, 1:]
        self.frames = torch.cat((older, frame), 1)
        if torch.rand(()) < self.epsilon:
            return step.set("action", torch.randint(self.actions, (1,)))
        return step.set("action", self.network(self.frames).argmax(1))


def nature_network(actions: int) -> nn.Module:
    """Return the network of Mnih et al. (2015), of stacks [n, 4, 84, 84] of bytes."""
    return nn.Sequential(
        _Scaled(), nn.Conv2d(STACK, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
        nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, actions),
    )  # fmt: skip


class _Scaled(nn.Module):
    def forward(self, frames: Tensor) -> Tensor:
        return frames.float() / 255


def main(arguments: Sequence[str] | None = None) -> str:
    """Train and log; return a hash of the weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("game", nargs="?", default="ALE/Pong-v5")
    parser.add_argument("--output", type=Path, help="Dataset to write; none by default.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=50_000_000, help="Steps of the agent, each of 4 frames.")
    parser.add_argument("--shard-steps", type=int, default=1_000_000, help="Steps per shard; also the replay buffer's.")
    parser.add_argument("--random-steps", type=int, default=20_000, help="Random steps before the first training.")
    parser.add_argument("--decay-steps", type=int, default=250_000, help="Steps in which epsilon falls to 0.01.")
    parser.add_argument("--target-every", type=int, default=8_000, help="Steps between updates of the target network.")
    parser.add_argument("--checkpoint", help="Directory from which a killed run continues.")
    parser.add_argument("--every", type=int, default=100_000, help="Steps between checkpoints.")
    parser.add_argument("--threads", type=int, default=1, help="Threads of torch.")
    options = parser.parse_args(arguments)
    uneven = options.steps < 1 or options.steps % options.shard_steps or options.shard_steps % UPDATE_EVERY
    if options.output and uneven:
        parser.error(
            f"--steps {options.steps}, --shard-steps {options.shard_steps}: "
            f"expected a multiple of --shard-steps, and that a multiple of {UPDATE_EVERY}"
        )
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    began = time.monotonic()

    env = GymEnv(options.game, frameskip=1)  # not the emulator's own vector environment, which hides its state
    actions = int(env().action_space.n)  # type: ignore[attr-defined]
    network = nature_network(actions)
    target = copy.deepcopy(network)
    optimizer = torch.optim.RMSprop(network.parameters(), lr=0.00025, alpha=0.95, eps=0.00001, centered=True)
    policy = Policy(network, actions)
    buffer = ReplayBuffer(
        storage=CompressedStorage(options.shard_steps),
        sampler=RandomSampler(seed=options.seed),
        transform=FrameStack(STACK),
        batch_size=BATCH,
    )
    collector = Collector(env, policy, frames_per_batch=UPDATE_EVERY, max_frames_per_traj=LONGEST, seed=options.seed)
    parts = {"policy": policy, "target": target, "optimizer": optimizer, "buffer": buffer, "collector": collector}
    checkpoint = rlx.Checkpoint(options.checkpoint, **parts) if options.checkpoint else None
    first = step = checkpoint.restore() if checkpoint else 0
    if options.output:
        there = parts_of(options.output).is_dir() and any(parts_of(options.output).iterdir())
        if there and not first:
            parser.error(f"{parts_of(options.output)} has shards of another run: remove it, or continue that run")
        if missing := [part for part in logged(options, first) if not is_complete(part)]:
            parser.error(f"{missing[0]} is not complete: expected the shards of the run to continue, in its --output")

    while step < options.steps:
        policy.epsilon = epsilon(step - options.random_steps, options.decay_steps)
        batch: Any = collector.next()  # [4]
        buffer.extend(batch)
        step += len(batch)
        if step > options.random_steps:
            train(network, target, optimizer, buffer)
            if step % options.target_every < UPDATE_EVERY:
                target.load_state_dict(network.state_dict())
        if step % options.shard_steps == 0 and options.output:
            log(buffer, options.output, step // options.shard_steps)
        if checkpoint and (step % options.every == 0 or step >= options.steps):
            checkpoint.save(step)

    collector.shutdown()
    if checkpoint:
        checkpoint.close()
    if options.output:
        rlx.merge(logged(options, step), output=options.output, overwrite=True)
    raw = b"".join(tensor.numpy().tobytes() for tensor in network.state_dict().values())
    found = hashlib.blake2b(raw, digest_size=8).hexdigest()
    seconds = time.monotonic() - began
    print(f"seed {options.seed}: {step - first:,} steps, {seconds:.0f} s\nweights {found}")
    return found


def parts_of(output: Path) -> Path:
    """Directory of the shards that are complete, each a dataset; they are merged at the end."""
    return output.with_name(f"{output.name}.parts")


def logged(options: argparse.Namespace, step: int) -> list[Path]:
    """Return the shards of the first steps."""
    return [parts_of(options.output) / f"{number:05d}" for number in range(step // options.shard_steps)]


def log(buffer: ReplayBuffer, output: Path, number: int) -> None:
    """Write the steps of the buffer, which are those since the last shard; a resumed run may have written them."""
    part = parts_of(output) / f"{number - 1:05d}"
    if not is_complete(part):  # a kill may have left some of it
        part.parent.mkdir(parents=True, exist_ok=True)
        buffer.save_dataset(part, id=output.name, exclude=["is_init"], overwrite=True)


def epsilon(step: int, decay_steps: int) -> float:
    """Probability of random actions: from 1 down to 0.01."""
    return min(1.0, max(0.01, 1.0 - 0.99 * step / decay_steps))


def train(network: nn.Module, target: nn.Module, optimizer: torch.optim.Optimizer, buffer: ReplayBuffer) -> None:
    """Take one gradient step on a batch."""
    batch = buffer.sample()
    after = batch["next"]
    with torch.no_grad():
        best = target(after["observation"]).max(1).values
        goal = after["reward"][:, 0].clamp(-1, 1) + GAMMA * best * ~after["terminated"][:, 0]
    value = network(batch["observation"]).gather(1, batch["action"][:, None])[:, 0]
    optimizer.zero_grad()
    loss: Callable[..., Tensor] = functional.huber_loss
    loss(value, goal).backward()
    optimizer.step()


if __name__ == "__main__":
    main()
