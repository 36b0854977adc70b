"""The same call in both libraries: rlx does what TorchRL does, or refuses by name."""

import itertools
from typing import Any

import pytest
import torch
from tensordict import TensorDict, tensorclass

from rlx import buffer as ours
from rlx.collector import Collector, SerialEnv
from rlx.errors import CollectError, SchemaMismatchError

theirs = pytest.importorskip("torchrl.data", reason="TorchRL is not installed")
collectors = pytest.importorskip("torchrl.collectors", reason="TorchRL is not installed")
envs = pytest.importorskip("torchrl.envs", reason="TorchRL is not installed")

SHAPES: list[tuple[int, ...]] = [(), (6,), (1, 6), (2, 6), (2, 3, 4), (1, 2, 3, 4)]


def steps(shape: tuple[int, ...], *, ids: bool) -> TensorDict:
    number = torch.arange(torch.Size(shape).numel()).reshape(shape)
    made = TensorDict({"number": number, "next": {"done": torch.zeros(*shape, 1, dtype=torch.bool)}}, shape)
    return made.set(("collector", "traj_ids"), number // max(1, shape[-1] if shape else 1)) if ids else made


def outcome(library: Any, data: Any, ndim: int, buffer: str = "ReplayBuffer") -> Any:
    """Rows and the steps of all, in any order, as batches show them; or that it is refused."""
    made = getattr(library, buffer)(storage=library.LazyTensorStorage(48, ndim=ndim))
    made.extend(data)
    batch = made.sample(500)
    shape = tuple(batch.shape[1:])
    return len(made), shape, sorted({tuple(row.flatten().tolist()) for row in batch["number"]})


@pytest.mark.parametrize(("shape", "ndim", "ids"), list(itertools.product(SHAPES, (1, 2, 3), (True, False))))
def test_every_shape_in_a_storage_of_every_dimension(shape: tuple[int, ...], ndim: int, ids: bool) -> None:
    try:
        expected = outcome(theirs, steps(shape, ids=ids), ndim)
    except (RuntimeError, ValueError):
        with pytest.raises(SchemaMismatchError, match="dimensions, found"):
            outcome(ours, steps(shape, ids=ids), ndim)
        return
    assert outcome(ours, steps(shape, ids=ids), ndim) == expected


@pytest.mark.parametrize(
    ("shape", "buffer"), list(itertools.product(SHAPES[1:], ("ReplayBuffer", "TensorDictReplayBuffer")))
)
def test_what_a_batch_of_longer_rows_says_of_them(shape: tuple[int, ...], buffer: str) -> None:
    found = []
    for library in (ours, theirs):
        made = getattr(library, buffer)(storage=library.LazyTensorStorage(8), batch_size=5)
        made.extend(steps(shape, ids=True))
        batch = made.sample()
        found.append({key: batch[key].shape for key in batch.keys(include_nested=True, leaves_only=True)})
    assert found[0] == found[1]


@pytest.mark.parametrize(("batched", "ndim"), list(itertools.product((False, True), (1, 2, 3))))
def test_what_a_collector_writes_to_a_buffer(batched: bool, ndim: int) -> None:
    def filled(library: Any, collector: Any, env: Any) -> tuple[int, tuple[int, ...]]:
        memory = library.ReplayBuffer(storage=library.LazyTensorStorage(100, ndim=ndim), batch_size=4)
        made = collector(env, None, frames_per_batch=20, total_frames=40, replay_buffer=memory)
        assert list(made) == [None, None]
        made.shutdown()
        return len(memory), tuple(memory.sample().shape)

    def gym() -> Any:
        return envs.GymEnv("CartPole-v1")

    try:
        expected = filled(theirs, collectors.Collector, envs.SerialEnv(2, gym) if batched else gym())
    except ValueError:
        with pytest.raises(CollectError, match=f"ndim={ndim}, batches have shape"):
            filled(ours, Collector, SerialEnv(2, "CartPole-v1") if batched else "CartPole-v1")
        return
    assert filled(ours, Collector, SerialEnv(2, "CartPole-v1") if batched else "CartPole-v1") == expected


@tensorclass
class Step:
    """A step of one's own class."""

    observation: torch.Tensor
    reward: torch.Tensor


made_of: Any = getattr(Step, "from_tensordict")  # noqa: B009 (mypy knows no tensorclass)
DATA: dict[str, Any] = {
    "tensor": torch.arange(12).reshape(6, 2),
    "list of tensors": [torch.zeros(3), torch.ones(3)],
    "dict": {"a": torch.arange(6), "b": {"c": torch.zeros(6, 2)}},
    "list of dicts": [{"a": torch.zeros(3)}, {"a": torch.ones(3)}],
    "tensorclass": made_of(TensorDict({"observation": torch.zeros(6, 3), "reward": torch.zeros(6)}, [6])),
    "list of TensorDicts": [TensorDict({"a": torch.zeros(3)}), TensorDict({"a": torch.ones(3)})],
}
REFUSED: dict[str, Any] = {
    "numbers": [1, 2, 3],
    "texts": ["a", "b"],
    "objects": [object()],
    "an array": torch.arange(6).numpy(),
    "a number": 3,
    "nothing": None,
    "a tuple": (torch.zeros(4), torch.ones(4)),
    "an empty list": [],
    "lengths that differ": {"a": torch.zeros(3), "b": torch.zeros(4)},
    "no rows": {"a": torch.tensor(1)},
    "of two kinds": [torch.zeros(2), {"a": torch.zeros(2)}],
}


def described(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: described(value) for key, value in data.items()}
    return type(data), tuple(data.shape), data.dtype if isinstance(data, torch.Tensor) else None


@pytest.mark.parametrize(("name", "buffer"), list(itertools.product(DATA, ("ReplayBuffer", "TensorDictReplayBuffer"))))
def test_what_is_no_tensordict_comes_back_as_it_came(name: str, buffer: str) -> None:
    def found(library: Any) -> list[Any]:
        made = getattr(library, buffer)(storage=library.LazyTensorStorage(10), batch_size=4)
        made.extend(DATA[name])
        return [len(made), described(made.sample()), described(made[0])]

    try:
        expected = found(theirs)
    except ValueError:  # rlx takes a list of TensorDicts everywhere
        if name != "list of TensorDicts":
            with pytest.raises(SchemaMismatchError, match="expected a TensorDict, found a"):
                found(ours)
        return
    assert found(ours) == expected


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_stored_is_refused(name: str) -> None:
    made = ours.ReplayBuffer()
    with pytest.raises(SchemaMismatchError, match="expected"):
        made.extend(REFUSED[name])
    assert len(made) == 0


@pytest.mark.parametrize("name", DATA)
def test_forms_are_kept_by_single_writes_and_checkpoints(name: str, tmp_path: Any) -> None:
    made = ours.ReplayBuffer(storage=ours.LazyTensorStorage(10), batch_size=4)
    made.extend(DATA[name])
    made.add(made[0])
    assert described(made[len(made) - 1]) == described(made[0])
    made[0] = made[1]
    made.dumps(tmp_path)
    other = ours.ReplayBuffer(storage=ours.LazyTensorStorage(10), batch_size=4)
    if name == "tensorclass":  # a checkpoint has no classes
        other.extend(DATA[name])
    other.loads(tmp_path)
    assert described(other[:]) == described(made[:])
    if name != "list of TensorDicts":
        with pytest.raises(SchemaMismatchError, match="as was written first"):
            other.extend(DATA["list of TensorDicts"])


@pytest.mark.parametrize("n", [1, 3, 9])
@pytest.mark.parametrize("shape", [(7,), (1, 7), (3, 7), (2, 3, 7)])
def test_n_step_transitions_of_a_batch(shape: tuple[int, ...], n: int) -> None:
    number = torch.arange(torch.Size(shape).numel()).reshape(*shape, 1)
    flags = {"terminated": number % 5 == 2, "truncated": number % 11 == 4}
    after = {"observation": number + 1, "reward": 1.5**number, "done": flags["terminated"] | flags["truncated"]}
    batch = TensorDict({"observation": number, "next": {**after, **flags}}, shape)
    found, expected = ours.NStep(n, 0.5)(batch), theirs.MultiStep(gamma=0.5, n_steps=n)(batch)
    for key in (("next", "observation"), ("next", "original_reward")):
        assert torch.equal(found[key], expected[key])
    torch.testing.assert_close(found["next", "reward"], expected["next", "reward"])
    for name in ("steps_to_next_obs", "gamma"):  # [*B, T, 1], as the reward is
        torch.testing.assert_close(found[name].squeeze(-1), expected[name])
    assert set(expected.keys(True, True)) - set(found.keys(True, True)) == {"nonterminal"}
    assert torch.equal(expected["next", "done"], batch["next", "done"]), "TorchRL keeps the flags of the first step"
    last = (found["observation"] + found["steps_to_next_obs"] - 1).flatten()
    assert torch.equal(found["next", "done"].flatten(), batch["next", "done"].flatten()[last])


@pytest.mark.parametrize("shape", [(7,), (3, 7)])
def test_returns_to_go_of_a_batch(shape: tuple[int, ...]) -> None:
    number = torch.arange(torch.Size(shape).numel()).reshape(*shape, 1)
    done = number % 5 == 2
    batch = TensorDict({"next": {"reward": number.float(), "done": done, "terminated": done}}, shape)
    found = ours.ReturnToGo(0.5)(batch)
    expected = envs.Reward2GoTransform(gamma=0.5).inv(batch.clone())
    torch.testing.assert_close(found["return_to_go"], expected["next", "reward"])
