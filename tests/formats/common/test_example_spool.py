"""Examples gathered piece by piece are those that are written at once."""

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlx.formats.common.example_spool import BYTES_LIST, FLOAT_LIST, INT64_LIST, ExampleSpool, varints
from rlx.formats.common.tf_example import unpack_varints
from scripts.rlu_writer import tf_example, tf_record, varint


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
