"""Vector environments that reset in place of a step give the same batches as those that do not."""

from functools import partial
from typing import Any

import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

from rlx.buffer.batch import split_trajectories
from rlx.collector import Collector, MultiCollector
from tests.collector.environments import Counter, one
from tests.collector.policies import Constant

LENGTHS = st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=2), min_size=1, max_size=3)


def vector(lengths: list[list[int]], mode: AutoresetMode) -> Any:
    return SyncVectorEnv([partial(Counter, tuple(of_one)) for of_one in lengths], autoreset_mode=mode)


def collected(lengths: list[list[int]], mode: AutoresetMode, **options: Any) -> list[Any]:
    with Collector(partial(vector, lengths, mode), one, **options) as collector:
        return list(collector)


def without_ids(batch: Any) -> Any:
    return {key: batch[key] for key in batch.keys(True, True) if key != ("collector", "traj_ids")}


@given(LENGTHS, st.integers(1, 12), st.integers(1, 90), st.sampled_from([None, 2]))
def test_as_if_no_step_had_been_lost(lengths: list[list[int]], steps: int, total: int, longest: int | None) -> None:
    options: Any = {"frames_per_batch": steps * len(lengths), "total_frames": total, "max_frames_per_traj": longest}
    found = collected(lengths, AutoresetMode.NEXT_STEP, **options)
    expected = collected(lengths, AutoresetMode.SAME_STEP, **options)
    assert [batch.shape for batch in found] == [batch.shape for batch in expected]
    for batch, same in zip(found, expected, strict=True):
        values, others = without_ids(batch), without_ids(same)
        assert values.keys() == others.keys()
        assert all(torch.equal(values[key], others[key]) for key in values)
    if len({batch.shape[0] for batch in found}) == 1:
        ids, other_ids = (torch.cat([batch["collector", "traj_ids"] for batch in of], -1) for of in (found, expected))
        assert (ids.diff(dim=-1) >= 0).all()
        pairs = set(zip(ids.flatten().tolist(), other_ids.flatten().tolist(), strict=True))
        assert len(pairs) == len(set(ids.flatten().tolist())) == len(set(other_ids.flatten().tolist()))


@pytest.mark.parametrize("how", ["alone", "workers"])
def test_steps_made_ahead_keep_the_version_of_their_policy(how: str) -> None:
    policy = Constant()
    source = partial(vector, [[1], [6]], AutoresetMode.NEXT_STEP)
    options: Any = {"frames_per_batch": 10, "total_frames": 30, "track_policy_version": True}
    collector = Collector(source, policy, **options) if how == "alone" else MultiCollector([source], policy, **options)
    seen = []
    with collector:
        for number, batch in enumerate(collector, 1):
            assert batch is not None
            assert (batch["action"] == batch["policy_version"]).all()
            seen.append(batch["policy_version"].reshape(2, 5))
            collector.update_policy_weights_({"action": torch.tensor(number)})
    slow, fast = torch.cat(seen, 1)
    assert slow.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert fast[5:10].tolist().count(0) == 3, "made ahead, while the other one was reset"


def test_new_episodes_drop_what_was_made_ahead() -> None:
    options: Any = {"frames_per_batch": 10, "total_frames": 20, "reset_at_each_iter": True}
    _, second = collected([[1], [50]], AutoresetMode.NEXT_STEP, **options)
    assert second["observation"][1, :, 0].tolist() == [100, 101, 102, 103, 104]
    assert len(split_trajectories(second)) == 6
