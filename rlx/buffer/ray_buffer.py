"""``RayReplayBuffer``: buffers in a process of a Ray cluster, which other processes write and sample."""

import logging
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Self, Unpack

import cloudpickle
import torch
from tensordict import TensorDictBase

from rlx.buffer.protocol import Rows
from rlx.buffer.rate_limiter import MinSize, RateLimiter
from rlx.buffer.ray_server import Server, packed, unpacked
from rlx.buffer.replay_buffer import BufferOptions, ReplayBuffer
from rlx.buffer.tensordict_replay_buffer import named_priorities
from rlx.closing import Closing
from rlx.engine.actor import opened
from rlx.engine.ray_cluster import ray_cluster, result
from rlx.errors import EngineError

logger = logging.getLogger(__name__)
_NAMESPACE = "rlx"
_RESTART_S = 60.0
_LOOK_S = 0.05
_PARTS = frozenset({"storage", "sampler", "writer"})


class RayReplayBuffer(Closing):
    """Replay buffers in a process of a Ray cluster: any process of the cluster writes and samples them.

    It has the methods of ``ReplayBuffer`` that need no access to its parts, so collectors extend it and learners sample
    it unchanged. It can be pickled, and is then another client of the same buffers. On the machine of the server steps
    go through Ray's shared memory, and a batch is not copied from there; to others they are compressed.

    If the server is killed, Ray restarts it from the last checkpoint; calls wait for it.

    Args:
        tables: a buffer of any class, storage, sampler and transforms; or several by name. Copies of them are served.
            By default, one of ``replay_buffer_cls`` made with ``options``.
        rate_limiter: rule for writing and sampling; or several, by table. By default a table can be sampled once it has
            a step.
        timeout: seconds for which a rate limiter may block a call; no limit by default.
        name: name by which ``connect`` finds the server from other programs.
        checkpoint: directory on the server's machine that the tables are restored from and ``checkpoint`` writes.
        checkpoint_every: seconds after which writing steps begins a new checkpoint; never by default.
        compress: whether to compress steps that are sent; by default between machines only.
        address: address of the cluster; by default the connected one, or a new one on this machine.
        ray_init_config: further arguments of ``ray.init``.
        remote_config: resources of the server, as ``ray.remote`` takes them; no CPU is reserved by default.
        replay_buffer_cls: class of the only table.
        options: arguments of ``replay_buffer_cls``; storage, sampler and writer may be functions that return them.

    Raises:
        MissingExtraError: Ray is not installed.
        EngineError: no cluster answers, or the server cannot start.

    Example:
        >>> table = rlx.ReplayBuffer(storage=rlx.buffer.LazyTensorStorage(1000), batch_size=32)
        >>> with rlx.RayReplayBuffer(table, rate_limiter=rlx.buffer.MinSize(32)) as buffer:  # doctest: +SKIP
        ...     rows = buffer.extend(rlx.open("cartpole")[:100])
        ...     batch = buffer.sample()
    """

    def __init__(
        self,
        tables: ReplayBuffer | Mapping[str, ReplayBuffer] | None = None,
        *,
        rate_limiter: RateLimiter | Mapping[str, RateLimiter] | None = None,
        timeout: float | None = None,
        name: str | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: float | None = None,
        compress: bool | None = None,
        address: str | None = None,
        ray_init_config: Mapping[str, Any] | None = None,
        remote_config: Mapping[str, Any] | None = None,
        replay_buffer_cls: Callable[..., ReplayBuffer] = ReplayBuffer,
        **options: Unpack[BufferOptions],
    ) -> None:
        if tables is None:
            parts = {key: value() if callable(value) and key in _PARTS else value for key, value in options.items()}
            tables = replay_buffer_cls(**parts)
        elif options:
            raise TypeError(f"{', '.join(options)}: give them to the buffer of the table")
        named = dict(tables) if isinstance(tables, Mapping) else {"replay": tables}
        limits = dict.fromkeys(named, rate_limiter) if isinstance(rate_limiter, RateLimiter) else rate_limiter or {}
        if unknown := [key for key in limits if key not in named]:
            raise ValueError(f"rate_limiter of {', '.join(unknown)}: expected tables of {', '.join(named)}")
        for key, limiter in limits.items():
            if limiter.min_size > (room := named[key].storage.max_size):
                raise ValueError(f"min_size {limiter.min_size} of table {key!r}: its storage has room for {room} steps")
        made_of = cloudpickle.dumps({key: (table, limits.get(key) or MinSize(1)) for key, table in named.items()})
        where = None if checkpoint is None else str(Path(checkpoint).absolute())
        stack = ExitStack()
        with stack:
            ray = stack.enter_context(ray_cluster(address, config=ray_init_config))
            actor = {"max_restarts": -1, "num_cpus": 0, **(remote_config or {}), "max_task_retries": 0}
            if name is not None:
                actor |= {"name": name, "namespace": _NAMESPACE}
            remote = ray.remote(**actor)(Server)
            try:
                server = remote.remote(made_of, os.getcwd(), sys.path, where, checkpoint_every)
            except ValueError as exc:
                raise EngineError(f"the Ray cluster already has {name!r}", hint="RayReplayBuffer.connect") from exc
            self._join(server, timeout, compress, next(iter(named)))
            stack.callback(self._end)
            self._stack = stack.pop_all()

    @classmethod
    def connect(cls, name: str, *, address: str = "auto", timeout: float | None = None) -> Self:
        """Return a client of the server of this name, which another program started.

        Args:
            name: the ``name`` of the server.
            address: address of its cluster.
            timeout: as in ``RayReplayBuffer``.

        Raises:
            EngineError: no cluster, or no server of this name answers.
        """
        with ExitStack() as stack:
            ray = stack.enter_context(ray_cluster(address))
            try:
                server = ray.get_actor(name, namespace=_NAMESPACE)
            except ValueError as exc:
                raise EngineError(f"the Ray cluster has no replay buffer {name!r}") from exc
            made = cls.__new__(cls)
            made._join(server, timeout, None, None)
            made._stack = stack.pop_all()
        return made

    def _join(self, server: Any, timeout: float | None, compress: bool | None, table: str | None) -> None:
        self._server, self.timeout, self._compress, self._home = server, timeout, compress, ""
        self._arrive()
        self._home, self._tables = self._ask("about")
        self._arrive()
        self.table_name: str = next(iter(self._tables)) if table is None else table

    def _arrive(self) -> None:
        import ray  # an extra

        self._ray: ModuleType = ray
        self._is_far = ray.get_runtime_context().get_node_id() != self._home
        if self._compress is not None:
            self._is_far = self._compress
        self._stack = ExitStack()
        self._lock = threading.Lock()
        self._id, self._number = uuid.uuid4().hex, 0
        self._seen: tuple[str, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        shared = ("_server", "timeout", "_compress", "_home", "_tables", "table_name")
        return {key: self.__dict__[key] for key in shared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._arrive()

    def table(self, name: str) -> Self:
        """Return a client of another table.

        Raises:
            KeyError: no such table.
        """
        if name not in self._tables:
            raise KeyError(f"table {name!r}: expected one of {', '.join(self._tables)}")
        other = type(self).__new__(type(self))
        other.__setstate__({**self.__getstate__(), "table_name": name})
        return other

    def _ask(self, method: str, *arguments: Any, timeout: float | None = None) -> Any:
        message = packed(arguments, compress=self._is_far)
        until = time.monotonic() + _RESTART_S
        while True:
            try:
                answer = result(self._ray, self._server.answer.remote(method, message, timeout, self._is_far))
                break
            except self._ray.exceptions.ActorUnavailableError as exc:
                if time.monotonic() > until:
                    raise EngineError(f"the server of the replay buffer did not restart in {_RESTART_S:g} s") from exc
                time.sleep(_LOOK_S)
            except self._ray.exceptions.RayActorError as exc:
                raise EngineError(f"the server of the replay buffer has ended: {exc}") from exc
        return opened(answer) if isinstance(answer, bytes) else unpacked(answer)

    def _note(self, life: str, write_count: int, written: int = 0) -> None:
        """Log how many steps a restart of the server has lost."""
        if self._seen is not None and self._seen[0] != life and (lost := self._seen[1] + written - write_count) > 0:
            logger.warning(
                "table %r: its server was killed and restarted; %d steps written after its last checkpoint are lost",
                self.table_name,
                lost,
            )
        self._seen = life, write_count

    def extend(self, steps: Any, *, timeout: float | None = None) -> torch.Tensor:
        """Write steps and return their rows, as ``ReplayBuffer.extend`` does; wait for the rate limiter.

        Steps are written once, even if the server is killed meanwhile.

        Args:
            steps: as in ``ReplayBuffer.extend``; on the CPU on the server's side.
            timeout: replaces the client's.

        Raises:
            RateLimitError: not all steps could be written in time; the message says how many were.
            SchemaMismatchError: as in ``ReplayBuffer.extend``.
            EngineError: the server has ended.
        """
        steps = _on_cpu(steps)
        limit = self.timeout if timeout is None else timeout
        with self._lock:
            self._number += 1
            key = self._id, self._number
            rows, count, life, write_count = self._ask("extend", self.table_name, *key, steps, timeout=limit)
            self._note(life, write_count, count)
        return torch.as_tensor(rows)

    def add(self, step: Any, *, timeout: float | None = None) -> int | torch.Tensor:
        """Write one step; return its row, or rows in a storage of more dimensions."""
        rows = self.extend([step], timeout=timeout).squeeze(-1)
        return rows if rows.ndim else int(rows)

    def sample(self, batch_size: int | None = None, return_info: bool = False, *, timeout: float | None = None) -> Any:
        """Return a batch, as ``ReplayBuffer.sample`` does; wait for the rate limiter.

        Raises:
            RateLimitError: not enough steps could be sampled in time.
            SamplingError: as in ``ReplayBuffer.sample``.
            EngineError: the server has ended.
        """
        batch, info, _ = self._drawn(batch_size, timeout)
        return (batch, info) if return_info else batch

    def _drawn(self, batch_size: int | None, timeout: float | None = None) -> tuple[Any, dict[Any, Any], bool]:
        limit = self.timeout if timeout is None else timeout
        batch, info, ends, *seen = self._ask("sample", self.table_name, batch_size, timeout=limit)
        self._note(*seen)
        return batch, info, ends

    def __iter__(self) -> Iterator[Any]:
        """Yield batches without end; of a sampler without replacement, those of one epoch."""
        ends = False
        while not ends:
            batch, _, ends = self._drawn(None)
            yield batch

    def update_priority(
        self,
        rows: Rows | torch.Tensor | int,
        priority: torch.Tensor | float,
        generation: Rows | torch.Tensor | None = None,
    ) -> None:
        """Update the priorities of rows, as ``ReplayBuffer.update_priority`` does.

        Those of steps that were overwritten since they were drawn are left out, and counted by ``stats``.
        """
        self._ask("prioritize", self.table_name, torch.as_tensor(rows), torch.as_tensor(priority).cpu(), generation)

    def update_tensordict_priority(self, batch: TensorDictBase) -> None:
        """Update priorities from a batch, as ``TensorDictReplayBuffer`` does."""
        about = self._tables[self.table_name]
        told = named_priorities(batch, about["priority_key"], required=about["is_prioritized"])
        if told is not None:
            self.update_priority(*told)

    def save_dataset(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Write the stored steps as a dataset, as ``ReplayBuffer.save_dataset`` does, on the server's machine.

        Writing and sampling continue: steps in memory are copied first.
        """
        self._ask("save_dataset", self.table_name, Path(path).absolute(), options)

    def checkpoint(self) -> None:
        """Write a checkpoint of all tables; return when it is on disk.

        Raises:
            ValueError: the server was started without ``checkpoint``.
        """
        self._ask("checkpoint")

    def stats(self) -> dict[str, int]:
        """Return ``size``, ``write_count``, ``inserts``, ``samples`` and ``stale_priorities``."""
        found: dict[str, int] = self._ask("stats", self.table_name)
        return found

    def _call(self, method: str, *arguments: Any) -> Any:
        return self._ask("call", self.table_name, method, *arguments)

    def __len__(self) -> int:
        return int(self._call("__len__"))

    def __getitem__(self, index: Any) -> Any:
        return self._call("__getitem__", index)

    def __setitem__(self, index: Any, steps: Any) -> None:
        self._call("__setitem__", index, steps)

    def empty(self) -> None:
        """Remove all steps; the rate limiter counts from the start."""
        self._call("empty")

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint of this table that ``ReplayBuffer.loads`` reads, on the server's machine."""
        self._call("dumps", Path(path).absolute())

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Load a checkpoint of ``dumps`` into this table; the rate limiter counts its steps as just written."""
        self._call("loads", Path(path).absolute())

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this table, which ``ReplayBuffer.load_state_dict`` takes."""
        found: dict[str, Any] = self._call("state_dict")
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of ``state_dict``; the rate limiter counts its steps as just written."""
        self._call("load_state_dict", state)

    @property
    def write_count(self) -> int:
        """Number of steps written, including overwritten ones."""
        return self.stats()["write_count"]

    @property
    def batch_size(self) -> int | None:
        """Steps in a batch, unless ``sample`` overrides it."""
        size: int | None = self._tables[self.table_name]["batch_size"]
        return size

    @property
    def storage(self) -> SimpleNamespace:
        """``ndim`` and ``max_size`` of the storage."""
        return SimpleNamespace(**self._tables[self.table_name]["storage"])

    def shutdown(self) -> None:
        """Disconnect; the client that started the server also stops it, after a last checkpoint if it writes any."""
        stack, self._stack = self._stack, ExitStack()
        stack.close()

    dump = save = dumps
    load = loads

    def close(self) -> None:
        """Call ``shutdown``."""
        self.shutdown()

    def _end(self) -> None:
        try:
            self._ask("close")
        finally:
            self._ray.kill(self._server)


def _on_cpu(steps: Any) -> Any:
    """Return steps in the memory of the CPU: the server may have no such device."""
    if hasattr(steps, "cpu"):  # a TensorDict, a tensorclass or a tensor
        return steps.cpu()
    if isinstance(steps, Mapping):
        return {key: _on_cpu(part) for key, part in steps.items()}
    return [_on_cpu(part) for part in steps] if isinstance(steps, list) else steps
