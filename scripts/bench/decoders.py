"""The frames of a random batch, decoded by rlx's kernel, and by what other packages offer in its place.

python -m scripts.bench.decoders [--game Pong] [--rows 20000] [--rounds 15] [--json]

All decode the same 256 frames, those of 128 transitions at random places of a run, into an array that is there, in one
thread. zstandard and numba read rlx's own chunks with their dictionary. numcodecs and blosc2 have no dictionaries: for
them each frame is encoded again, by zstd at level 9. Needs numba and blosc2, of the extra ``bench``.
"""

import argparse
import ctypes
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import blosc2
import numba
import numpy as np
import zstandard
from numcodecs import Zstd

import rlx
from rlx.store.chunk_codec import ZstdChunks
from rlx.store.dictionary import zstandard_dictionary
from rlx.store.native.kernel import Kernel, kernel
from rlx.store.shard_file import ShardFileReader
from scripts.bench import peer, timing
from scripts.bench.loader import (
    TRANSITIONS,
    Chunks,
    Decode,
    Frames,
    Places,
    by_kernel,
    chunks_of,
    over_batches,
    random_batches,
)
from scripts.bench.play import GAMES
from scripts.bench.run import converted_run

WARMUP, REPEATS, LEVEL = 3, 50, 9


def by_numba(codec: ZstdChunks, batches: Sequence[Chunks], out: Frames, compiled: Kernel) -> Decode:
    """A loop that numba compiles, around the same function of libzstd."""
    word = ctypes.c_size_t
    decompress = ctypes.CFUNCTYPE(word, word, word, word, word, word, word)(compiled._decompress or 0)
    compiled.zstd.ZSTD_createDCtx.restype = word
    context, digested = compiled.zstd.ZSTD_createDCtx(), codec.digested_for(compiled)
    dictionary = 0 if digested is None else digested.place
    chunks = Places(batches)
    first = [np.frombuffer(joined, np.uint8).ctypes.data for joined in chunks.joined]
    row_bytes = out.shape[1]

    def loop(places: Any, sizes: Any, first: int) -> bool:
        is_whole = True
        for row in range(len(places)):
            found = decompress(context, first + row * row_bytes, row_bytes, places[row], sizes[row], dictionary)
            is_whole &= found == row_bytes
        return is_whole

    compiled_loop = numba.njit(loop)

    def decode(number: int) -> None:
        if not compiled_loop(first[number] + chunks.start[number], chunks.size[number], out.ctypes.data):
            raise ValueError("a chunk is damaged")

    return decode


def by_stream(codec: ZstdChunks, batches: Sequence[Chunks], out: Frames) -> Decode:
    """What rlx does without its kernel: the chunks are joined, and zstandard reads them in one call."""

    def decode(number: int) -> None:
        with codec._decompressor.stream_reader(b"".join(batches[number]), read_across_frames=True) as frames:
            frames.readinto(out.reshape(-1))

    return decode


def by_calls(codec: ZstdChunks, batches: Sequence[Chunks], out: Frames) -> Decode:
    """A call of zstandard for each frame."""
    decompress = zstandard.ZstdDecompressor(dict_data=zstandard_dictionary(codec.dictionary)).decompress

    def decode(number: int) -> None:
        for row, chunk in zip(out, batches[number], strict=True):
            row[:] = np.frombuffer(decompress(chunk), np.uint8)

    return decode


def by_buffers(codec: ZstdChunks, batches: Sequence[Chunks], out: Frames) -> Decode:
    """zstandard's one call for many frames, whose buffers are then copied together."""
    decompressor = zstandard.ZstdDecompressor(dict_data=zstandard_dictionary(codec.dictionary))
    sizes = np.full(len(out), out.shape[1], "<u8").tobytes()

    def decode(number: int) -> None:
        found = decompressor.multi_decompress_to_buffer(list(batches[number]), decompressed_sizes=sizes, threads=0)
        for row, segment in zip(out, (found[i] for i in range(len(found))), strict=True):
            row[:] = np.asarray(segment)

    return decode


