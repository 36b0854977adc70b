import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict

from rlx.collector.environment.gym_env import open_environment
from rlx.collector.environment.intake import ActionCheck
from rlx.collector.environment.space import RandomPolicy
from rlx.collector.policy.module import ModulePolicy, load_exported, set_weights
from rlx.collector.policy.protocol import EpsilonGreedy, FunctionPolicy, Situation
from rlx.collector.policy.spec import PolicySpec, as_policy, takes_tensordict
from rlx.collector.rollout.loop import Rollout
from rlx.errors import CollectError, PolicyNotFoundError
from tests.collector.environments import one

SITUATION = Situation(np.zeros((2, 3)), np.zeros(2, bool), {})


class Greedy(torch.nn.Module):
    """Actions by the largest of two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.layer(observation)
        return scores.argmax(-1)


@pytest.mark.parametrize("space", [spaces.Discrete(6), spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 3])])
def test_random_actions_do_not_depend_on_how_many_there_are(space: spaces.Space) -> None:  # type: ignore[type-arg]
    two, one_more = RandomPolicy(space, [5, 6]), RandomPolicy(space, [5, 6, 7])
    for _ in range(1100):
        np.testing.assert_array_equal(two(None), one_more(None)[:2])


def test_epsilon_greedy() -> None:
    policy = EpsilonGreedy(FunctionPolicy(one), 0.5, spaces.Discrete(100), [1, 2])
    actions = np.array([policy(SITUATION).action for _ in range(400)])
    assert 0.4 < (actions == 1).mean() < 0.6
    assert (EpsilonGreedy(FunctionPolicy(one), 0, spaces.Discrete(100), [1, 2])(SITUATION).action == 1).all()
    with pytest.raises(CollectError, match="expected 0 to 1"):
        EpsilonGreedy(FunctionPolicy(one), 2, spaces.Discrete(3), [1])


def test_epsilon_greedy_needs_actions_of_one_array() -> None:
    space = spaces.Dict(a=spaces.Discrete(2), b=spaces.Discrete(2))
    with pytest.raises(CollectError, match="epsilon needs actions that are one array, found Dict"):
        EpsilonGreedy(FunctionPolicy(one), 0.5, space, [1])


def test_epsilon_greedy_hides_no_shape_that_does_not_fit() -> None:
    policy = EpsilonGreedy(FunctionPolicy(lambda _: np.zeros((2, 1), np.int64)), 0.5, spaces.Discrete(3), [1, 2])
    with pytest.raises(CollectError, match=r"int64\[2, 1\], expected int64\[2\]"):
        ActionCheck(spaces.Discrete(3), 2)(policy(SITUATION).action)


@pytest.mark.parametrize("suffix", ["pt2", "pt"])
def test_modules_in_files(tmp_path: Path, suffix: str) -> None:
    module, path = Greedy().eval(), tmp_path / f"policy.{suffix}"
    if suffix == "pt2":
        batch = torch.export.Dim("batch", min=1, max=64)
        torch.export.save(torch.export.export(module, (torch.zeros(2, 4),), dynamic_shapes=({0: batch},)), path)
        text = str(path)
    else:
        torch.save(module.state_dict(), path)
        text = f"{path}:tests.collector.policy.test_policy:Greedy"
    environment = open_environment("CartPole-v1", 3)
    steps = Rollout(environment, [1, 2, 3]).run(PolicySpec(text).policy(environment, [1, 2, 3]), 20)
    observation = torch.from_numpy(steps.observation["observation"][:, :20])
    np.testing.assert_array_equal(steps.step["action"], module(observation))


def test_files_of_weights_that_do_not_fit(tmp_path: Path) -> None:
    environment = open_environment("CartPole-v1")
    path, factory = tmp_path / "policy.pt", "tests.collector.policy.test_policy:Greedy"
    for text in (f"{path}:{factory}", str(path)):
        with pytest.raises(PolicyNotFoundError, match=r"policy file .*policy\.pt does not exist"):
            PolicySpec(text).policy(environment, [1])
    torch.save(torch.nn.Linear(3, 3).state_dict(), path)
    with pytest.raises(CollectError, match=r"policy\.pt: weights cannot be loaded: (?s:.)*layer\.weight"):
        PolicySpec(f"{path}:{factory}").policy(environment, [1])


def test_reading_an_exported_module_leaves_the_environment_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "policy.pt2"
    torch.export.save(torch.export.export(Greedy().eval(), (torch.zeros(2, 4),)), path)
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "0")
    load_exported(path)
    assert os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] == "0"


class Unpickled:
    """Something that a file must not bring to life."""


class Running:
    """A pickle that makes a directory when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("member", ["data/sample_inputs/model.pt", "data/weights/model.pt", "data/constants/model.pt"])
