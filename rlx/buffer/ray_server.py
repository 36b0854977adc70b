"""The server of ``RayReplayBuffer``: tables that coroutines of one event loop write and sample, and its messages."""

import asyncio
import io
import logging
import os
import pickle
import secrets
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from copy import deepcopy
from copyreg import dispatch_table
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zstandard
from tensordict import MemoryMappedTensor, TensorDictBase

from rlx.buffer.batch import with_generation
from rlx.buffer.rate_limiter import RateLimiter
from rlx.buffer.replay_buffer import ReplayBuffer
from rlx.buffer.run_checkpoint import Checkpoint
from rlx.buffer.sampler.prioritized import PrioritizedSampler
from rlx.buffer.storage.ring import RingStorage
from rlx.engine.actor import error_answer
from rlx.engine.ray_cluster import settle_in
from rlx.errors import RateLimitError
from rlx.store.native.memory import writable

logger = logging.getLogger(__name__)
Packed = tuple[bytes, list[Any]]
_MIN_BYTES = 1024  # smaller tensors are not compressed
_KEPT_CLIENTS = 1000
_RESETS = frozenset({"empty", "loads", "load_state_dict"})


class _Entry:
    """How far the latest ``extend`` of a client is: rows of the steps that are written."""

    def __init__(self, number: int, rows: list[torch.Tensor]) -> None:
        self.number, self.rows = number, rows
        self.task: asyncio.Task[torch.Tensor] | None = None


