"""Policies that are modules; apart from the environments, which workers import without torch."""

import sys

import torch


class Constant(torch.nn.Module):
    """The action of every environment is a number that can be trained."""

    def __init__(self, action: int = 0) -> None:
        super().__init__()
        self.action = torch.nn.Parameter(torch.tensor(action), requires_grad=False)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.action.expand(len(observation))


class Lean(Constant):
    """Refuses to act where tensordict was imported, which takes seconds and is not needed for a plain module."""

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        assert "tensordict" not in sys.modules
        return super().forward(observation)
