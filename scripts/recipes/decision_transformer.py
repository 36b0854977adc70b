"""Decision Transformer on a dataset of CartPole-v1: slices of trajectories, each step with the return that follows it.

``python -m scripts.recipes.dqn --save demos`` makes a dataset with an agent that it trains;
``python -m scripts.recipes.decision_transformer demos`` learns to act for a given return (Chen et al., 2021), and
prints the mean return of episodes for which it was asked for 500.
"""

import argparse
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import rlx
from rlx.buffer import ReturnToGo
from rlx.collector import SerialEnv

ENV, LONGEST, SCALE = "CartPole-v1", 500, 100.0


class DecisionTransformer(nn.Module):
    """Causal transformer over returns to go, observations and actions.

    Args:
        context: steps that it sees.
        width: numbers per token.
        layers: how many.
    """

    def __init__(self, context: int, width: int, layers: int) -> None:
        super().__init__()
        self.context = context
        self.returns, self.observation, self.action = nn.Linear(1, width), nn.Linear(4, width), nn.Embedding(2, width)
        self.position = nn.Parameter(torch.randn(context, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, returns: Tensor, observation: Tensor, action: Tensor) -> Tensor:
        """Return logits [n, L, 2] for returns to go [n, L, 1], observations [n, L, 4] and actions [n, L]."""
        n, length = action.shape
        kinds = (self.returns(returns / SCALE), self.observation(observation), self.action(action))
        tokens = torch.stack([kind + self.position[:length] for kind in kinds], 2).reshape(n, 3 * length, -1)
        mask = nn.Transformer.generate_square_subsequent_mask(3 * length)
        logits: Tensor = self.head(self.layers(tokens, mask, is_causal=True)[:, 1::3])  # after each observation
        return logits


def main(arguments: Sequence[str] | None = None) -> float:
    """Train, evaluate, and return the mean return of the evaluation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="Directory or id of a dataset of CartPole-v1.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--updates", type=int, default=2_000, help="Gradient steps.")
    parser.add_argument("--context", type=int, default=4, help="Steps per slice.")
    parser.add_argument("--slices", type=int, default=32, help="Slices per batch.")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--target", type=float, default=500.0, help="The return that is asked for.")
    parser.add_argument("--episodes", type=int, default=20, help="Episodes of the evaluation.")
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    began = time.monotonic()

    model = DecisionTransformer(options.context, options.width, options.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
    loader = rlx.loader(
        options.dataset,
        options.slices * options.context,
        slice_len=options.context,
        transform=ReturnToGo(),
        seed=options.seed,
    )
    updates = 0
    while updates < options.updates:
        for batch in loader:  # [slices, context]
            logits = model(batch["return_to_go"].reshape(*batch.shape, 1), batch["observation"], batch["action"])
            loss = functional.cross_entropy(logits.flatten(0, 1), batch["action"].flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
            updates += 1
            if updates == options.updates:
                break

    found = evaluated(model, options.target, options.episodes, options.seed + 1)
    seconds = time.monotonic() - began
    print(f"seed {options.seed}: mean return {found:.1f} of {options.episodes} episodes, {seconds:.0f} s")
    return found


@torch.no_grad()
def evaluated(model: DecisionTransformer, target: float, episodes: int, seed: int) -> float:
    """Mean return of the first episode in each of as many environments, with the most likely actions."""
    env = SerialEnv(episodes, ENV)
    env.set_seed(seed)
    root: Any = env.reset()
    returns, running = torch.full((episodes, 1, 1), target), torch.ones(episodes, dtype=torch.bool)
    observation, action = root["observation"][:, None], torch.zeros(episodes, 1, dtype=torch.int64)
    total = torch.zeros(episodes)
    for _ in range(LONGEST):
        window = slice(-model.context, None)
        chosen = model(returns[:, window], observation[:, window], action[:, window])[:, -1].argmax(1)
        action[:, -1] = chosen
        step, root = env.step_and_maybe_reset(root.set("action", chosen))
        reward = step["next", "reward"][:, 0]
        total += reward * running
        running &= ~step["next", "done"][:, 0]
        if not running.any():
            break
        returns = torch.cat((returns, returns[:, -1:] - reward[:, None, None]), 1)
        observation = torch.cat((observation, root["observation"][:, None]), 1)
        action = torch.cat((action, torch.zeros(episodes, 1, dtype=torch.int64)), 1)
    env.close()
    return float(total.mean())


if __name__ == "__main__":
    main()
