import random
import struct
import zlib

import cv2
import imagecodecs
import numpy as np
import pytest
from numpy.typing import NDArray

from rlx.formats.common.source import MalformedError
from rlx.formats.rl_unplugged.reader import decode_frames


def pictures(count: int) -> NDArray[np.uint8]:
    """Noise, gradients and plain areas, so that every filter pays somewhere."""
    rng = np.random.default_rng(0)
    ramp = np.add.outer(np.arange(84), np.arange(84))
    frames = np.stack([(ramp * k + rng.integers(0, 1 + k % 7, (84, 84))) % 256 for k in range(count)])
    frames[::5, 20:60] = 87
    return frames.astype(np.uint8)


def encode(frame: NDArray[np.uint8]) -> bytes:
    return bytes(imagecodecs.png_encode(frame))


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(*chunks: bytes, shape: tuple[int, int] = (84, 84), depth: int = 8, colour: int = 0) -> bytes:
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", shape[1], shape[0], depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(chunks) + chunk(b"IEND", b"")


ROWS = b"".join(bytes([row % 5]) + bytes(range(84)) for row in range(84))


@pytest.mark.parametrize("count", [0, 1, 64, 65, 150])
def test_equals_what_was_encoded(count: int) -> None:
    frames = pictures(150)[:count]
    assert np.array_equal(decode_frames([encode(frame) for frame in frames]), frames)


def test_every_filter_equals_libpng() -> None:
    rng = random.Random(1)
    pngs = []
    for _ in range(130):
        rows = b"".join(bytes([rng.randrange(5)]) + rng.randbytes(84) for _ in range(84))
        pngs.append(png(chunk(b"IDAT", zlib.compress(rows))))
    assert np.array_equal(decode_frames(pngs), [imagecodecs.png_decode(encoded) for encoded in pngs])


def test_other_encoders_and_extra_chunks() -> None:
    frame = pictures(3)[2]
    deflated = zlib.compress(ROWS)
    several = png(chunk(b"tEXt", b"a\0b"), chunk(b"IDAT", deflated[:50]), chunk(b"IDAT", deflated[50:]))
    decoded = decode_frames([memoryview(cv2.imencode(".png", frame)[1].tobytes()), several])
    assert np.array_equal(decoded, [frame, imagecodecs.png_decode(several)])


@pytest.mark.parametrize(
    ("encoded", "problem"),
    [
        pytest.param(b"", "expected a PNG", id="empty"),
        pytest.param(png(chunk(b"IDAT", zlib.compress(ROWS)), shape=(84, 60000)), "expected a PNG of 84x84", id="wide"),
        pytest.param(png(chunk(b"IDAT", zlib.compress(ROWS)), colour=2), "expected a PNG of 84x84", id="colour"),
        pytest.param(png(chunk(b"IDAT", zlib.compress(ROWS)), depth=16), "expected a PNG of 84x84", id="16 bit"),
        pytest.param(png(chunk(b"IDAT", zlib.compress(ROWS))) + b"x", "trailing data after IEND: 1 ", id="tail"),
        pytest.param(png(chunk(b"IDAT", zlib.compress(ROWS)))[:-12], "cut off", id="no end"),
        pytest.param(png(), "7,140 deflated bytes", id="no data"),
        pytest.param(png(chunk(b"IDAT", zlib.compress(ROWS[:-1]))), "7,140 deflated bytes, found 7,139", id="short"),
        pytest.param(png(chunk(b"IDAT", zlib.compress(ROWS + b"x"))), "7,140 deflated bytes", id="long"),
        pytest.param(png(chunk(b"IDAT", zlib.compress(bytes(10**7)))), "7,140 deflated bytes", id="bomb"),
        pytest.param(png(chunk(b"IDAT", zlib.compress(b"\5" + ROWS[1:]))), "filter", id="no such filter"),
        pytest.param(png(chunk(b"zTXt", bytes(20000))), "at most 16,384 bytes", id="fat"),
    ],
)
def test_malformed(encoded: bytes, problem: str) -> None:
    good = encode(pictures(1)[0])
    with pytest.raises(MalformedError, match=f"frame 1: .*{problem}"):
        decode_frames([good, encoded])


def test_damage_is_always_noticed() -> None:
    rng = random.Random(5)
    encoded = [encode(frame) for frame in pictures(10)]
    for case in range(1000):
        whole = encoded[case % len(encoded)]
        damaged = bytearray(whole)
        if case % 3:
            bit = rng.randrange(len(whole) * 8)
            damaged[bit // 8] ^= 1 << (bit % 8)
        else:
            del damaged[rng.randrange(len(whole)) :]
        with pytest.raises(MalformedError):
            decode_frames([bytes(damaged)])
