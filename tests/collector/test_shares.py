from hypothesis import given
from hypothesis import strategies as st

from rlx.collector.shares import share_out

WORKERS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5)), min_size=1, max_size=4)


@given(WORKERS, st.integers(1, 200))
def test_exactly_what_is_left_is_made_in_the_end(workers: list[tuple[int, int]], left: int) -> None:
    lengths, envs = [length for length, _ in workers], [n for _, n in workers]
    usual = sum(length * n for length, n in workers)
    while left:
        shares = share_out(left, lengths, envs)
        made = sum(share.steps for share in shares)
        assert 0 < made <= min(left, usual)
        assert made == usual or left < usual, "no batch is smaller than usual without need"
        assert [share.worker for share in shares] == list(range(len(shares)))
        assert all(share.length <= lengths[share.worker] for share in shares)
        assert all(share.envs == envs[share.worker] for share in shares) or len(shares) == 1
        left -= made


@given(WORKERS)
def test_without_end_all_batches_are_usual(workers: list[tuple[int, int]]) -> None:
    lengths, envs = [length for length, _ in workers], [n for _, n in workers]
    assert [(share.length, share.envs) for share in share_out(None, lengths, envs)] == workers
