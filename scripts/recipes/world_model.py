"""A recurrent world model of CartPole-v1, trained on long windows of a dataset.

``python -m scripts.recipes.world_model demos`` learns to predict the observations and the end of an episode from
actions (as Ha and Schmidhuber, 2018, without the encoder of pictures). It prints the error of predictions that are made
without seeing observations, for 1, 5 and 15 steps ahead, beside that of repeating the last observation that was seen.
Windows cross the ends of episodes: the memory starts over at each ``is_init``.
"""

import argparse
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import rlx

HORIZONS, SEEN = (1, 5, 15), 16


class WorldModel(nn.Module):
    """A GRU over observations and actions, whose state predicts the next observation.

    Args:
        width: numbers in the state.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4 + 2, width)
        self.change, self.ends = nn.Linear(width, 4), nn.Linear(width, 1)

    def forward(self, state: Tensor, observation: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the next state [n, width], the next observation [n, 4], and a logit of the episode's end [n, 1]."""
        state = self.cell(torch.cat((observation, functional.one_hot(action, 2).float()), 1), state)
        return state, observation + self.change(state), self.ends(state)


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and evaluate; return the error of the model over that of repeating, one step ahead."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="Directory or id of a dataset of CartPole-v1.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--updates", type=int, default=1_500, help="Gradient steps.")
    parser.add_argument("--window", type=int, default=64, help="Steps per window.")
    parser.add_argument("--windows", type=int, default=16, help="Windows per batch.")
    parser.add_argument("--width", type=int, default=128)
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    began = time.monotonic()

    dataset = rlx.open(options.dataset)
    last = len(dataset) * 4 // 5  # the rest is for the evaluation
    if last < options.window or len(dataset) - last < options.window:
        parser.error(f"--window {options.window}: the dataset has only {len(dataset)} steps")
    model = WorldModel(options.width)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(options.updates):
        starts = torch.randint(last - options.window + 1, (options.windows,))
        batch = windows(dataset, starts, options.window)
        state = torch.zeros(options.windows, options.width)
        losses = []
        for step in batch.unbind(1):
            state = torch.where(step["is_init"], 0.0, state)
            state, observation, end = model(state, step["observation"], step["action"])
            done = step["next", "terminated"].float()
            losses.append(functional.mse_loss(observation, step["next", "observation"]))
            losses.append(functional.binary_cross_entropy_with_logits(end, done))
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    starts = torch.arange(last, len(dataset) - options.window + 1, options.window // 2)
    errors = evaluated(model, windows(dataset, starts, options.window))
    seconds = time.monotonic() - began
    shown = ", ".join(f"{steps}: {found:.4f} (repeated {repeated:.4f})" for steps, found, repeated in errors)
    print(f"seed {options.seed}: squared errors by steps ahead {shown}, {seconds:.0f} s")
    return errors[0][1] / errors[0][2]


def windows(dataset: Any, starts: Tensor, length: int) -> Any:
    """Return steps [n, length] from these rows on, with is_init [n, length, 1] where an episode or window starts."""
    rows = starts[:, None] + torch.arange(length)
    batch = dataset[rows.flatten()].reshape(*rows.shape)
    episode = batch["collector", "traj_ids"]
    is_init = torch.ones(*rows.shape, 1, dtype=torch.bool)
    is_init[:, 1:, 0] = episode[:, 1:] != episode[:, :-1]
    return batch.set("is_init", is_init)


@torch.no_grad()
def evaluated(model: WorldModel, batch: Any) -> list[tuple[int, float, float]]:
    """Return steps ahead, the model's squared error, and that of repeating, after some steps that it sees."""
    state = torch.zeros(len(batch), model.cell.hidden_size)
    for step in batch[:, :SEEN].unbind(1):
        state = torch.where(step["is_init"], 0.0, state)
        state, observation, _ = model(state, step["observation"], step["action"])
    seen = batch[:, SEEN - 1]["next", "observation"]
    ahead = batch[:, SEEN : SEEN + max(HORIZONS)]
    is_whole = torch.ones(len(batch), dtype=torch.bool)  # episodes that have not ended
    is_whole &= ~ahead["is_init"].flatten(1).any(1) & ~batch[:, SEEN - 1]["next", "done"][:, 0]
    found = []
    for steps, step in enumerate(ahead.unbind(1), start=1):
        state, observation, _ = model(state, observation, step["action"])
        if steps in HORIZONS:
            after = step["next", "observation"]
            errors = [(guess - after)[is_whole].square().mean() for guess in (observation, seen)]
            found.append((steps, float(errors[0]), float(errors[1])))
    return found


if __name__ == "__main__":
    main()
