"""``tf.train.Example``, read and written."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlx.formats.common.source import MalformedError
from rlx.formats.common.tf_example import (
    BYTES_LIST,
    FLOAT_LIST,
    INT64_LIST,
    MAX_VALUES,
    ExampleSpool,
    parse_example,
    unpack_varints,
    varints,
)
from scripts.rlu_writer import message, tf_example, tf_record, varint

int64s = st.integers(-(2**63), 2**63 - 1)
values = st.one_of(
    st.tuples(st.just(1), st.lists(st.binary(max_size=300), min_size=1)),
    st.tuples(st.just(2), st.lists(st.floats(width=32, allow_nan=False), min_size=1)),
    st.tuples(st.just(3), st.lists(int64s, min_size=1)),
)


@given(st.dictionaries(st.text(max_size=10), values), st.booleans())
def test_round_trip(features: dict[str, tuple[int, list[Any]]], packed: bool) -> None:
    parsed = parse_example(tf_example(features, packed=packed))
    assert parsed.keys() == features.keys()
    for name, (kind, expected) in features.items():
        found = parsed[name]
        if isinstance(found, np.ndarray):
            assert found.dtype == {2: np.float32, 3: np.int64}[kind]
            assert found.tolist() == expected
        else:
            assert [bytes(item) for item in found] == expected


@given(st.lists(int64s))
def test_packed_integers(numbers: list[int]) -> None:
    assert unpack_varints(b"".join(map(varint, numbers))).tolist() == numbers


def test_unknown_fields_are_skipped() -> None:
    unknown = varint(9 << 3) + varint(300) + varint(10 << 3 | 1) + b"x" * 8 + varint(11 << 3 | 5) + b"x" * 4
    numbers = message(3, message(1, varint(7)) + unknown)
    entry = unknown + message(1, b"a") + message(2, unknown + numbers) + message(20, b"z")
    parsed = parse_example(unknown + message(1, unknown + message(1, entry)))
    assert list(parsed["a"]) == [7]


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        pytest.param(b"\x0a\x05ab", "5 bytes has only 2", id="longer than the record"),
        pytest.param(b"\x0a", "cut off", id="no length"),
        pytest.param(b"\xff" * 11, "more than 10 bytes", id="endless number"),
        pytest.param(b"\x0b", "wire type", id="group"),
        pytest.param(b"\x02\x00", "field number", id="field zero"),
        pytest.param(tf_example({"a": (3, [300])})[:-1] + b"\xff", "'a': packed integers.*cut off", id="cut integer"),
        pytest.param(message(1, message(1, message(1, b"\xff"))), "utf-8", id="name"),
        pytest.param(
            message(1, message(1, message(2, message(2, message(1, b"abc"))))),
            "multiple of 4",
            id="packed floats",
        ),
        pytest.param(
            message(1, message(1, message(2, message(3, message(1, b"\xff" * 11 + b"\1"))))),
            "12 bytes",
            id="long",
        ),
    ],
)
def test_malformed(record: bytes, problem: str) -> None:
    with pytest.raises(MalformedError, match=problem):
        parse_example(record)


def test_too_many_values() -> None:
    integers = message(3, message(1, b"\0" * (MAX_VALUES + 1)))
    strings = message(1, b"\x0a\0" * (MAX_VALUES + 1))
    for feature in (integers, strings):
        with pytest.raises(MalformedError, match="at most 1,048,576 values"):
            parse_example(message(1, message(1, message(2, feature))))


def test_damage_never_crashes() -> None:
    rng = random.Random(3)
    whole = tf_example({"a": (1, [b"png"] * 5), "b": (2, [1.0, 2.0]), "c": (3, [1, -1, 300])})
    malformed = 0
    for case in range(800):
        damaged = bytearray(whole)
        if case % 3:
            damaged[rng.randrange(len(whole))] = rng.randrange(256)
        else:
            del damaged[rng.randrange(len(whole)) :]
        try:
            assert all(isinstance(name, str) for name in parse_example(bytes(damaged)))
        except MalformedError:
            malformed += 1
    assert malformed > 200


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300)))
def test_integers_as_protobuf_packs_them(values: list[int]) -> None:
    packed = varints(np.array(values, np.int64))
    assert packed == b"".join(varint(value) for value in values)
    assert unpack_varints(packed).tolist() == values


def test_pieces_make_the_same_record(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    kinds = {"steps/reward": FLOAT_LIST, "action": INT64_LIST, "picture": BYTES_LIST, "none": INT64_LIST}
    with ExampleSpool(kinds, tmp_path) as spool:
        for _ in range(2):
            rewards = random.normal(size=(70, 1000)).astype(np.float32)
            actions, pictures = random.integers(-5, 2**40, 500), [random.bytes(size) for size in (0, 1, 300_000)]
            for piece in np.array_split(rewards, 3):
                spool.add_numbers("steps/reward", piece)
            spool.add_numbers("action", actions)
            for picture in pictures:
                spool.add_bytes("picture", [picture])
            features = {
                "action": (INT64_LIST, actions.tolist()),
                "none": (INT64_LIST, []),
                "picture": (BYTES_LIST, pictures),
                "steps/reward": (FLOAT_LIST, rewards.reshape(-1).tolist()),
            }
            assert b"".join(spool.pop()) == tf_record(tf_example(features))
