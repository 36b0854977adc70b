from hypothesis import given
from hypothesis import strategies as st

from rlx.collector.step_source import quotas_for

WORKERS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5)), min_size=1, max_size=4)


@given(WORKERS, st.integers(1, 200))
def test_exactly_what_is_left_is_made_in_the_end(workers: list[tuple[int, int]], left: int) -> None:
    lengths, envs = [length for length, _ in workers], [n for _, n in workers]
    usual = sum(length * n for length, n in workers)
    while left:
        quotas = quotas_for(left, lengths, envs)
        made = sum(quota.steps for quota in quotas)
        assert 0 < made <= min(left, usual)
        assert made == usual or left < usual, "no batch is smaller than usual without need"
        assert [quota.worker for quota in quotas] == list(range(len(quotas)))
        assert all(quota.length <= lengths[quota.worker] for quota in quotas)
        assert all(quota.envs == envs[quota.worker] for quota in quotas) or len(quotas) == 1
        left -= made


@given(WORKERS)
def test_without_end_all_batches_are_usual(workers: list[tuple[int, int]]) -> None:
    lengths, envs = [length for length, _ in workers], [n for _, n in workers]
    assert [(quota.length, quota.envs) for quota in quotas_for(None, lengths, envs)] == workers
