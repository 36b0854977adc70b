"""Parquet for RLlib, beside the steps of the dataset, and RLlib itself where all that it needs is installed."""

from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

import rlx
from rlx.errors import DatasetExistsError, SchemaMismatchError
from rlx.integrations import rllib
from rlx.schema import Schema
from rlx.testing.dataset_exporter import random_block
from tests.factories import collected, write_dataset

pytest.importorskip("gymnasium", reason="gymnasium is not installed")


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("rllib")
    collected("CartPole-v1", home / "data", steps=1500, seed=0)
    rllib.write_parquet(home / "data", home / "steps.parquet")
    return home / "steps.parquet"


def test_the_rows_are_the_steps(parquet: Path) -> None:
    rows, steps = pyarrow.parquet.read_table(parquet).to_pydict(), rlx.open(parquet.parent / "data")[:]
    after = steps["next"]
    expected = {
        "obs": steps["observation"],
        "actions": steps["action"],
        "new_obs": after["observation"],
        "rewards": after["reward"][:, 0],
        "terminateds": after["terminated"][:, 0],
        "truncateds": after["truncated"][:, 0],
    }
    for name, values in expected.items():
        np.testing.assert_array_equal(np.array(rows[name]), values.numpy(), err_msg=name)
    assert rows["eps_id"] == [str(number) for number in steps["collector", "traj_ids"].flatten().tolist()]
    with pytest.raises(DatasetExistsError, match="exists"):
        rllib.write_parquet(parquet.parent / "data", parquet)


def test_a_dataset_of_no_steps_is_a_table_of_no_rows(tmp_path: Path) -> None:
    rllib.write_parquet(write_dataset(tmp_path / "data", []), tmp_path / "steps.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "steps.parquet").shape == (0, 7)


def test_several_observations_are_refused(tmp_path: Path) -> None:
    schema = Schema.of(observation=("float32", (2,)), action=("int64", ()))
    schema = Schema({f"{name}/a" if name == "observation" else name: field for name, field in schema.fields.items()})
    write_dataset(tmp_path / "data", [[random_block(schema)]], schema=schema)
    with pytest.raises(SchemaMismatchError, match="expected observation, one array"):
        rllib.write_parquet(tmp_path / "data", tmp_path / "steps.parquet")
    assert not (tmp_path / "steps.parquet").exists()


@pytest.mark.soak  # half a minute
@pytest.mark.filterwarnings("default")  # RLlib's own
def test_rllib_trains(parquet: Path) -> None:
    ray = pytest.importorskip("ray")
    bc = pytest.importorskip("ray.rllib.algorithms.bc", reason="RLlib is not installed")
    from gymnasium import spaces  # noqa: PLC0415

    ray.init(num_cpus=6, include_dashboard=False, log_to_driver=False)
    try:
        box = spaces.Box(-np.inf, np.inf, (4,))
        config = bc.BCConfig().environment(observation_space=box, action_space=spaces.Discrete(2))
        config = config.learners(num_learners=0).env_runners(num_env_runners=0)
        config = config.offline_data(input_=[str(parquet)], dataset_num_iters_per_learner=1)
        algorithm = config.training(train_batch_size_per_learner=256).build_algo()
        losses = [algorithm.train()["learners"]["default_policy"]["policy_loss"] for _ in range(2)]
        assert np.isfinite(losses).all()
    finally:
        ray.shutdown()
