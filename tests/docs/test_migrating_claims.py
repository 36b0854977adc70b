"""What migrating.md claims of rlx is run, row by row; and what it claims of TorchRL where that is cheap."""

import inspect
import re
from pathlib import Path

import pytest

from tests.docs import claims_of_buffers, claims_of_collectors, claims_of_names  # noqa: F401  (they register claims)
from tests.docs.claims import CLAIMED, ELSEWHERE, Claim, claims

ROOT = Path(__file__).parents[2]
ROWS = claims()
NOTHING_TO_RUN = "no alternative: |use a profiler|a profiler|no reader of its files: |none: a row has no generation"


def keys(row: Claim) -> list[str]:
    return [key for key in (row.name, row.text) if key in CLAIMED or key in ELSEWHERE]


@pytest.mark.parametrize("row", [row for row in ROWS if keys(row)], ids=lambda row: row.name)
def test_what_a_row_claims(row: Claim, request: pytest.FixtureRequest) -> None:
    (key,) = keys(row)
    if key in ELSEWHERE:
        file, _, name = ELSEWHERE[key].partition("::")
        assert re.search(rf"^ *def {name}\(", (ROOT / file).read_text(), re.MULTILINE), "the test is gone"
        return
    function = CLAIMED[key]
    function(*map(request.getfixturevalue, inspect.signature(function).parameters))


def test_every_claim_is_run() -> None:
    unknown = [row for row in ROWS if not keys(row) and not re.match(NOTHING_TO_RUN, row.text)]
    assert not [f"{row.name}: {row.text}" for row in unknown]


def test_no_claim_is_of_a_row_that_is_gone() -> None:
    assert CLAIMED.keys() | ELSEWHERE.keys() == {key for row in ROWS for key in keys(row)}