def by_numcodecs(batches: Sequence[Chunks], out: Frames) -> Decode:
    """A call of numcodecs for each frame."""
    decompress = Zstd(LEVEL).decode

    def decode(number: int) -> None:
        for row, chunk in zip(out, batches[number], strict=True):
            decompress(chunk, row)

    return decode


def by_blosc2(batches: Sequence[Chunks], out: Frames) -> Decode:
    """A call of blosc2 for each frame."""

    def decode(number: int) -> None:
        for row, chunk in zip(out, batches[number], strict=True):
            blosc2.decompress2(chunk, dst=row)

    return decode


def measure(reader: ShardFileReader, codec: ZstdChunks, compiled: Kernel, rounds: int) -> dict[str, Any]:
    """Milliseconds a batch and bytes a frame of each; what numba takes before its first batch is told apart."""
    blosc2.set_nthreads(1)
    settings = {"codec": blosc2.Codec.ZSTD, "clevel": LEVEL, "typesize": 1, "nthreads": 1}
    out = np.empty((2 * TRANSITIONS, codec.chunk_bytes), np.uint8)
    subjects: dict[str, tuple[Callable[[Sequence[Chunks]], Decode], Callable[[Frames], bytes] | None]] = {
        "rlx_kernel": (lambda batches: by_kernel(codec, batches, out, compiled), None),
        "rlx_without_kernel": (lambda batches: by_stream(codec, batches, out), None),
        "numba": (lambda batches: by_numba(codec, batches, out, compiled), None),
        "zstandard_calls": (lambda batches: by_calls(codec, batches, out), None),
        "zstandard_multi": (lambda batches: by_buffers(codec, batches, out), None),
        "numcodecs": (lambda batches: by_numcodecs(batches, out), Zstd(LEVEL).encode),
        "blosc2": (lambda batches: by_blosc2(batches, out), lambda frame: blosc2.compress2(frame, **settings)),
    }
    decoders, sizes, first_s = [], [], []
    for seed, (name, (make, encode)) in enumerate(subjects.items()):
        batches = random_batches(reader, seed)
        last = codec.decode(batches[-1])
        if encode is not None:
            batches = [[encode(frame) for frame in codec.decode(batch)] for batch in batches]
        begun = time.perf_counter()
        decode = make(batches)
        decode(len(batches) - 1)
        first_s.append(time.perf_counter() - begun)
        if not (out == last).all():
            raise ValueError(f"{name} decodes other frames")
        out[:] = 0
        decoders.append(over_batches(decode))
        sizes.append(np.mean([len(chunk) for batch in batches for chunk in batch]))
    taken = timing.interleaved(WARMUP + rounds, *decoders, repeats=REPEATS)
    return {
        name: {
            "ms": timing.median_ms(seconds[WARMUP:]),
            "bytes_per_frame": round(float(size), 1),
            "first_batch_s": round(first, 2),
            **timing.times_faster(taken[0][WARMUP:], seconds[WARMUP:]),
        }
        for name, size, first, seconds in zip(subjects, sizes, first_s, taken, strict=True)
    }


def main() -> None:
    """Prints milliseconds a batch, how many times as long as rlx's kernel each takes, and bytes a frame."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", choices=GAMES, default="Pong")
    parser.add_argument("--rows", type=int, default=20_000, help="rows of the run")
    parser.add_argument("--rounds", type=int, default=15)
    options = timing.parse(parser)
    compiled = kernel()
    if compiled is None:
        raise SystemExit("error: the kernel was not built")
    with tempfile.TemporaryDirectory() as folder:
        run = converted_run(Path(folder), options.game, options.rows, 1, with_peer=False)
        reader, codec = chunks_of(rlx.open(run.ours / peer.RUN_ID))
        result = {"game": options.game, **measure(reader, codec, compiled, options.rounds)}
    timing.report(result, options)


if __name__ == "__main__":
    main()
