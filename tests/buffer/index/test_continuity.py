"""Digests of observations are the same however they are asked for."""

import numpy as np
import pytest
import torch

from rlx.buffer.index.continuity import Links

COUNT = 12


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("width", [0, 1, 5, 8, 13])
@pytest.mark.parametrize("has_origin", [False, True])
def test_digests_do_not_depend_on_how_they_are_asked_for(dtype: torch.dtype, width: int, has_origin: bool) -> None:
    frames = torch.randint(0, 250, (COUNT + 1, width), generator=torch.Generator().manual_seed(0)).to(dtype)
    if dtype.is_floating_point:
        frames[3] = torch.nan
    origin = np.arange(40, 40 + COUNT) if has_origin else None
    start, last = np.array([0, 3, 7]), np.array([2, 6, 11])
    at_once, alone, singly = (Links([(frames[:-1], frames[1:])], np.zeros(COUNT, np.int64), origin) for _ in range(3))
    at_once.settle(start, last)
    for ask, at in (("begins", start), ("expects", last)):
        expected = getattr(alone, ask)(at).tolist()
        assert getattr(at_once, ask)(at).tolist() == expected
        assert [getattr(singly, ask)(one)[0] for one in at[:, None]] == expected
        assert getattr(at_once, ask)(np.arange(COUNT)).tolist() == getattr(alone, ask)(np.arange(COUNT)).tolist()
    # A step begins with what the one before led to.
    assert at_once.begins(np.arange(1, COUNT)).tolist() == at_once.expects(np.arange(COUNT - 1)).tolist()


def test_columns_that_are_no_rows_or_flags_are_no_evidence() -> None:
    lane = np.zeros(COUNT, np.int64)
    number = torch.arange(COUNT)
    links = Links.of({("index",): number, ("is_init",): number[:, None] == 3}, lane)
    assert links.origin.tolist() == number.tolist()
    assert np.flatnonzero(links.fresh).tolist() == [3]
    for index, is_init in ((number / 2, number), (number.expand(2, -1).T, number.expand(2, -1).T > 3)):
        links = Links.of({("index",): index, ("is_init",): is_init}, lane)
        assert (links.origin == -1).all()
        assert not links.resets_known
        assert not links.fresh.any()
