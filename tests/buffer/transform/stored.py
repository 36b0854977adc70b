"""Buffers filled by producers, wrapped or not, and what is stored in them as plain numbers."""

from collections.abc import Callable, Iterator

from hypothesis import strategies as st
from tensordict import TensorDictBase

from rlx.buffer.replay_buffer import ReplayBuffer
from rlx.buffer.storage.tensors import LazyTensorStorage
from tests.buffer import producers

PRODUCERS: list[tuple[Callable[[int, int], Iterator[TensorDictBase]], int]] = [
    (producers.single, 1),
    (producers.parallel, 2),
    (producers.parallel_workers, 3),
    (producers.asynchronous, 1),
    (producers.asynchronous_parallel, 2),
]


@st.composite
def buffers(draw: st.DrawFn) -> ReplayBuffer:
    """A buffer with steps of any producer, its ring wrapped or not."""
    produce, ndim = draw(st.sampled_from(PRODUCERS))
    buffer = ReplayBuffer(storage=LazyTensorStorage(8 * draw(st.integers(2, 12)), ndim=ndim))
    for batch in produce(draw(st.integers(1, 12)), draw(st.integers(1, 7))):
        buffer.extend(batch)
    return buffer


def stored(buffer: ReplayBuffer) -> set[int]:
    """The observations that are stored: 1000 * trajectory + step."""
    return {int(observation) for observation in buffer[:]["observation"].flatten().tolist()}


def is_last(observation: int) -> bool:
    """Whether the episode ends with this step."""
    trajectory, step = divmod(observation, 1000)
    return step == 3 + (trajectory * 7) % (producers.LONGEST - 3)


def onward(observation: int, known: set[int]) -> list[int]:
    """This step and those that follow it in its trajectory, as far as they are stored."""
    path = [observation]
    while not is_last(path[-1]) and path[-1] + 1 in known:
        path.append(path[-1] + 1)
    return path


def back(observation: int, known: set[int]) -> list[int]:
    """This step and those before it in its trajectory, oldest first, as far as they are stored."""
    path = [observation]
    while path[0] % 1000 and path[0] - 1 in known:
        path.insert(0, path[0] - 1)
    return path
