"""Workers in actors: each does what it is ordered to, order after order, and is replaced when its process dies."""

import pickle
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any

from rlx.collector.rollout.steps import Steps
from rlx.collector.worker.deaths import Deaths
from rlx.collector.worker.exchange import Description, Exchange, Remainder, Room, Weights
from rlx.collector.worker.remote_worker import Describe, Detach, RemoteWorker, Share, Task
from rlx.collector.worker.step_worker import Equipment, Order
from rlx.engine.actor import Actor, ActorDiedError, Actors
from rlx.errors import CollectError


@dataclass(frozen=True, slots=True)
class Delivery:
    """The result of an order.

    Args:
        worker: its number.
        order: which; of another session than it was given with, if the worker has been replaced.
        steps: good until the worker is given as many more orders as there are slots.
    """

    worker: int
    order: Order
    steps: Steps


@dataclass(slots=True, eq=False)
class _Given:
    """An order that a worker has not answered yet, and the slot for its steps."""

    order: Order
    slot: int
    future: "Future[Any]"


@dataclass(slots=True)
class _Member:
    """A worker's process, and where it stands."""

    actor: Actor[Any, Any]
    exchange: Exchange | None = None
    given: deque[_Given] = field(default_factory=deque)
    orders: int = 0
    weights: Weights | None = None


class Crew:
    """Some workers, numbered from 0.

    Args:
        actors: what starts their processes.
        equipment: the config of each.
        length_of: says of a worker and its environment how many steps of it, at most, it will be ordered to make.
        slots: orders of a worker that may be open at once.
        weights: that the policy has.
        new_session: gives the number of a new session to a worker that replaces another.

    Attributes:
        descriptions: what each worker says of its environment.
        lost_episodes: that ran in workers that died.

    Raises:
        CollectError: a worker's environment or policy cannot be had.
        WorkerLostError: a worker died again and again.
        DiskFullError: no space is left for shared memory.
    """

    def __init__(
        self,
        actors: Actors,
        equipment: Sequence[Equipment],
        length_of: Callable[[int, Description], int],
        *,
        slots: int,
        weights: Weights,
        new_session: Callable[[], int],
    ) -> None:
        self._actors = actors
        self._equipment = equipment
        self._length_of = length_of
        self._slots = slots
        self._weights = weights
        self._new_session = new_session
        self._publishing = threading.Lock()  # weights may come from another thread than orders
        self._deaths = Deaths()
        self.lost_episodes = 0
        self._done: SimpleQueue[tuple[int, _Given]] = SimpleQueue()
        self._members = [_Member(self._start(worker)) for worker in range(len(equipment))]
        self.descriptions = [self._introduced(worker) for worker in range(len(equipment))]

    def give(self, worker: int, order: Order) -> None:
        """Give a worker another order."""
        member = self._members[worker]
        if len(member.given) == self._slots:
            raise ValueError(f"worker {worker} has {self._slots} open orders")
        slot, member.orders = member.orders % self._slots, member.orders + 1
        self._send(worker, order, slot)

    def open_orders(self, worker: int) -> int:
        """Return how many orders a worker has not answered."""
        return len(self._members[worker].given)

    def next(self) -> Delivery:
        """Wait for the first worker that has done what it was ordered to.

        Raises:
            CollectError: its environment or policy failed.
            WorkerLostError: it died again and again.
        """
        while True:
            worker, given = self._done.get()
            member = self._members[worker]
            if not member.given or member.given[0] is not given:
                continue  # an order that a process did not live to answer, given again to the one in its place
            try:
                answer: Steps | Remainder = given.future.result()
            except ActorDiedError as exc:
                self._replace(worker, exc)
                continue
            member.given.popleft()
            return Delivery(worker, given.order, _steps(member.exchange, given.slot, answer))

    def made_progress(self, worker: int) -> None:
        """Take note that steps of a worker are kept, even if it dies."""
        self._deaths.made_progress(worker)

    def halt(self, number: int) -> None:
        """Have workers stop what they do for orders up to this number, where they share memory."""
        for member in self._members:
            if member.exchange is not None:
                member.exchange.halt(number)

    def publish(self, weights: Weights) -> None:
        """Let workers have new weights, from their next order on."""
        with self._publishing:
            self._weights = weights
            for member in self._members:
                if member.exchange is not None:
                    member.exchange.put_weights(weights)

    def detach(self) -> None:
        """Make workers of this process continue with copies of the policy."""
        for member in self._members:
            member.actor.call(Detach()).result()

    def _start(self, worker: int) -> Actor[Any, Any]:
        equipment = self._equipment[worker]
        try:
            return self._actors.start(RemoteWorker, equipment)
        except (pickle.PicklingError, TypeError, AttributeError) as exc:
            raise CollectError(
                f"worker {worker}: environment {equipment.create_env_fn!r} or its policy cannot be sent: {exc}",
                hint="give a function that makes the environment",
            ) from exc

    def _introduced(self, worker: int) -> Description:
        """Return a worker's description of its environment, once it has started and shares memory if it can."""
        member = self._members[worker]
        while True:
            try:
                description: Description = member.actor.call(Describe()).result()
                if self._actors.shares_memory:
                    with self._publishing:
                        member.exchange = self._shared(worker, description)
            except ActorDiedError as exc:
                self._deaths.add(worker, exc, "before its first step")
                member.actor = self._start(worker)
            else:
                return description

    def _shared(self, worker: int, description: Description) -> Exchange:
        room = Room(description, self._length_of(worker, description), self._slots, len(self._weights.packed))
        exchange = Exchange(room)
        try:
            exchange.put_weights(self._weights)
            self._members[worker].actor.call(Share(exchange.path, room)).result()
        finally:
            exchange.unlink()
        return exchange

    def _send(self, worker: int, order: Order, slot: int) -> None:
        member = self._members[worker]
        is_new = member.exchange is None and member.weights is not self._weights
        member.weights = self._weights
        given = _Given(order, slot, member.actor.call(Task(order, slot, self._weights if is_new else None)))
        member.given.append(given)
        given.future.add_done_callback(lambda _: self._done.put((worker, given)))

    def _replace(self, worker: int, error: ActorDiedError) -> None:
        member = self._members[worker]
        lost = self.descriptions[worker].num_envs
        self.lost_episodes += lost
        self._deaths.add(worker, error, f"and its unfinished episodes are lost ({lost})")
        missing, member.given = member.given, deque()
        member.actor, member.exchange, member.weights = self._start(worker), None, None
        self._introduced(worker)
        first = missing.popleft()
        self._send(worker, replace(first.order, session=self._new_session()), first.slot)
        for given in missing:
            self._send(worker, given.order, given.slot)


def _steps(exchange: Exchange | None, slot: int, answer: Steps | Remainder) -> Steps:
    if not isinstance(answer, Remainder):
        return answer
    if exchange is None:
        raise RuntimeError("steps in shared memory of a worker that shares none")
    return exchange.get(slot, answer)
