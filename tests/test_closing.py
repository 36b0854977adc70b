"""What a ``with`` block closes."""

import pytest

from rlx.closing import Closing


class Failing(Closing):
    def close(self) -> None:
        raise OSError("closing failed")


def test_the_first_error_is_raised() -> None:
    with pytest.raises(ValueError, match="the block failed"), Failing():
        raise ValueError("the block failed")


def test_an_error_of_closing_is_raised_where_it_is_the_first() -> None:
    with pytest.raises(OSError, match="closing failed"), Failing():
        pass