class _Table:
    """A buffer and its rate limiter, for coroutines of one event loop."""

    def __init__(self, name: str, buffer: ReplayBuffer, limiter: RateLimiter) -> None:
        self.name, self.buffer, self.limiter = name, buffer, limiter
        limiter.reset(len(buffer))
        self.turn, self.writing, self._changed = asyncio.Lock(), asyncio.Lock(), asyncio.Condition()
        self.resets = 0

    def reset(self) -> None:
        """Count the steps of a buffer that was emptied or loaded as just written."""
        self.limiter.reset(len(self.buffer))
        self.resets += 1

    async def changed(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def admitted(self, may: Callable[[int, int], int], count: int, until: float | None) -> int:
        """Return how many of ``count`` steps the rate limiter admits, 1 or more.

        Raises:
            TimeoutError: none until then.
        """
        if room := may(len(self.buffer), count):
            return room
        async with asyncio.timeout_at(until), self._changed:
            return int(await self._changed.wait_for(lambda: may(len(self.buffer), count)))

    async def extend(self, entry: _Entry, steps: Any, until: float | None) -> torch.Tensor:
        """Write the steps that the entry lacks, as the limiter admits them; return all rows."""
        buffer, limiter = self.buffer, self.limiter
        dim, total, lanes = _extent(steps, buffer)
        done = sum(rows.shape[-1] for rows in entry.rows)
        try:
            async with asyncio.timeout_at(until):
                await self.turn.acquire()
            try:
                while done < total or not entry.rows:
                    count = await self.admitted(limiter.may_insert, max(1, total - done) * lanes, until)
                    count = min(total - done, max(1, count // lanes))
                    part = steps if count == total else _part(steps, dim, done, done + count)
                    async with self.writing:
                        before = buffer.write_count
                        rows = buffer.extend(part)  # in this thread: others would wait for each other's turns
                        entry.rows.append(rows)
                        limiter.inserts += buffer.write_count - before
                    done += count
                    await self.changed()
            finally:
                self.turn.release()
        except TimeoutError as exc:
            raise self._blocked(f"{done * lanes} of {total * lanes} steps written") from exc
        return torch.cat(entry.rows, -1)

    async def sample(self, size: int | None, until: float | None) -> tuple[Any, dict[Any, Any], bool]:
        granted, resets, count = 0, self.resets, (self.buffer.batch_size if size is None else size) or 0
        try:
            while granted < count:
                more = await self.admitted(self.limiter.may_sample, count - granted, until)
                if resets != self.resets:  # which took back what was admitted before
                    granted, resets = 0, self.resets
                self.limiter.samples += more
                granted += more
                await self.changed()
            return self.buffer.drawn(size)
        except BaseException as exc:
            if resets == self.resets:
                self.limiter.samples -= granted
            await self.changed()
            if isinstance(exc, TimeoutError) and not isinstance(exc, RateLimitError):
                raise self._blocked(f"{granted} of {count} steps admitted to a batch") from exc
            raise

    def _blocked(self, done: str) -> RateLimitError:
        limiter = self.limiter
        state = f"{len(self.buffer)} steps stored, {limiter.inserts} inserts, {limiter.samples} samples"
        return RateLimitError(
            f"table {self.name!r}: timed out with {done}: {state}, {limiter}",
            hint="give a longer timeout, or a larger error_buffer",
        )


class Server:
    """The actor: every method of a client is a message to ``answer``."""

    def __init__(
        self, made_of: bytes, directory: str, path: list[str], checkpoint: str | None, every: float | None
    ) -> None:
        self._life, self._error = uuid.uuid4().hex, b""
        self._every, self._saved_at, self._saves = inf if every is None else every, time.monotonic(), 0
        self._saving = asyncio.Lock()
        self._entries: dict[str, _Entry] = {}
        self._saved: Checkpoint | None = None
        try:
            settle_in(directory, path)
            made = pickle.loads(made_of)
            self._tables = {name: _Table(name, *parts) for name, parts in made.items()}
            if checkpoint is not None:
                self._restore(checkpoint)
            for table in self._tables.values():
                if isinstance(storage := table.buffer.storage, RingStorage):
                    # Clients may have batches of a server that was killed, whose steps this one has never had.
                    storage.skip_generations(secrets.randbits(31) << 31)
        except Exception as exc:  # the answer to every message
            self._error = error_answer(exc)

    def _restore(self, path: str) -> None:
        buffers = {f"buffer.{name}": table.buffer for name, table in self._tables.items()}
        limiters = {f"limiter.{name}": table.limiter for name, table in self._tables.items()}
        self._saved = Checkpoint(path, **buffers, **limiters)
        self._saves = self._saved.restore()
        for client, (number, rows) in self._saved.values.get("extends", {}).items():
            self._entries[client] = _Entry(number, list(rows))

    async def answer(self, method: str, message: Packed, timeout: float | None, is_far: bool) -> Packed | bytes:
        """Return the packed result of a method, or its error."""
        if self._error:
            return self._error
        until = None if timeout is None else asyncio.get_running_loop().time() + timeout
        try:
            result = await getattr(self, f"_{method}")(until, *unpacked(message))
            return await asyncio.to_thread(packed, result, compress=True) if is_far else packed(result)
        except Exception as exc:  # it is the client's
            return error_answer(exc)

    async def pid(self) -> int:
        """Return the process."""
        return os.getpid()

    async def _about(self, _: float | None) -> tuple[str, dict[str, Any]]:
        import ray  # an extra

        return ray.get_runtime_context().get_node_id(), {
            name: {
                "storage": {"ndim": table.buffer.storage.ndim, "max_size": table.buffer.storage.max_size},
                "batch_size": table.buffer.batch_size,
                "priority_key": getattr(table.buffer, "priority_key", None),
                "is_prioritized": isinstance(table.buffer.sampler, PrioritizedSampler),
            }
            for name, table in self._tables.items()
        }

    async def _extend(self, until: float | None, name: str, client: str, number: int, steps: Any) -> tuple[Any, ...]:
        entry = self._entries.pop(client, None)
        if entry is None or entry.number != number:
            entry = _Entry(number, [])
        self._entries[client] = entry  # the latest are at the end
        if len(self._entries) > _KEPT_CLIENTS:
            del self._entries[next(iter(self._entries))]
        table = self._tables[name]
        if table.buffer.storage.steps_may_differ:  # it would keep the shared memory that they are in
            steps = deepcopy(steps)
        if entry.task is None:  # else a connection was lost, and this is the same message again
            entry.task = asyncio.create_task(table.extend(entry, steps, until))
        rows = await asyncio.shield(entry.task)
        is_due = time.monotonic() - self._saved_at > self._every
        if self._saved is not None and is_due and not self._saving.locked():
            try:
                await self._save()
            except Exception as exc:  # the steps are written: their rows are the client's
                logger.warning("the checkpoint of the replay buffer failed, and will be tried again: %s", exc)
        return rows, rows.numel(), self._life, table.buffer.write_count

    async def _sample(self, until: float | None, name: str, size: int | None) -> tuple[Any, ...]:
        table = self._tables[name]
        return *await table.sample(size, until), self._life, table.buffer.write_count

    async def _prioritize(self, _: float | None, name: str, rows: Any, priority: Any, generation: Any) -> None:
        self._tables[name].buffer.update_priority(rows, priority, generation)

    async def _call(self, _: float | None, name: str, method: str, *arguments: Any) -> Any:
        table = self._tables[name]
        async with table.writing:  # a write in the event loop must not wait for the buffer's own lock
            result = await asyncio.to_thread(getattr(table.buffer, method), *arguments)
            if method in _RESETS:
                table.reset()
        await table.changed()
        return result

    async def _save_dataset(self, _: float | None, name: str, path: Path, options: dict[str, Any]) -> None:
        table = self._tables[name]
        async with table.writing:
            frozen = await asyncio.to_thread(table.buffer.frozen)
            if frozen is table.buffer:
                await asyncio.to_thread(frozen.save_dataset, path, **options)
        if frozen is not table.buffer:
            await asyncio.to_thread(frozen.save_dataset, path, **options)

    async def _stats(self, _: float | None, name: str) -> dict[str, int]:
        table = self._tables[name]
        counts = {"size": len(table.buffer), "write_count": table.buffer.write_count, **table.limiter.state_dict()}
        return {**counts, "stale_priorities": table.buffer.stale_priorities}

    async def _save(self, then: Callable[[Checkpoint], None] | None = None) -> None:
        if self._saved is None:
            raise ValueError("the replay buffer was made without checkpoint")
        async with self._saving:  # to the end of the wait: two threads would forget each other's writers
            async with AsyncExitStack() as stack:
                self._saved_at = time.monotonic()
                for table in self._tables.values():
                    await stack.enter_async_context(table.writing)
                extends = {client: [entry.number, entry.rows] for client, entry in self._entries.items()}
                self._saves += 1
                await asyncio.to_thread(self._saved.save, self._saves, extends=extends)
            if then is not None:
                await asyncio.to_thread(then, self._saved)

    async def _checkpoint(self, _: float | None) -> None:
        await self._save(Checkpoint.wait)

    async def _close(self, _: float | None) -> None:
        if self._saved is not None:
            await self._save(Checkpoint.close)


def _extent(steps: Any, buffer: ReplayBuffer) -> tuple[int, int, int]:
    """Return which dimension of steps is time, its length, and how many steps each time has."""
    ndim = buffer.storage.ndim
    if isinstance(steps, list | tuple):
        return 0, len(steps), max(1, steps[0].shape[: ndim - 1].numel()) if ndim > 1 and steps else 1
    if isinstance(steps, Mapping) and not isinstance(steps, TensorDictBase):
        return _extent(next(iter(steps.values())), buffer) if steps else (0, 1, 1)
    shape, dim = steps.shape[:ndim], (ndim - 1 if buffer.dim_extend is None else buffer.dim_extend % ndim)
    if len(shape) < ndim or not shape.numel():
        return 0, 0, 1  # the buffer says what is wrong with it, if anything
    return dim, shape[dim], shape.numel() // shape[dim]


def _part(steps: Any, dim: int, start: int, stop: int) -> Any:
    if isinstance(steps, Mapping) and not isinstance(steps, TensorDictBase):
        return {key: _part(value, dim, start, stop) for key, value in steps.items()}
    rows = slice(start, stop)
    return steps[rows] if isinstance(steps, list | tuple) else steps[(slice(None),) * dim + (rows,)]


# ---- messages: tensors go beside the pickle, so that Ray keeps them in shared memory as they are


def packed(value: Any, *, compress: bool = False) -> Packed:
    """Return a pickle, and the bytes of its tensors, compressed or as they are in memory."""
    file, parts = io.BytesIO(), list[Any]()
    pickler = pickle.Pickler(file, protocol=5, buffer_callback=lambda part: parts.append(np.asarray(part.raw())))
    pickler.dispatch_table = _REDUCTIONS
    pickler.dump(value)
    if compress:
        # Faster than any network: 7 GB/s on one core for Atari's frames, which become 170 times smaller.
        codec = zstandard.ZstdCompressor(level=1)
        parts = [codec.compress(part) if part.nbytes >= _MIN_BYTES else part for part in parts]
    return file.getvalue(), parts


def unpacked(message: Packed) -> Any:
    """Unpack a pickle; uncompressed tensors are not copied."""
    head, parts = message
    return pickle.loads(head, buffers=[_whole(part) if isinstance(part, bytes) else part for part in parts])


def _whole(frame: bytes) -> bytearray:
    return bytearray(zstandard.ZstdDecompressor().decompress(frame))


def _reduced(tensor: torch.Tensor) -> tuple[Any, ...]:
    whole = tensor.detach().cpu().contiguous()
    flat = whole.as_strided((whole.numel(),), (1,)).view(torch.uint8).numpy()  # one element may have any stride
    part = pickle.PickleBuffer(flat.data) if flat.size else b""
    return _tensor, (part, tensor.dtype, tensor.shape, getattr(tensor, "generation", None))


_REDUCTIONS = {**dispatch_table, torch.Tensor: _reduced, torch.nn.Parameter: _reduced, MemoryMappedTensor: _reduced}


def _tensor(part: Any, dtype: torch.dtype, shape: torch.Size, generation: torch.Tensor | None) -> torch.Tensor:
    if len(part):
        array = writable(np.frombuffer(part, np.uint8))  # Ray calls it read-only, but a batch has this client only
        tensor = torch.from_numpy(array).view(dtype).reshape(shape)
    else:
        tensor = torch.empty(shape, dtype=dtype)
    return with_generation(tensor, generation)
