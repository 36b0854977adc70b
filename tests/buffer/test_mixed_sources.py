"""Sources whose fields differ, in one loader: transforms come first, then what still differs is named."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase

import rlx
from rlx.buffer import RandomShift, RewardClip, ToDtype
from rlx.errors import SchemaMismatchError, TransformError
from rlx.schema import Schema
from rlx.store.dataset import Dataset
from tests.factories import make_block, write_dataset

ONE = Schema.of(observation=("float32", (9, 9)), action=("int32", ()))
OTHER = Schema.of(observation=("float64", (9, 9)), action=("int64", ()))


@pytest.fixture
def sources(tmp_path: Path) -> list[Dataset]:
    return [
        write_dataset(tmp_path / name, [[make_block([4, 6], first_episode=first, schema=schema)]], schema=schema)
        for name, first, schema in (("one", 0, ONE), ("other", 5, OTHER))
    ]


def cast_action(batch: TensorDictBase) -> TensorDictBase:
    """Not known to handle each step by itself."""
    return batch.set("action", batch["action"].long())


@pytest.mark.parametrize("cast", [ToDtype(torch.int64, keys=["action"]), cast_action])
@pytest.mark.parametrize("slice_len", [None, 2])
def test_transforms_come_before_the_comparison(sources: list[Dataset], cast: Any, slice_len: int | None) -> None:
    marked: list[int] = []

    def after(batch: TensorDictBase) -> TensorDictBase:
        marked.append(batch.batch_size.numel())
        return batch

    transform = rlx.buffer.Compose(RewardClip(), cast, ToDtype(torch.float32), after, RandomShift(1, seed=0))
    loader = rlx.loader(sources, 8, slice_len=slice_len, transform=transform, weights=[1, 1], batches=4, prefetch=0)
    plain = [next(iter(rlx.loader(source, 10, shuffle=False))) for source in sources]
    for batch in loader:
        assert batch["action"].dtype == torch.int64
        assert batch["observation"].dtype == torch.float32
        assert set(batch["collector", "dataset"].unique().tolist()) == {0, 1}
        for step in batch.reshape(-1):
            source = plain[int(step["collector", "dataset"])]
            assert int(step["action"]) == int(source["action"][int(step["index"])])
            same = source["observation"][int(step["index"])].float()
            assert torch.equal(step["observation"], same)  # of one value: no shift changes it
    assert marked == [8] * 4  # whole batches, once they are alike


def test_what_still_differs_is_named(sources: list[Dataset]) -> None:
    for transform in (None, RewardClip(), ToDtype(torch.int64, keys=["action"])):
        with pytest.raises(
            SchemaMismatchError, match=r"(action|observation) differs between datasets: (int32|float32)"
        ):
            next(iter(rlx.loader(sources, 8, weights=[1, 1], batches=1, transform=transform)))
    with pytest.raises(TransformError, match="expected as many, because sources are joined after it"):
        next(iter(rlx.loader(sources, 8, weights=[1, 1], batches=1, transform=lambda batch: batch[:1])))
