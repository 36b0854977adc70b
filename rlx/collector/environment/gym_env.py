"""``GymEnv``: an environment by its gymnasium id, under the name that TorchRL's users know."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlx.collector.environment.gym_id import make, of_id
from rlx.collector.environment.protocol import Environment
from rlx.collector.environment.ted_env import TedEnv

if TYPE_CHECKING:
    import gymnasium


class GymEnv(TedEnv):
    """A gymnasium id: for a collector, a function that makes the environment; or stepped by hand, see ``TedEnv``.

    Actions are gymnasium's own, as with TorchRL's ``categorical_action_encoding=True``.

    Args:
        env_id: as gymnasium has it, ``ALE/Pong-v5`` with DQN preprocessing, or ``envpool/NAME``.
        options: more arguments for ``gymnasium.make``.

    Example:
        >>> GymEnv("CartPole-v1")().spec.id
        'CartPole-v1'
        >>> GymEnv("CartPole-v1", max_episode_steps=5).rollout(100).shape
        torch.Size([5])
    """

    def __init__(self, env_id: str, **options: Any) -> None:
        super().__init__()
        self.env_id = env_id
        self.options: Mapping[str, Any] = options

    def __call__(self) -> "gymnasium.Env[Any, Any]":
        """Return a new environment.

        Raises:
            CollectError: the id is unknown, or the environment cannot be made.
            MissingExtraError: a package that it needs is not installed.
        """
        return make(self.env_id, **self.options)

    def open(self, num_envs: int | None = None) -> Environment:
        """Return copies of the environment, stepped side by side;
        without a number, one without a dimension of copies."""
        return of_id(self.env_id, self.options, num_envs or 1, is_batched=num_envs is not None)

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"GymEnv({self.env_id!r}{options})"
