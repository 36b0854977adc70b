"""Schedulers give a sampler the values that TorchRL's schedulers give it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import rlx
from rlx.buffer import (
    LambdaScheduler,
    LinearScheduler,
    ParameterScheduler,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    SchedulerList,
    StepScheduler,
)
from rlx.errors import SchemaMismatchError

Make = Callable[[Any], Any]
CASES: dict[str, tuple[Make, list[float]]] = {
    "linear": (lambda s: LinearScheduler(s, "beta", final_value=1.0, num_steps=4), [0.625, 0.75, 0.875, 1, 1]),
    "lambda": (lambda s: LambdaScheduler(s, "beta", lambda n: 1 + n / 2, max_value=1.2), [0.75, 1, 1.2, 1.2, 1.2]),
    "additive": (
        lambda s: StepScheduler(s, "beta", 0.25, n_steps=2, mode="additive", max_value=1),
        [0.5, 0.75, 0.75, 1, 1],
    ),
    "multiplicative": (lambda s: StepScheduler(s, "beta", 0.5, min_value=0.1), [0.25, 0.125, 0.1, 0.1, 0.1]),
}


def sampler() -> PrioritizedSampler:
    return PrioritizedSampler(10, alpha=0.6, beta=0.5)


def values(scheduler: Any, of: Any, steps: int = 5) -> list[float]:
    found = []
    for _ in range(steps):
        scheduler.step()
        found.append(float(of.beta))
    return found


@pytest.mark.parametrize(("make", "expected"), CASES.values(), ids=CASES)
def test_values(make: Make, expected: list[float]) -> None:
    ours = sampler()
    assert values(make(ours), ours) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("LinearScheduler", {"final_value": 1.0, "num_steps": 3}),
        ("LambdaScheduler", {"lambda_fn": lambda n: 0.9**n, "min_value": 0.4}),
        ("StepScheduler", {"gamma": 0.1, "n_steps": 2, "mode": "additive", "max_value": 0.65}),
        ("StepScheduler", {}),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_values_are_torchrls(name: str, options: dict[str, Any]) -> None:
    peers = pytest.importorskip("torchrl.data.replay_buffers.scheduler", reason="torchrl is not installed")
    samplers = pytest.importorskip("torchrl.data.replay_buffers.samplers")
    theirs, ours = samplers.RandomSampler(), sampler()
    theirs.beta = 0.5  # its own sampler of priorities needs an extension that may not load
    mine = {"LinearScheduler": LinearScheduler, "LambdaScheduler": LambdaScheduler, "StepScheduler": StepScheduler}
    expected = values(getattr(peers, name)(theirs, "beta", **options), theirs)
    assert values(mine[name](ours, "beta", **options), ours) == pytest.approx(expected)


def test_a_buffer_stands_for_its_sampler() -> None:
    buffer = ReplayBuffer(sampler=sampler())
    SchedulerList([StepScheduler(buffer, "beta", 0.5), StepScheduler(buffer, "alpha", 0.5)]).step()
    assert isinstance(buffer.sampler, PrioritizedSampler)
    assert (buffer.sampler.beta, buffer.sampler.alpha) == (0.25, 0.3)


def test_a_list_takes_one_and_more() -> None:
    ours = sampler()
    schedulers = SchedulerList(StepScheduler(ours, "beta", 0.5))
    schedulers.append(StepScheduler(ours, "beta", 1.0, mode="additive"))
    schedulers.step()
    assert ours.beta == 1.25


@pytest.mark.parametrize("done", range(5))
@pytest.mark.parametrize(("make", "expected"), CASES.values(), ids=CASES)
def test_a_scheduler_continues_from_its_state(make: Make, expected: list[float], done: int) -> None:
    before, after = sampler(), sampler()
    scheduler, other = make(before), make(after)
    values(scheduler, before, done)
    other.load_state_dict(scheduler.state_dict())
    after.load_state_dict(before.state_dict())
    assert values(other, after, 5 - done) == pytest.approx(expected[done:])


def test_a_checkpoint_takes_a_list(tmp_path: Path) -> None:
    def made() -> tuple[PrioritizedSampler, SchedulerList]:
        ours = sampler()
        return ours, SchedulerList(
            [StepScheduler(ours, "alpha", 0.5, n_steps=3), LinearScheduler(ours, "beta", final_value=1.0, num_steps=4)]
        )

    (before, schedulers), (after, others) = made(), made()
    for _ in range(2):
        schedulers.step()
    with rlx.Checkpoint(tmp_path / "run", sampler=before, schedulers=schedulers) as checkpoint:
        checkpoint.save(2)
    with rlx.Checkpoint(tmp_path / "run", sampler=after, schedulers=others) as checkpoint:
        assert checkpoint.restore() == 2
    for _ in range(3):
        schedulers.step()
        others.step()
        assert (after.alpha, after.beta) == (before.alpha, before.beta)
    with pytest.raises(SchemaMismatchError, match="checkpoint of 2 schedulers: expected 1"):
        SchedulerList(StepScheduler(before, "beta")).load_state_dict(schedulers.state_dict())


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_a_parameter_may_be_a_tensor(name: str) -> None:
    ours = PrioritizedSampler(10, alpha=torch.tensor(0.5), beta=torch.tensor(0.5))
    found = []
    scheduler = LinearScheduler(ours, name, final_value=1.0, num_steps=4)
    for _ in range(5):
        scheduler.step()
        found.append(float(getattr(ours, name)))
    assert found == pytest.approx([0.625, 0.75, 0.875, 1, 1])
    steps = StepScheduler(ours, name, 0.5)
    steps.step()
    assert float(getattr(ours, name)) == 0.5


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(ValueError, match="RandomSampler has no attribute 'beta'"):
        LinearScheduler(RandomSampler(), "beta", 1.0, 4)
    with pytest.raises(ValueError, match="num_steps 0: expected at least 1"):
        LinearScheduler(sampler(), "beta", 1.0, 0)
    with pytest.raises(ValueError, match="mode 'other': expected 'multiplicative' or 'additive'"):
        StepScheduler(sampler(), "beta", mode="other")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="abstract"):
        ParameterScheduler(sampler(), "beta")  # type: ignore[abstract]
