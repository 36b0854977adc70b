"""Batches a second of ``rlx.loader`` over a dataset at rest, beside TorchRL and the decoder alone, page cache warm.

python -m scripts.bench.loader [--game Pong] [--rows 100000] [--rounds 15] [--threads 1] [--json]

Rows: 128 random transitions, 2 slices of 64, and DQN's batch of 32 stacks of 4 with next stacks, each by a loader that
reads in the thread that iterates, by one that reads ahead, and by TorchRL's buffer, next to the decoder alone; DQN's
batches a second from one core, and from a process on each of two; how much faster two threads are than one; and how
long a learner that takes 2 ms a batch waits for the loader.
"""

import argparse
import itertools
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import rlx
from rlx.buffer import FrameStack
from rlx.buffer.loader import Loader
from rlx.store.chunk_codec import ZstdChunks
from rlx.store.dataset import Dataset
from rlx.store.native.gather import FileTable
from rlx.store.native.kernel import Kernel, kernel
from rlx.store.shard_file import ShardFileReader
from scripts.bench import peer, timing
from scripts.bench.play import GAMES
from scripts.bench.run import Run, converted_run

WARMUP, REPEATS, LEARNER_S, BATCHES = 2, 10, 0.002, 200
STACK, DQN_BATCH, DQN_BATCHES = 4, 32, 1000
DECODED, TRANSITIONS = 100, 128
Chunks = Sequence[bytes]
Frames = NDArray[np.uint8]
Decode = Callable[[int], object]
KINDS: Mapping[str, dict[str, Any]] = {
    "random": {"batch_size": 128},
    "slices_2x64": {"batch_size": 128, "slice_len": 64},
    "dqn_32_stacks": {"batch_size": DQN_BATCH, "transform": FrameStack(STACK)},
}
PEERS: Mapping[str, Callable[[Path], Any]] = {
    "random": lambda root: peer.open_replay(root, 128),
    "slices_2x64": lambda root: peer.open_replay(root, 128, num_slices=2),
    "dqn_32_stacks": lambda root: peer.open_stacking(root, DQN_BATCH, STACK),
}


def endless(loader: Loader) -> Iterator[Any]:
    """Yields the batches of one epoch after the other."""
    while True:
        yield from loader


def measure(run: Run, kind: str, rounds: int) -> dict[str, Any]:
    """Milliseconds a batch."""
    dataset = rlx.open(run.ours / peer.RUN_ID)
    plain = endless(Loader(dataset, prefetch=0, **KINDS[kind]))
    ahead = endless(Loader(dataset, prefetch=2, **KINDS[kind]))
    decode = decoder(dataset, kind)
    subjects: list[Callable[[int], object]] = [lambda _: next(plain), lambda _: next(ahead), decode]
    if run.theirs:
        replay = PEERS[kind](run.theirs)
        subjects.append(lambda _: replay.sample())
    taken = timing.interleaved(WARMUP + rounds, *subjects, repeats=REPEATS)
    alone, prefetched, decoding, *theirs = [seconds[WARMUP:] for seconds in taken]
    their = theirs[0] if theirs else None
    return {
        "rlx_ms": timing.median_ms(alone),
        "rlx_ahead_ms": timing.median_ms(prefetched),
        "decoder_ms": timing.median_ms(decoding),
        "over_decoder": round(statistics.median(alone) / statistics.median(decoding), 2),
        "torchrl_ms": timing.median_ms(their),
        "batches_per_s": round(1 / statistics.median(prefetched)),
        **timing.times_faster(alone, their),
    }


def _frames(kind: str, dataset: Dataset, rng: np.random.Generator) -> Any:
    """Return [n] rows of the observations that a batch decodes, of the first shard."""
    rows = dataset.shard_records[0].steps
    if kind == "random":
        return np.concatenate([first + np.arange(2) for first in rng.integers(rows, size=128)])
    if kind == "slices_2x64":
        return np.concatenate([first + np.arange(65) for first in rng.integers(rows - 65, size=2)])
    return np.concatenate([first + np.arange(STACK + 1) for first in rng.integers(rows - STACK, size=DQN_BATCH)])


def chunks_of(dataset: Dataset) -> tuple[ShardFileReader, ZstdChunks]:
    """The compressed observations of the first shard, and their codec."""
    reader = dataset.steps._shards.array(0, "observation")
    if not isinstance(reader, ShardFileReader) or not isinstance(reader.codec, ZstdChunks):
        raise TypeError("the benchmark needs zstd frames")
    return reader, reader.codec


def random_batches(reader: ShardFileReader, seed: int) -> list[Chunks]:
    """The chunks of 128 random transitions, a batch each. All differ, or the processor's cache would have them."""
    rng = np.random.default_rng(seed)
    first = rng.integers(len(reader.index) - 1, size=(DECODED, TRANSITIONS))
    entries = reader.index[np.concatenate((first, first + 1), 1)].tolist()
    return [[bytes(reader.file[start : start + size]) for start, size in batch] for batch in entries]


def decoder(dataset: Dataset, kind: str) -> Callable[[int], None]:
    """Return what decodes the frames of one batch after the other into memory that is there, and does nothing else.

    The batches differ: the same frames again and again are decoded out of the processor's cache, in half of the time.
    """
    reader, codec = chunks_of(dataset)
    rng = np.random.default_rng(0)
    batches = [reader.index[_frames(kind, dataset, rng)].tolist() for _ in range(DECODED)]
    joined = [b"".join(bytes(reader.file[start : start + size]) for start, size in batch) for batch in batches]
    out = np.empty((len(batches[0]), codec.chunk_bytes), np.uint8).reshape(-1)
    decompressor = codec._decompressor

    def decode(number: int) -> None:
        with decompressor.stream_reader(joined[number % DECODED], read_across_frames=True) as frame:
            frame.readinto(out)

    return decode


