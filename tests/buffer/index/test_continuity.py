"""What tells steps of several sources apart, and what was told of every row."""

import numpy as np
import pytest
import torch

from rlx.buffer.index.continuity import Evidence, Provenance, observed

COUNT = 12


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("width", [0, 1, 5, 8, 13])
@pytest.mark.parametrize("has_origin", [False, True])
def test_a_step_starts_where_the_one_before_led_to(dtype: torch.dtype, width: int, has_origin: bool) -> None:
    frames = torch.randint(0, 250, (COUNT + 1, width), generator=torch.Generator().manual_seed(0)).to(dtype)
    if dtype.is_floating_point:
        frames[3] = torch.nan
        frames[4] = 0
    columns = frames[:-1], frames[1:].clone()
    if dtype.is_floating_point:
        columns[1][3] = -0.0  # which is 0
    origin = np.arange(40, 40 + COUNT) if has_origin else None
    evidence = Evidence(lambda rows, after: [columns[after][torch.from_numpy(rows)]], origin)
    rows = np.arange(COUNT)
    assert evidence.alike(rows[:-1], rows[1:]).all()
    assert evidence.starts(rows[1:]) == evidence.ends(rows[:-1])
    assert not evidence.jumps(rows[:-1], rows[1:]).any()
    if width > 1:
        assert not evidence.alike(rows[:-2], rows[2:]).any()
        assert len({*evidence.starts(rows)}) == COUNT
    assert evidence.jumps(rows[:-2], rows[2:]).all() == has_origin


def test_what_is_an_observation() -> None:
    keys = [("observation",), ("observation", "deep"), ("pixels",), ("value",), ("info", "lives"), ("done",)]
    both = [*keys, *(("next", *key) for key in keys), ("position",)]
    assert observed(both) == [("observation",), ("observation", "deep"), ("pixels",)]
    assert observed(both, [("info",)]) == [("observation",), ("observation", "deep"), ("pixels",), ("info", "lives")]
    assert observed(keys) == []


def test_rows_are_told_apart_by_what_was_told_of_them() -> None:
    told = Provenance(10)
    told.note(np.array([[0, 1, 2], [5, 6, 7]]), None, None)
    told.note(np.array([[3, 4]]), np.array([[30, -1]]), np.array([[True, False]]))
    told.replace(np.array([6]))
    rows = np.arange(10)
    assert np.flatnonzero(told.begins(rows)).tolist() == [0, 3, 5, 6]
    assert np.flatnonzero(told.replaced(rows)).tolist() == [6]
    assert np.flatnonzero(told.starts(rows)).tolist() == [3]
    assert np.flatnonzero(told.continues(rows)).tolist() == [4]
    assert told.origin is not None
    assert told.origin.tolist() == [-1, -1, -1, 30, -1, -1, -1, -1, -1, -1]
    told.note(np.array([[2, 3]]), None, None)
    assert told.origin[3] == -1
    other = Provenance(10)
    other.load_state_dict(told.state_dict(rows), rows)
    assert (other.begins(rows) == told.begins(rows)).all()
