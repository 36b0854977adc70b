"""Tests that share what is costly to set up, such as a Ray cluster, run in one process of pytest-xdist."""

import pytest


@pytest.mark.xdist_group("groups")
def test_tests_of_a_group_are_named_so(request: pytest.FixtureRequest) -> None:
    """pytest-xdist 3.8 writes the group where pytest 9.2 no longer reads it: then nothing is shared, without a word."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("groups are made with --dist loadgroup")
    assert request.node.nodeid.endswith("@groups")