def test_an_exported_module_is_not_unpickled(member: str, tmp_path: Path) -> None:
    """torch falls back to unpickling what holds more than tensors."""
    path, evil = tmp_path / "policy.pt2", io.BytesIO()
    torch.export.save(torch.export.export(Greedy().eval(), (torch.zeros(2, 4),)), path)
    torch.save((Running(tmp_path / "ran"),), evil)
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    top = next(iter(members)).partition("/")[0]
    members[f"{top}/{member}"] = evil.getvalue()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(CollectError, match="holds no exported module"):
        PolicySpec(str(path)).policy(open_environment("CartPole-v1"), [1])
    assert not (tmp_path / "ran").exists()


def test_an_exported_module_with_pickled_constants(tmp_path: Path) -> None:
    path = tmp_path / "policy.pt2"
    torch.export.save(torch.export.export(Greedy().eval(), (torch.zeros(2, 4),)), path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("policy/data/constants/Opaque_obj_0", b"")
    with pytest.raises(CollectError, match=r"holds pickled objects: .*paque_obj_0"):
        PolicySpec(str(path)).policy(open_environment("CartPole-v1"), [1])


def test_a_pickle_is_not_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.save(Unpickled(), tmp_path / "evil.pt")
    environment = open_environment("CartPole-v1")
    with pytest.raises(CollectError, match=r"evil\.pt holds more than tensors, or is damaged$") as error:
        PolicySpec(f"{tmp_path}/evil.pt:tests.collector.policy.test_policy:Greedy").policy(environment, [1])
    assert "state_dict" in str(error.value.hint)
    with pytest.raises(CollectError, match="holds no exported module") as error:
        PolicySpec(f"{tmp_path}/evil.pt").policy(environment, [1])
    assert error.value.hint is not None
    assert "module:factory" in error.value.hint
    assert not caplog.records, "torch logs no traceback"


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.zeros(3, np.int64), r"int64\[3\], expected int64\[2\]"),
        (np.zeros(2), r"float64\[2\], expected int64\[2\]"),
        (np.array([0, 6]), "expected numbers of Discrete"),
        (np.array([-1, 0]), "expected numbers of Discrete"),
        ([[1], [1, 2]], r"gave a list: expected action of Discrete\(6\) \(.*inhomogeneous"),
        (torch.zeros(2, requires_grad=True), r"float32\[2\], expected int64\[2\]"),
        (None, r"object\[\], expected int64\[2\]"),
    ],
)
def test_actions_that_do_not_fit(actions: object, message: str) -> None:
    with pytest.raises(CollectError, match=message):
        ActionCheck(spaces.Discrete(6), 2)(actions)


def test_actions_of_a_smaller_dtype_fit() -> None:
    fitting, flat = ActionCheck(spaces.Discrete(6), 2)(np.array([1, 5], np.int32))
    assert fitting.dtype == flat["action"].dtype == np.int64


def test_what_is_no_policy() -> None:
    class Needy:
        def __init__(self, size: int) -> None:
            self.size = size

    with pytest.raises(CollectError, match="policy is of type int: expected a function of observations"):
        as_policy(5)
    with pytest.raises(CollectError, match=r"policy class Needy cannot be made without arguments: .*size"):
        as_policy(Needy)
    assert not takes_tensordict(max), "it has no signature"


def test_weights_of_another_module() -> None:
    module, other, third = Greedy(), Greedy(), Greedy()
    set_weights(module, other)
    assert torch.equal(module.layer.weight, other.layer.weight)
    set_weights(module, TensorDict.from_module(third).data)
    assert torch.equal(module.layer.weight, third.layer.weight)


def test_observations_of_a_module_with_several_parts_and_texts() -> None:
    seen: list[Any] = []

    class Looking(torch.nn.Module):
        def forward(self, observation: Any) -> torch.Tensor:
            seen.append(observation)
            return torch.zeros(2, dtype=torch.int64)

    observation = (np.ones((2, 3)), np.array(["left", "right"]))
    ModulePolicy(Looking())(Situation(observation, np.zeros(2, bool), {}))
    assert torch.equal(seen[0]["0"], torch.ones(2, 3, dtype=torch.float64))
    assert seen[0]["1"].tolist() == ["left", "right"]


def test_epsilon_greedy_keeps_the_state_of_the_other_policy() -> None:
    class Stateful(FunctionPolicy):
        def initial_state(self, situation: Situation) -> Any:
            return {"h": np.zeros((len(situation.is_init), 2))}

    policy = EpsilonGreedy(Stateful(one), 0.5, spaces.Discrete(3), [1, 2])
    assert policy.initial_state(SITUATION)["h"].shape == (2, 2)


def test_random_actions_of_several_parts() -> None:
    space = spaces.Tuple([spaces.Discrete(4), spaces.Box(-1, 1, (2,))])
    number, vector = RandomPolicy(space, [1, 2])(None)
    assert (number.shape, vector.shape) == ((2,), (2, 2))
