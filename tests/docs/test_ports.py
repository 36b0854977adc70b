"""Eight projects' batches by rlx are those of plain numpy, at the same steps; docs/ports.md shows the same lines."""

import inspect
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlx.block import single
from rlx.schema import Schema
from scripts.bench import ports
from tests.conftest import Cli
from tests.docs.pages import run
from tests.factories import write_dataset

PAGE = Path(__file__).parents[2] / "docs" / "ports.md"
LENGTHS = (50, 33, 71, 1, 40, 4)
SHAPES = {"pictures": ("uint8", (6, 5)), "vectors": ("float32", (3,))}
Values = dict[str, Any]


def made(path: Path, kind: str) -> Any:
    """A dataset of random steps, a shard for each trajectory."""
    rng = np.random.default_rng(0)
    (dtype, shape), shards = SHAPES[kind], []
    action: Any = ("int64", ()) if kind == "pictures" else ("float32", (2,))
    for episode, length in enumerate(LENGTHS):
        flags = np.zeros((2, length), bool)
        flags[episode % 2, -1] = True
        columns = {
            "observation": rng.integers(0, 256, (length + 1, *shape)).astype(dtype),
            "action": rng.integers(0, 9, (length, *action[1])).astype(action[0]),
            "reward": rng.integers(-3, 4, length).astype("float32"),
            "terminated": flags[0],
            "truncated": flags[1],
        }
        shards.append([single(columns, episode=episode)])
    return write_dataset(path, shards, schema=Schema.of((dtype, shape), action), codec="zstd")


def _flat(batch: Any, *key: str) -> Any:
    return batch[key].numpy()[..., 0]


# Of a batch of rlx, the values that the project has, by the names that it gives them.
NAMED: dict[str, Callable[[Any], Values]] = {
    "kzl/decision-transformer": lambda batch: {
        "states": batch["observation"],
        "actions": batch["action"],
        "returns": _flat(batch, "return_to_go"),
        "timesteps": _flat(batch, "timestep"),
    },
    "google-research/batch_rl": lambda batch: {
        "state": batch["observation"],
        "action": batch["action"],
        "reward": _flat(batch, "next", "reward"),
        "next_state": batch["next", "observation"],
        "terminal": _flat(batch, "next", "terminated"),
    },
    "mila-iqia/SGI": lambda batch: {
        "observation": batch["observation"],
        "action": batch["action"],
        "reward": _flat(batch, "next", "reward"),
        "done": _flat(batch, "next", "terminated"),
    },
    "RL Unplugged, d4rl-atari": lambda batch: {
        "state": batch["observation"],
        "action": batch["action"],
        "reward": _flat(batch, "next", "reward"),
        "discount": np.where(_flat(batch, "next", "terminated"), 0, ports.GAMMA),
        "next_state": batch["next", "observation"],
        "next_action": batch["next", "action"],
        "has_next_action": _flat(batch, "next", "has_action"),
    },
    "NM512/dreamerv3-torch": lambda batch: {
        "image": batch["observation"],
        "action": batch["action"],
        "reward": _flat(batch, "next", "reward"),
        "is_terminal": _flat(batch, "next", "terminated"),
        "is_first": _flat(batch, "is_init"),
    },
    "nicklashansen/tdmpc2": lambda batch: {
        "obs": np.concatenate([batch["observation"], batch["next", "observation"][:, -1:]], axis=1),
        "action": batch["action"],
        "reward": _flat(batch, "next", "reward"),
    },
    "seohongpark/ogbench": lambda batch: {
        "observations": batch["observation"],
        "next_observations": batch["next", "observation"],
        "actions": batch["action"],
        "value_goals": batch["value_goal"],
        "actor_goals": batch["actor_goal"],
        "rewards": _flat(batch, "next", "reward"),
        "masks": -_flat(batch, "next", "reward"),
    },
    "tinkoff-ai/CORL": lambda batch: {
        "states": batch["observation"] * batch["collector", "mask"][..., None],
        "actions": batch["action"] * batch["collector", "mask"][..., None],
        "returns": _flat(batch, "return_to_go") * batch["collector", "mask"].numpy(),
        "mask": batch["collector", "mask"],
    },
}


def _steps(project: str, batch: Any) -> Any:
    """Return the steps of a batch, as the project's own code takes them."""
    if project == "seohongpark/ogbench":
        return np.stack([batch[key].numpy() for key in ("index", "value_step", "actor_step")], axis=1)
    if project == "tinkoff-ai/CORL":
        return np.where(batch["collector", "mask"], batch["index"], -1)
    return batch["index"].numpy()


@pytest.mark.parametrize("port", ports.PORTS, ids=lambda port: port.project)
def test_batches_are_those_of_plain_numpy(port: ports.Port, tmp_path: Path) -> None:
    dataset = made(tmp_path / "data", port.data)
    memory = ports.Memory(dataset)
    for batch in islice(ports.endless(port.rlx(dataset)), 3):
        steps = _steps(port.project, batch)
        assert steps.shape == port.draw(memory, np.random.default_rng(1)).shape
        expected, found = port.plain(memory, steps), NAMED[port.project](batch)
        for name, values in found.items():
            np.testing.assert_allclose(np.asarray(values), expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_goals_are_of_the_kinds_that_the_project_draws(tmp_path: Path) -> None:
    dataset = made(tmp_path / "data", "pictures")
    memory, rng = ports.Memory(dataset), np.random.default_rng(0)
    shares = []
    ours = (_steps("seohongpark/ogbench", batch) for batch in ports.endless(ports.ogbench(dataset)))
    for draws in (ours, (ports.draw_goals(memory, rng) for _ in range(40))):
        step, value, actor = np.concatenate(list(islice(draws, 40))).T
        same = memory.first[step] == memory.first[value]
        assert ((actor > step) | (step == memory.last[step])).all()
        assert (memory.first[actor] == memory.first[step]).all()
        shares.append([(value == step).mean(), (same & (value > step)).mean(), (~same).mean()])
    np.testing.assert_allclose(shares[0], shares[1], atol=0.03)


def test_the_page_runs(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ale_py")
    monkeypatch.chdir(tmp_path)
    run(PAGE, cli)


@pytest.mark.parametrize("port", ports.PORTS, ids=lambda port: port.project)
def test_the_page_shows_the_lines(port: ports.Port) -> None:
    page = PAGE.read_text()
    assert port.project in page
    assert inspect.getsource(port.rlx).rstrip() in page
