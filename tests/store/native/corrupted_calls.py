"""Calls of the kernel with wrong indices and lengths, each of which must be refused; run under AddressSanitizer.

``python corrupted_calls.py KERNEL`` ends with 0 if all are: through the package, and past its checks, as nobody does.
With another argument, it reads past the end of an array.
"""

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from rlx.errors import CorruptDatasetError
from rlx.store.native import library as library_module
from rlx.store.native.gather import FileTable, gather, gather_kernel
from rlx.store.native.kernel import Encoder, Kernel, Search, kernel
from rlx.store.native.library import OUTSIDE, address
from rlx.store.native.tree import CompiledTree, tree_kernel

BIG = 2**63 - 1
WRONG = (-1, -BIG, 10, 11, BIG, BIG - 1, 2**62, 2**60)


def refused(errors: tuple[type[Exception], ...], call: Callable[..., object], *arguments: Any, **options: Any) -> None:
    """Check that a call raises one of these errors."""
    try:
        call(*arguments, **options)
    except errors:
        return
    raise AssertionError(f"{call} took {arguments} {options}")


def rows(*numbers: int) -> Any:
    """Return numbers as the compiled functions take them."""
    return np.array(numbers, np.int64)


def gathers() -> None:
    """Rows of two files of ten rows, of 1, 4, 8 and other sizes, and of one that is closed."""
    compiled = gather_kernel()
    assert compiled is not None
    for row_bytes in (1, 4, 8, 13):
        files = [np.arange(10 * row_bytes, dtype=np.uint8) for _ in range(2)]
        table = FileTable(3, row_bytes)
        for number, file in enumerate(files):
            table.add(number, file.data)
        out = np.empty((4, row_bytes), np.uint8)
        gather(table, rows(0, 1), rows(8, 3), out, 2)
        assert out.tobytes() == b"".join(
            files[f][r * row_bytes : (r + 1) * row_bytes].tobytes() for f, r in ((0, 8), (1, 3), (0, 9), (1, 4))
        )
        for wrong in WRONG:
            refused((IndexError,), gather, table, rows(0, 1, 0, 1), rows(0, wrong, 1, 2), out)
            refused((IndexError,), gather, table, rows(0, wrong, 0, 1), rows(0, 1, 2, 3), out)
        refused((IndexError,), gather, table, rows(0, 2), rows(0, 0), out, 2)
        refused((IndexError,), gather, table, rows(0, 1), rows(9, 0), out, 2)
        refused((IndexError,), gather, table, rows(0, 1), rows(1, 1), out)
        refused((ValueError,), gather, table, rows(0, 1, 1), rows(1, 1), out, 2)
        refused((ValueError,), gather, table, rows(0, 1), rows(1, 1), out[::2])
        frozen = out.copy()
        frozen.setflags(write=False)
        refused((ValueError,), gather, table, rows(0, 1), rows(1, 1), frozen, 2)
        refused((IndexError,), gather, table.without([0]), rows(0, 1), rows(1, 1), out, 2)
        two, place = rows(0, 1), address(out)
        shapes = (-1, 1, 4), (2, -2, 4), (2, 2, -1), (2, 2, 5 * row_bytes), (BIG, BIG, 1), (2**32, 2**32, 0)
        for count, run, room in shapes:
            assert compiled(table.place, count, run, address(two), address(two), place, room) == OUTSIDE


