"""One session of collecting: an environment, a policy and their seeds, as the episodes that end, as they end."""

from collections.abc import Sequence

import numpy as np

from rlx.collector.environment.protocol import Environment
from rlx.collector.policy.spec import PolicySpec, exploring
from rlx.collector.rollout.episodes import Episode, Episodes
from rlx.collector.rollout.infos import InfoKeys, Infos
from rlx.collector.rollout.layout import Layout, layout_of
from rlx.collector.rollout.loop import Rollout
from rlx.collector.rollout.steps import Steps
from rlx.seeding import env_seeds, seeded

# Long enough that a step costs little more than the environment takes; short enough that memory stays small.
CHUNK_STEPS = 64


class Session:
    """The episodes of some environments, as they end; a function of the seed where environment and policy are.

    Args:
        environment: the environment to step.
        policy: what chooses.
        seed: of everything.
        number: of the session: a resumed run must not repeat itself.
        first_env: number of the first environment, where others have the numbers before it.
        drop: names of what the policy writes that is not kept.
        info_keys: entries of ``info`` that are kept.
    """

    def __init__(
        self,
        environment: Environment,
        policy: PolicySpec,
        seed: int,
        number: int = 0,
        first_env: int = 0,
        *,
        drop: Sequence[str] = (),
        info_keys: InfoKeys = (),
    ) -> None:
        n = environment.num_envs
        self._environment = environment
        self._num_envs = n
        self._policy = policy.policy(environment, env_seeds(seed, number, n, 1, first_env))
        self._exploration = "DETERMINISTIC" if policy.deterministic else "RANDOM"
        # A policy's draws from global generators follow from the seed; random actions have generators of their own.
        self._is_seeded = not policy.is_random
        self._chunks = np.random.SeedSequence(seed, spawn_key=(number, 2, first_env))
        self._infos = Infos(n, info_keys)
        seeds = env_seeds(seed, number, n, 0, first_env)
        # Rewards as the environment gives them: how they are stored is decided when some have been seen.
        self._rollout = Rollout(environment, seeds, drop=drop, infos=self._infos, reward="float64")
        self._episodes = Episodes(n)
        self._looked: Steps | None = None

    @property
    def running_steps(self) -> int:
        """Steps of episodes that have not ended."""
        return self._episodes.running_steps

    def run(self, most_steps: int, *, is_last: bool) -> tuple[list[Episode], int]:
        """Go on for a while: the episodes that ended, and how many steps were made.

        Args:
            most_steps: an upper limit, and at least the number of environments unless they are the last steps.
            is_last: whether this session may end with them: steps of some environments may then be left out to meet the
                limit exactly.

        Raises:
            CollectError: the environment failed, or the policy does not fit it.
        """
        steps, self._looked = self._looked or self._chunk(most_steps), None
        ended = self._episodes.add(steps, most_steps if is_last else None)
        return ended, min(most_steps, int(steps.counts.sum()))

    def look(self, most_steps: int) -> Layout:
        """Return the layout of steps, from up to ``most_steps`` first ones, which are kept for the next ``run``.

        Raises:
            CollectError: the environment failed, or the policy does not fit it.
        """
        self._looked = self._chunk(most_steps)
        return layout_of(self._looked, self._environment, self._infos.seen)

    def _chunk(self, most_steps: int) -> Steps:
        length = min(CHUNK_STEPS, max(1, most_steps // self._num_envs))
        if not self._is_seeded:
            return self._rollout.run(self._policy, length)
        (chunk,) = self._chunks.spawn(1)
        with seeded(int(chunk.generate_state(1)[0])), exploring(self._exploration):
            return self._rollout.run(self._policy, length)

    def cut(self) -> list[Episode]:
        """Return the episodes that have not ended, flagged truncated where they are."""
        return self._episodes.cut()
