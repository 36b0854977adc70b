"""``SerialEnv`` and ``ParallelEnv``: several copies of an environment, under the names that TorchRL's users know."""

from collections.abc import Sequence
from functools import partial

from rlx.collector.environment.copies import MakeEnv, parallel, serial
from rlx.collector.environment.gym_env import GymEnv
from rlx.collector.environment.making import function_name, one
from rlx.collector.environment.protocol import Environment
from rlx.collector.environment.ted_env import TedEnv
from rlx.errors import CollectError

Makes = str | MakeEnv | Sequence[str | MakeEnv]


class _BatchedEnv(TedEnv):
    """Base of SerialEnv and ParallelEnv.

    Args:
        num_workers: how many copies.
        create_env_fn: a gymnasium id or a function that makes one copy; or a list of these, one for every copy.
    """

    def __init__(self, num_workers: int, create_env_fn: Makes) -> None:
        super().__init__()
        self.num_workers = num_workers
        self.create_env_fn = create_env_fn
        if num_workers < 1:
            raise CollectError(f"{self!r}: expected at least one worker")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.num_workers}, {self.create_env_fn!r})"

    def _makes(self) -> tuple[str, list[MakeEnv]]:
        """Return a name for messages, and a function for every copy."""
        sources = self.create_env_fn
        if isinstance(sources, str) or not isinstance(sources, Sequence):
            sources = [sources] * self.num_workers
        if len(sources) != self.num_workers:
            raise CollectError(f"create_env_fn has {len(sources)} functions: expected {self.num_workers}")
        functions = [GymEnv(source) if isinstance(source, str) else source for source in sources]
        return function_name(functions[0]), [partial(one, function) for function in functions]


class SerialEnv(_BatchedEnv):
    """Copies of an environment, stepped one after the other: for a collector, or by hand, see ``TedEnv``.

    Args:
        num_workers: how many copies.
        create_env_fn: a gymnasium id or a function that makes one copy; or a list of these, one for every copy.

    Raises:
        CollectError: no workers are configured.

    Example:
        >>> SerialEnv(2, "CartPole-v1").rollout(5).shape
        torch.Size([2, 5])
    """

    def open(self) -> Environment:
        """Return the copies."""
        name, makes = self._makes()
        return serial(makes, name, is_batched=True)


class ParallelEnv(_BatchedEnv):
    """Copies of an environment, each in a process of its own, with observations in shared memory; else as SerialEnv.

    Args:
        num_workers: how many copies.
        create_env_fn: a gymnasium id or a function that makes one copy; or a list of these, one for every copy.
        mp_start_method: how processes are started; ``fork`` only where this process has no threads.

    Raises:
        CollectError: no workers are configured.
    """

    def __init__(self, num_workers: int, create_env_fn: Makes, mp_start_method: str = "spawn") -> None:
        super().__init__(num_workers, create_env_fn)
        self.mp_start_method = mp_start_method

    def open(self) -> Environment:
        """Return the copies, whose processes have started."""
        name, makes = self._makes()
        return parallel(makes, name, self.mp_start_method)