def frames(compiled: Kernel) -> None:
    """A shard file of ten frames, with an index and a dictionary."""
    dictionary = bytes(range(200)) * 2
    made = zstandard.ZstdCompressionDict(dictionary, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    encoded = [zstandard.ZstdCompressor(dict_data=made).compress(dictionary[n : n + 100]) for n in range(10)]
    start = np.cumsum([0, *map(len, encoded[:-1])])
    index = np.stack([start, [len(frame) for frame in encoded]], axis=1).astype("<u8")

    def table(entries: Any, claimed: int = 10) -> FileTable:
        files = FileTable(2, 100)
        content = b"".join(encoded) + entries.tobytes() + b"crc!"
        files.add(0, np.frombuffer(content, np.uint8).copy().data, claimed, compiled.digested(dictionary))
        return files

    out, whole = np.empty((4, 100), np.uint8), table(index)
    compiled.read(whole, rows(0, 0), rows(3, 8), out, 2)
    assert [row.tobytes() for row in out] == [dictionary[n : n + 100] for n in (3, 8, 4, 9)]
    bad = (CorruptDatasetError,)
    for wrong in WRONG:
        refused(bad, compiled.read, whole, rows(0, 0, 0, 0), rows(0, wrong, 1, 2), out)
        if wrong:
            refused(bad, compiled.read, whole, rows(0, wrong, 0, 0), rows(0, 1, 2, 3), out)
            refused(bad, compiled.decode, whole, rows(0, wrong, 0, 0), rows(*[0] * 4), rows(*[9] * 4), out)
        for entry in ((wrong, 10), (0, wrong), (wrong, wrong)):
            damaged = index.copy()
            damaged[5] = np.array(entry, np.int64).view(np.uint64)
            refused(bad, compiled.read, table(damaged), rows(0, 0, 0, 0), rows(4, 5, 6, 7), out)
            refused(bad, compiled.decode, whole, rows(*[0] * 4), rows(0, entry[0], 0, 0), rows(9, entry[1], 9, 9), out)
        refused(bad, compiled.read, table(index, wrong if wrong > 10 else 10**6), rows(*[0] * 4), rows(*[0] * 4), out)
    refused(bad, compiled.read, whole, rows(0, 1), rows(0, 0), out, 2)
    refused(bad, compiled.read, whole, rows(0, 0), rows(0, 0), out)
    refused((ValueError,), compiled.read, whole, rows(0), rows(0, 0), out, 2)
    rng = np.random.default_rng(0)
    content = np.frombuffer(b"".join(encoded), np.uint8)
    for _ in range(300):  # any bytes in the place of frames
        flipped = content.copy()
        flipped[rng.integers(len(flipped), size=5)] = rng.integers(256, size=5)
        files = FileTable(1, 100)
        files.add(0, flipped.data, 0, compiled.digested(dictionary))
        try:
            compiled.decode(files, rows(*[0] * 4), start[:4], index[:4, 1].astype(np.int64), out)
        except CorruptDatasetError:
            continue


def encodes(compiled: Kernel) -> None:
    """Rows of two arrays, against a dictionary and alone."""
    parameters = zstandard.ZstdCompressionParameters.from_level(3)
    search = Search(*(getattr(parameters, field[0]) for field in Search._fields_))
    arrays = [np.random.default_rng(n).integers(3, size=(5, 97), dtype=np.uint8) for n in range(2)]
    for dictionary, chosen in ((b"", None), (arrays[0].tobytes(), search), (arrays[0].tobytes()[:50], search)):
        encoder = Encoder(compiled, 97, 3, dictionary, chosen, 32)
        sizes, out = np.empty(3, np.int32), np.empty(1000, np.uint8)
        assert encoder.encode(arrays, rows(0, 9, 4), rows(-1, 9, 5), out, sizes) == 3
        assert sizes[1] == 0
        for room in (0, 1, 7, 40, int(sizes[0])):
            encoder.encode(arrays, rows(0, 9, 4), rows(-1, -1, -1), np.empty(room, np.uint8), sizes)
        for wrong in (*WRONG[1:], -2):
            refused((IndexError,), encoder.encode, arrays, rows(0, wrong, 4), rows(-1, -1, -1), out, sizes)
            refused((IndexError,), encoder.encode, arrays, rows(0, 1, 4), rows(-1, wrong, -1), out, sizes)
        refused((IndexError,), encoder.encode, arrays, rows(0, -1, 4), rows(-1, -1, -1), out, sizes)
        refused((ValueError,), encoder.encode, [arrays[0][:, 1:]], rows(0), rows(-1), out, sizes[:1])
        refused((ValueError,), encoder.encode, arrays, rows(0, 1, 2), rows(-1, -1, -1), out, sizes[:2])
        refused((ValueError,), encoder.encode, arrays, rows(0, 1, 2), rows(-1), out, sizes)
    names = "ZSTD_compress2", "ZSTD_compressSequences"
    functions = [ctypes.cast(getattr(compiled.zstd, name), ctypes.c_void_p) for name in names]
    make = compiled.frames.rlx_new_encoder
    make.restype = ctypes.c_void_p
    sizes_of = (97, 3, 290, 200), (0, 0, 9, 9), (97, -1, 9, 9), (1, 10, 9, 9), (97, 0, 9, 2**40)
    for row_bytes, references, length, bound in sizes_of:
        assert not make(*functions, None, row_bytes, references, b"9" * 300, length, bound, 32)
    assert not make(*functions, None, 97, 0, b"9" * 300, 9, 200, 0)


def trees() -> None:
    """A tree of 40 rows, in arrays of its size and of others."""
    functions = tree_kernel()
    assert functions is not None

    def arrays(floats: int = 64, sums: int = 32) -> list[Any]:
        levels = [[np.zeros(sums, kind), np.zeros(1, kind)] for kind in (np.float64, np.float32, np.float32)]
        return [np.zeros(floats, np.float32), np.zeros(floats, np.float32), *levels]

    tree = CompiledTree(functions, 40, *arrays())
    one = np.array(1, np.float32)
    assert tree.write(rows(0, 39, -1), one, one, False)[0] == 2
    for uniform in (0.0, 0.5, 1 - 2**-53, 1.0, 7.0, -3.0, np.nan, np.inf, -np.inf):
        found, _ = tree.draw(np.full(9, uniform))
        assert ((found >= 0) & (found < 64)).all()
    for wrong in (40, 63, 64, BIG, -2, -BIG):
        refused((IndexError,), tree.write, rows(0, wrong), one, one, False)
        refused((IndexError,), tree.write, rows(0, wrong), np.ones(2, np.float32), one, True)
    refused((ValueError,), tree.write, rows(0, 1), np.ones(3, np.float32), one, False)
    refused((ValueError,), tree.write, rows(0, 1), np.ones(2), one, False)
    refused((ValueError,), tree.draw, np.zeros(4, np.float32))
    refused((ValueError,), tree.draw, np.zeros(8)[::2])
    for floats, sums in ((63, 32), (64, 31), (32, 32), (64, 64)):
        refused((ValueError,), CompiledTree, functions, 40, *arrays(floats, sums))
    refused((ValueError,), CompiledTree, functions, 65, *arrays())


def read_past_the_end() -> None:
    """What a table that claims more rows than its file has would do."""
    table = FileTable(1, 1000)
    table.add(0, np.zeros(5000, np.uint8).data)
    table._columns[2] = 10
    gather(table, rows(0), rows(5), np.empty((1, 1000), np.uint8))


if __name__ == "__main__":
    library_module.LIBRARY = Path(sys.argv[1])
    if sys.argv[2:]:
        read_past_the_end()
        sys.exit()
    found = kernel()
    assert found is not None
    gathers()
    frames(found)
    encodes(found)
    trees()
