import numpy as np
import pytest

from rlx.errors import CorruptShardError
from rlx.formats.common.fields import check_field, check_finite
from rlx.schema import Field, Role


@pytest.mark.parametrize(("value", "said"), [(np.nan, "NaN"), (np.inf, "inf"), (-np.inf, "-inf")])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_first_row_is_named(value: float, said: str, dtype: str) -> None:
    rows = np.zeros((5, 2, 3), dtype)
    rows[3, 1, 2] = value
    rows[4] = np.nan
    with pytest.raises(CorruptShardError, match=f"^a.h5: rewards: expected finite numbers, found {said} in row 1,003$"):
        check_finite(rows, "a.h5: rewards", 1000)


@pytest.mark.parametrize("rows", [np.full(3, np.finfo("f4").max), np.array([True]), np.arange(3), np.zeros((0, 2))])
def test_finite_numbers(rows: np.ndarray) -> None:
    check_finite(rows, "a.h5", 0)


@pytest.mark.parametrize(
    ("name", "role", "checked"),
    [
        ("observation", Role.OBSERVATION, True),
        ("observation/goal", Role.OBSERVATION, True),
        ("state", Role.OBSERVATION, True),
        ("action", Role.STEP, True),
        ("agents/action", Role.STEP, True),
        ("reward", Role.NEXT, True),
        ("info/speed", Role.OBSERVATION, False),
        ("info/action", Role.STEP, False),
        ("logits", Role.STEP, False),
        ("success", Role.NEXT, False),
    ],
)
def test_what_a_learner_computes_with(name: str, role: Role, checked: bool) -> None:
    field = Field("float32", (), role)
    if not checked:
        check_field(name, field, np.full(2, np.inf, "f4"), "a.h5", 0)
        return
    with pytest.raises(CorruptShardError, match=r"a.h5: expected finite numbers, found inf in row 0"):
        check_field(name, field, np.full(2, np.inf, "f4"), "a.h5", 0)
