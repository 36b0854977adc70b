from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlx.block import Block
from rlx.errors import ExportError
from rlx.formats.common import exporter as pieces_module
from rlx.formats.common.exporter import Piece, float32, pieces, small_pieces
from tests.factories import SMALL, cut, make_block


def whole(found: Sequence[Piece]) -> list[tuple[int, list[int], list[int], list[int]]]:
    """Episode, observations, next observations and actions of every trajectory that the pieces make."""
    trajectories: list[tuple[int, list[int], list[int], list[int]]] = []
    for piece in found:
        if piece.start == 0:
            trajectories.append((piece.episode, [], [], []))
        _, before, after, actions = trajectories[-1]
        assert (piece.trajectory, piece.start) == (len(trajectories) - 1, len(actions))
        before += piece.stored("observation")[:, 0].tolist()
        after += piece.next("observation")[:, 0].tolist()
        actions += piece.rows("action").tolist()
        assert piece.is_last == (len(before) > len(after))
    return trajectories


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.lists(st.integers(1, 4), max_size=12))
def test_pieces_make_the_trajectories_however_the_blocks_are_cut(lengths: list[int], steps: list[int]) -> None:
    found = list(pieces(cut(make_block(lengths), steps), SMALL))
    assert whole(found) == [
        (
            episode,
            [1000 * episode + t for t in range(length + 1)],
            [1000 * episode + t for t in range(1, length + 1)],
            list(range(length)),
        )
        for episode, length in enumerate(lengths)
    ]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.lists(st.integers(1, 4), max_size=12), st.integers(1, 5))
def test_small_pieces_make_the_same_trajectories(lengths: list[int], steps: list[int], most: int) -> None:
    blocks = cut(make_block(lengths), steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces_module, "_MAX_SMALL_BYTES", most * SMALL.row_bytes)
        found = list(small_pieces(blocks, SMALL))
    assert whole(found) == whole(list(pieces(blocks, SMALL)))
    assert max(piece.steps for piece in found) <= most


def test_a_trajectory_that_ends_in_a_segment_without_a_step() -> None:
    first, second = cut(make_block([3, 2]), [2])
    head = Block({**first.data}, first.lengths, first.episodes, first.from_reset, first.final_recorded, is_open=True)
    step = {name: array[:1] for name, array in second.data.items() if name != "observation"}
    open_step = Block(
        {**step, "observation": second.data["observation"][:1]},
        np.array([1]),
        first.episodes[-1:],
        first.from_reset[-1:],
        np.array([True]),
        is_open=True,
    )
    rest = {name: array[1:] for name, array in second.data.items()}
    end = Block(rest, np.array([0, 2]), second.episodes, second.from_reset, np.array([False, True]))
    found = list(pieces([head, open_step, end], SMALL))
    assert [(piece.steps, piece.is_last, piece.final_recorded) for piece in found] == [
        (2, False, True),
        (1, True, False),
        (2, True, True),
    ]
    assert whole(found)[0][1] == [0, 1, 2, 3]


def test_numbers_beyond_float32_are_refused() -> None:
    assert float32(np.array([1, 2]), "d3rlpy", "rewards").tolist() == [1.0, 2.0]
    with pytest.raises(ExportError, match=r"d3rlpy holds rewards as float32, found 1e\+300"):
        float32(np.array([1.0, 1e300]), "d3rlpy", "rewards")
