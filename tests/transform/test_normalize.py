from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from rlx.errors import TransformError
from rlx.store.dataset import Dataset
from rlx.transform.registry import parse
from rlx.verbs.recipe import Recipe
from tests.factories import LARGE, make_block, write_dataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write_dataset(
        tmp_path_factory.mktemp("d") / "d", [[make_block((3, 5))], [make_block((4,), first_episode=2)]]
    )


def test_mean_and_deviation_are_the_datasets(dataset: Dataset) -> None:
    applied = Recipe((parse("normalize"), parse("clip_reward"))).applied(dataset)
    assert applied.schema["observation"].dtype == "float32"
    rows = np.concatenate(
        [block.data["observation"] for shard in applied.shards() for block in applied.blocks(shard, Counter())]
    )
    stored = np.concatenate([block.data["observation"] for block in dataset.blocks()]).astype(np.float64)
    begun = dataset[:]["observation"].numpy().astype(np.float64)
    np.testing.assert_allclose(rows, (stored - begun.mean(0)) / begun.std(0), rtol=1e-5, atol=1e-6)


def test_after_renaming_and_a_filter(dataset: Dataset) -> None:
    recipe = Recipe((parse("filter:length > 3"), parse("rename:observation=observation/x"), parse("normalize")))
    assert recipe.applied(dataset).schema["observation/x"].dtype == "float32"


@pytest.mark.parametrize(
    ("before", "text", "message"),
    [
        (
            "to_float:scale=255",
            "normalize",
            "the manifest has no mean of observation: expected an observation that no earlier transform",
        ),
        ("sign_reward", "normalize:keys=action", "the manifest has no mean of action"),
        ("sign_reward", "normalize:keys=nothing", "unknown field 'nothing': expected one of observation"),
        ("frame_skip:k=2", "normalize", "the manifest has no mean of observation"),
    ],
)
def test_what_has_no_mean(dataset: Dataset, before: str, text: str, message: str) -> None:
    with pytest.raises(TransformError, match=message):
        Recipe((parse(before), parse(text))).applied(dataset)


def test_pictures(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "d", [[make_block((30,), schema=LARGE)]], schema=LARGE)
    applied = Recipe((parse("normalize"),)).applied(dataset)
    (block,) = applied.blocks(0, Counter())
    sampled = np.arange(31)[::16].astype(np.float64)
    found = block.data["observation"][:, 0, 0].astype(np.float64)
    np.testing.assert_allclose(found, (np.arange(31) - sampled.mean()) / sampled.std(), rtol=1e-5)
    with pytest.raises(TransformError, match="eps is 0"):
        parse("normalize:eps=0")
