"""One preloaded process for all tests of faults, which one worker runs: each imports PyTorch and makes its data."""

from collections.abc import Iterator

import pytest

from tests.faults.preloaded import Preloaded


@pytest.fixture(scope="session")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Preloaded]:
    with Preloaded(tmp_path_factory.mktemp("faults")) as found:
        yield found