class Places:
    """The chunks of each batch after each other, where each begins there, and its bytes."""

    def __init__(self, batches: Sequence[Chunks]) -> None:
        self.joined = [b"".join(batch) for batch in batches]
        self.size = [np.array([len(chunk) for chunk in batch], np.int64) for batch in batches]
        self.start = [np.cumsum(size) - size for size in self.size]


def by_kernel(codec: ZstdChunks, batches: Sequence[Chunks], out: Frames, compiled: Kernel) -> Decode:
    """One call of ``frames.c``."""
    chunks, table = Places(batches), FileTable(len(batches), codec.chunk_bytes)
    for number, joined in enumerate(chunks.joined):
        table.add(number, memoryview(joined), 0, codec.digested_for(compiled))
    files = [np.full(len(out), number) for number in range(len(batches))]
    return lambda number: compiled.decode(table, files[number], chunks.start[number], chunks.size[number], out)


def in_threads(dataset: Dataset, seed: int) -> Decode:
    """Return what decodes the frames of random batches without the interpreter lock."""
    (reader, codec), compiled = chunks_of(dataset), kernel()
    if compiled is None:
        raise TypeError("the benchmark needs the kernel")
    out = np.empty((2 * TRANSITIONS, codec.chunk_bytes), np.uint8)
    return over_batches(by_kernel(codec, random_batches(reader, seed), out, compiled))


def over_batches(decode: Decode) -> Decode:
    """Return what decodes one batch after the other, and after the last the first."""
    return lambda number: decode(number % DECODED)


def threads_ratio(run: Run) -> dict[str, Any]:
    """How many times as many random batches a second two threads read as one, and the decoder alone decodes."""
    dataset = rlx.open(run.ours / peer.RUN_ID)
    loaders = [endless(Loader(dataset, 128, prefetch=0, seed=seed)) for seed in range(3)]
    decoders = [map(in_threads(dataset, seed), itertools.count()) for seed in range(3)]

    def read(batches: Iterator[Any]) -> None:
        for batch in itertools.islice(batches, BATCHES):
            del batch

    def read_all(readers: Sequence[Iterator[Any]]) -> Callable[[int], object]:
        return lambda _: list(pool.map(read, readers))

    with ThreadPoolExecutor(2) as pool:
        subjects = [read_all(readers) for kind in (loaders, decoders) for readers in (kind[:1], kind[1:])]
        taken = [seconds[WARMUP:] for seconds in timing.interleaved(WARMUP + 5, *subjects)]

    def ratio(single: Sequence[float], double: Sequence[float]) -> float:
        return round(statistics.median(2 * alone / both for alone, both in zip(single, double, strict=True)), 2)

    return {"ratio": ratio(*taken[:2]), "decoder_ratio": ratio(*taken[2:])}


def dqn_rate(run: Run, cores: int) -> int:
    """Return DQN's batches a second that processes read, each on a core of its own."""
    context = multiprocessing.get_context("spawn")
    chosen = sorted(os.sched_getaffinity(0))[:cores]
    start, answers = context.Barrier(cores), context.Queue()
    processes = [context.Process(target=_read_dqn, args=(run.ours, core, start, answers)) for core in chosen]
    for process in processes:
        process.start()
    seconds = [answers.get(timeout=300) for _ in processes]
    for process in processes:
        process.join()
    rates = [sum(DQN_BATCHES / taken for taken in turn) for turn in zip(*seconds, strict=True)]
    return int(statistics.median(rates))


def _read_dqn(root: Path, core: int, start: Barrier, answers: "Queue[list[float]]") -> None:
    os.sched_setaffinity(0, [core])
    torch.set_num_threads(1)
    batches = endless(Loader(rlx.open(root / peer.RUN_ID), prefetch=0, seed=core, **KINDS["dqn_32_stacks"]))
    seconds = []
    for _ in range(WARMUP + 5):
        start.wait()
        began = time.perf_counter()
        for batch in itertools.islice(batches, DQN_BATCHES):
            del batch
        seconds.append(time.perf_counter() - began)
    answers.put(seconds[WARMUP:])


def waiting(run: Run) -> dict[str, Any]:
    """The share of its time that a learner of 2 ms a batch waits."""
    loader = Loader(rlx.open(run.ours / peer.RUN_ID), 128)
    batches = itertools.islice(endless(loader), BATCHES)
    next(batches)
    loader.waited, began = 0.0, time.perf_counter()
    for _ in batches:
        time.sleep(LEARNER_S)  # as for a GPU
    return {"waited": round(loader.waited / (time.perf_counter() - began), 4)}


def main() -> None:
    """Prints times and ratios, for a run in one shard and in fifty."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", choices=GAMES, default="Pong")
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the run")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--files", type=int, nargs="+", default=[1, 50], help="files that the run lies in")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads")
    options = timing.parse(parser)
    torch.set_num_threads(options.threads)
    result: dict[str, Any] = {"game": options.game, "threads": options.threads}
    for files in options.files:
        with tempfile.TemporaryDirectory() as folder:
            run = converted_run(Path(folder), options.game, options.rows, files)
            rows = {kind: measure(run, kind, options.rounds) for kind in KINDS}
            rows["dqn_32_stacks"] |= {f"per_s_from_{cores}_cores": dqn_rate(run, cores) for cores in (1, 2)}
            result[f"shards_{files}"] = {**rows, "two_threads": threads_ratio(run), "learner_2ms": waiting(run)}
    timing.report(result, options)


if __name__ == "__main__":
    main()
