"""Keys that rlx does not know come out of every storage, by every sampler and transform, as they went in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict, TensorDictBase

import rlx.buffer.transform
from rlx import buffer as buffers
from rlx.buffer.storage.tensors import MappedStorage
from rlx.schema import Field, Role, Schema
from rlx.store.ted import to_rows
from tests.factories import SMALL, make_block, write_dataset

LENGTHS = (3, 9, 7)
STEPS = sum(LENGTHS)
LAST = np.repeat(np.cumsum(LENGTHS) - 1, LENGTHS)
EXTRA = {
    "info/deep/er": Field("int16", (1,), Role.STEP),
    "score": Field("float64", (), Role.STEP),
    "action_log_prob": Field("float32", (), Role.STEP),
    "state/h": Field("float16", (2, 3), Role.OBSERVATION),
    "wide": Field("float64", (200,), Role.NEXT),
    "info/value": Field("float64", (2,), Role.NEXT),
    "task": Field("string", (), Role.STEP),
    "info/said": Field("string", (), Role.NEXT),
}
TEXTS: list[Any] = ["task", ("next", "info", "said")]
NUMBERS: list[Any] = [
    ("info", "deep", "er"),
    "score",
    "action_log_prob",
    ("state", "h"),
    ("next", "state", "h"),
    ("next", "wide"),
    ("next", "info", "value"),
]


@pytest.fixture(scope="module")
def storages(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """The same steps in a storage of each kind; all but that of a dataset are full."""
    folder = tmp_path_factory.mktemp("extra")
    schema = Schema({**SMALL.fields, **EXTRA})
    block = make_block(LENGTHS, schema=schema)
    score: Any = block.data["score"]
    score += 1 / 3  # no float32
    dataset = write_dataset(folder / "dataset", [[block]], schema=schema)
    steps: Any = buffers.DatasetStorage(dataset).get(np.arange(STEPS))
    numbers = steps.exclude(*TEXTS)
    numbers.clone().memmap(str(folder / "mapped"))
    made: dict[str, Any] = {
        "DatasetStorage": buffers.DatasetStorage(dataset),
        "TensorStorage": buffers.TensorStorage(numbers.clone()),
        "MappedStorage": MappedStorage(folder / "mapped"),
    }
    for kind in ("ListStorage", "LazyTensorStorage", "LazyMemmapStorage", "CompressedStorage", "LazyStackStorage"):
        made[kind] = getattr(buffers, kind)(STEPS)
        for start in range(0, STEPS, 7):
            made[kind].append(steps[start : start + 7])
    return made


STORAGES = (
    "DatasetStorage",
    "ListStorage",
    "LazyTensorStorage",
    "LazyMemmapStorage",
    "CompressedStorage",
    "LazyStackStorage",
    "TensorStorage",
    "MappedStorage",
)
SAMPLERS: Mapping[str, Callable[[], Any]] = {
    "RandomSampler": lambda: buffers.RandomSampler(seed=0),
    "SamplerWithoutReplacement": lambda: buffers.SamplerWithoutReplacement(seed=0),
    "SliceSampler": lambda: buffers.SliceSampler(slice_len=3, seed=0),
    "SliceSamplerWithoutReplacement": lambda: buffers.SliceSamplerWithoutReplacement(slice_len=3, seed=0),
    "PrioritizedSampler": lambda: buffers.PrioritizedSampler(STEPS, 0.7, 0.5, seed=0),
    "PrioritizedSliceSampler": lambda: buffers.PrioritizedSliceSampler(STEPS, 0.7, 0.5, slice_len=3, seed=0),
}


@dataclass(frozen=True)
class Case:
    """A transform, and what it makes of keys that are not its own.

    Args:
        transform: the transform.
        ahead: steps by which what is under ``next`` is later, at most.
        to: what a number becomes, by key.
    """

    transform: Any
    ahead: int = 0
    to: Callable[[Any, torch.Tensor], torch.Tensor] = lambda _, leaf: leaf


def _floats_to(dtype: torch.dtype, _: Any, leaf: torch.Tensor) -> torch.Tensor:
    return leaf.to(dtype) if leaf.is_floating_point() else leaf


def _halved(key: Any, leaf: torch.Tensor) -> torch.Tensor:
    return leaf / 2 if key == "score" else leaf


def _divided(key: Any, leaf: torch.Tensor) -> torch.Tensor:
    return leaf.float() / 2 if key == "score" else leaf


transform = rlx.buffer.transform
TRANSFORMS: Mapping[str, Case] = {
    "a function": Case(lambda batch: batch.set("mine", batch["next", "reward"] * 2)),
    "Compose": Case(transform.Compose(transform.FrameStack(2), transform.NStep(3, 0.9), transform.RewardSign()), 2),
    "FrameStack": Case(transform.FrameStack(3)),
    "Goals": Case(transform.Goals({"goal": "observation"}, uniform=1.0, seed=0)),
    "Inverted": Case(transform.Inverted(transform.RewardSign())),
    "NStep": Case(transform.NStep(2, 0.9), 1),
    "NextAction": Case(transform.NextAction()),
    "Normalize": Case(transform.Normalize({"score": {"mean": 0, "std": 2}}), to=_halved),
    "ReturnToGo": Case(transform.ReturnToGo(0.9)),
    "RewardClip": Case(transform.RewardClip()),
    "RewardSign": Case(transform.RewardSign()),
    "Timestep": Case(transform.Timestep()),
    "ToDevice": Case(transform.ToDevice("cpu")),
    "ToDtype": Case(transform.ToDtype(torch.bfloat16), to=partial(_floats_to, torch.bfloat16)),
    "ToFloat": Case(transform.ToFloat(2.0, keys=["score"]), to=_divided),
}


# Those of images, of which there are none here, and of datasets alone.
ELSEWHERE = {"ChannelOrder", "RandomShift", "TrajectoryColumns"}


def test_every_transform_is_here() -> None:
    assert set(transform.__all__) - ELSEWHERE == TRANSFORMS.keys() - {"a function"}


def _assert_as_expected(batch: TensorDictBase, rows: Any, stored: TensorDictBase, case: Case, keys: list[Any]) -> None:
    ends = np.minimum(rows + case.ahead, LAST[rows])
    for key in keys:
        at = ends if key[0] == "next" else rows
        found = batch.get(key)
        if key in TEXTS:
            assert to_rows(found).tolist() == to_rows(stored.get(key))[at].tolist(), key
            continue
        expected = case.to(key, stored.get(key)[torch.from_numpy(at)])
        assert found.dtype == expected.dtype, key
        assert torch.equal(found, expected), key


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("kind", STORAGES)
def test_extra_keys(storages: Mapping[str, Any], kind: str, sampler: str) -> None:
    stored = storages["DatasetStorage"].get(np.arange(STEPS))
    keys = NUMBERS if kind in ("TensorStorage", "MappedStorage") else NUMBERS + TEXTS
    for name, case in TRANSFORMS.items():
        made = buffers.ReplayBuffer(
            storage=storages[kind], writer=buffers.ImmutableDatasetWriter(), transform=case.transform
        )
        made.set_sampler(SAMPLERS[sampler]())
        batch, info = made.sample(12, return_info=True)
        try:
            _assert_as_expected(batch, info["index"].numpy(), stored, case, keys)
        except AssertionError as exc:
            exc.add_note(f"transform {name}")
            raise


def test_what_is_compared_differs_from_step_to_step() -> None:
    steps = TensorDict({"score": torch.arange(STEPS) + 1 / 3}, [STEPS])
    with pytest.raises(AssertionError):
        _assert_as_expected(steps, np.arange(STEPS), steps[torch.arange(STEPS).roll(1)], Case(None), ["score"])
