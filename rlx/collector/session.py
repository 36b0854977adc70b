"""One session of collecting: an environment, a policy and their seeds, as a stream of blocks of whole episodes."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rlx.block import Block
from rlx.collector.environment import Environment
from rlx.collector.episodes import Episode, Episodes, join
from rlx.collector.policy_file import PolicySpec
from rlx.collector.rollout import Rollout

# Long enough that a step costs little more than the environment takes; short enough that memory stays small.
_CHUNK_STEPS = 64


@dataclass(frozen=True, slots=True)
class Budget:
    """What is to be collected: exactly so many steps, or so many episodes."""

    steps: int | None = None
    episodes: int | None = None


def seeds_of(seed: int, session: int, num_envs: int, purpose: int) -> list[int]:
    """[n] seeds of 31 bits: of another session or purpose they are others; how many there are changes none.

    Example:
        >>> seeds_of(0, 0, 2, 0) == seeds_of(0, 0, 3, 0)[:2]
        True
        >>> seeds_of(0, 1, 2, 0) == seeds_of(0, 0, 2, 0)
        False
    """
    keys = [(session, purpose, env) for env in range(num_envs)]
    return [int(np.random.SeedSequence(seed, spawn_key=key).generate_state(1)[0]) >> 1 for key in keys]


class Session:
    """Blocks of the episodes that end, as they end; a function of the seed where environment and policy are.

    Args:
        environment: what is stepped.
        policy: what chooses.
        seed: of everything.
        number: of the session: a run that goes on must not repeat itself.
        first_episode: number of the first episode.
    """

    def __init__(
        self, environment: Environment, policy: PolicySpec, seed: int, number: int = 0, first_episode: int = 0
    ) -> None:
        n = environment.num_envs
        self._environment = environment
        self._policy = policy.policy(environment, seeds_of(seed, number, n, 1))
        self._seeds = seeds_of(seed, number, n, 0)
        self._episodes = Episodes(n)
        self._next_episode = first_episode

    @property
    def running_steps(self) -> int:
        """Steps of episodes that have not ended, and so are in no block yet."""
        return self._episodes.running_steps

    def blocks(self, budget: Budget) -> Iterator[Block | None]:
        """Blocks until the budget is spent; none where no episode ended meanwhile.

        Of a budget of steps the last block holds the episodes that were cut off, flagged truncated.

        Raises:
            CollectError: the environment failed, or the policy does not fit it.
        """
        rollout = Rollout(self._environment, self._seeds)
        steps_left, episodes_left = budget.steps, budget.episodes
        while steps_left != 0 and episodes_left != 0:
            length = _CHUNK_STEPS
            if steps_left is not None:
                length = min(length, max(1, steps_left // self._environment.num_envs))
            steps = rollout.run(self._policy, length)
            ended = self._episodes.add(steps, steps_left)
            if steps_left is not None:
                steps_left -= min(steps_left, int(steps.counts.sum()))
            if episodes_left is not None:
                ended = ended[:episodes_left]
                episodes_left -= len(ended)
            if steps_left == 0:
                ended += self._episodes.cut()
            yield self._joined(ended) if ended else None

    def _joined(self, episodes: list[Episode]) -> Block:
        block = join(episodes, self._next_episode)
        self._next_episode += len(episodes)
        return block
