"""Whatever lies on an accelerator: run where torch has one, in any of its backends."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

import rlx
from rlx.buffer import (
    FrameStack,
    HERReplayBuffer,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    NStep,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    ReplayBuffer,
    ReturnToGo,
    SliceSampler,
    TensorDictReplayBuffer,
    ToDevice,
)
from rlx.buffer.batch import pinned
from rlx.buffer.loader_reading import Copies
from rlx.buffer.ray_buffer import _on_cpu
from rlx.buffer.storage.step_schema import leaves_of
from rlx.errors import OptionError, SchemaMismatchError, TransformError
from rlx.seeding import generator_state, seeded, set_generator_state

N = 40


@pytest.fixture
def gpu() -> torch.device:
    if not torch.accelerator.is_available():
        pytest.skip("this machine has no GPU that torch can use")
    found = torch.accelerator.current_accelerator()
    assert found is not None
    return torch.device(found.type, 0)


def steps(n: int = N) -> TensorDict:
    places = torch.arange(n + 1.0)[:, None].repeat(1, 3)
    done = (torch.arange(n) % 8 == 7)[:, None]
    after = {"observation": places[1:], "reward": torch.ones(n, 1), "done": done}
    after |= {"terminated": done.clone(), "truncated": torch.zeros_like(done)}
    return TensorDict({"observation": places[:-1], "action": torch.arange(n), "next": after}, [n])


def devices(batch: TensorDictBase) -> set[str]:
    return {leaf.device.type for leaf in leaves_of(batch).values()}


def on(gpu: torch.device, kind: type[ReplayBuffer] = ReplayBuffer, **options: Any) -> Any:
    buffer = kind(storage=LazyTensorStorage(100, device=gpu), batch_size=8, **options)
    buffer.extend(steps())
    return buffer


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": SliceSampler(slice_len=4)},
        {"sampler": PrioritizedSampler(100, 0.7, 0.9)},
        {"sampler": PrioritizedSliceSampler(100, 0.7, 0.9, slice_len=4)},
        {"transform": NStep(3, 0.5)},
        {"transform": ReturnToGo(0.9)},
        {"transform": FrameStack(3)},
        {"pin_memory": True},
    ],
)
def test_all_of_a_batch_is_on_the_device_of_the_storage(gpu: torch.device, options: dict[str, Any]) -> None:
    for kind in (ReplayBuffer, TensorDictReplayBuffer):
        assert devices(on(gpu, kind, **options).sample()) == {gpu.type}


def test_hindsight_of_steps_on_a_device(gpu: torch.device) -> None:
    walk = steps()
    walk["desired_goal"], walk["next", "achieved_goal"] = walk["observation"] + 5, walk["next", "observation"].clone()
    walk["achieved_goal"] = walk["observation"].clone()

    def reward(some: TensorDictBase) -> torch.Tensor:
        reached: torch.Tensor = (some["next", "achieved_goal"] == some["desired_goal"]).all(-1, keepdim=True)
        return reached.float()

    buffer = HERReplayBuffer(reward, storage=LazyTensorStorage(100, device=gpu), batch_size=8)
    buffer.extend(walk)
    assert devices(buffer.sample()) == {gpu.type}


@pytest.mark.parametrize("move", [ToDevice, None])
def test_priorities_of_a_batch_on_a_device(gpu: torch.device, move: Any) -> None:
    transform = None if move is None else move(gpu)
    sampler = PrioritizedSampler(100, 0.7, 0.9)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100), sampler=sampler, transform=transform, batch_size=8)
    buffer.extend(steps())
    batch = buffer.sample().to(gpu)
    batch["td_error"] = torch.rand(8, device=gpu)
    buffer.update_tensordict_priority(batch)
    assert torch.equal(buffer[batch["index"]]["action"].cpu(), batch["index"].cpu())


def test_an_index_of_a_dataset_may_be_on_a_device(gpu: torch.device, pong: Path) -> None:
    dataset = rlx.open(pong)
    rows = torch.tensor([3, 1])
    assert torch.equal(dataset[rows.to(gpu)]["action"], dataset[rows]["action"])


@pytest.mark.parametrize("storage", [ListStorage, LazyStackStorage])
def test_lists_keep_steps_on_the_cpu(gpu: torch.device, storage: Callable[[int], Any]) -> None:
    buffer = ReplayBuffer(storage=storage(100), batch_size=32)
    buffer.extend(steps(20).to(gpu))
    buffer.extend(steps(20))
    assert devices(buffer.sample()) == {"cpu"}


def test_page_locked_batches_move_to_a_device(gpu: torch.device) -> None:
    seen = []

    class Watched(ToDevice):
        def __call__(self, batch: TensorDictBase) -> TensorDictBase:
            seen.append(batch["action"].is_pinned())
            return ToDevice.__call__(self, batch)

    options: dict[str, Any] = {"transform": Watched(gpu), "pin_memory": True, "prefetch": 2, "batch_size": 8}
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), **options)
    buffer.extend(steps())
    assert devices(buffer.sample()) == {gpu.type}
    assert all(seen)
    pairs = ReplayBuffer(storage=LazyTensorStorage(100), collate_fn=lambda batch: (batch,), pin_memory=True)  # type: ignore[arg-type, return-value]
    pairs.extend(steps())
    assert type(pairs.sample(4)) is tuple


def test_steps_for_a_server_lie_on_the_cpu(gpu: torch.device) -> None:
    given = TensorDict({"a": torch.arange(3, device=gpu)}, [3])
    as_dict, (listed,) = _on_cpu(dict(given)), _on_cpu([given])
    assert type(as_dict) is dict
    assert all(sent["a"].is_cpu for sent in (_on_cpu(given), as_dict, listed))


def test_to_the_cpu_waits_for_the_copy(gpu: torch.device) -> None:
    buffer = on(gpu, transform=ToDevice("cpu"))
    for _ in range(4):
        batch = buffer.sample()
        assert torch.equal(batch["observation"][:, 0], batch["action"].float())


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_loader_of_a_buffer_on_a_device(gpu: torch.device, prefetch: int) -> None:
    buffer = on(gpu)
    for batch in rlx.loader(buffer, 8, device=gpu, prefetch=prefetch):
        assert torch.equal(batch["observation"][:, 0], batch["action"].float())
        assert devices(batch) == {gpu.type}


def test_a_copy_does_not_wait_for_what_the_learner_computes(gpu: torch.device) -> None:
    large, copies = torch.zeros(2**26, dtype=torch.uint8, device=gpu), Copies(gpu)
    for _ in range(100):
        large.copy_(large.clone(), non_blocking=True)
    learned = torch.accelerator.current_stream().record_event()
    batch, copied = copies.start(steps())
    assert copied is not None
    copied.synchronize()
    assert not learned.query()
    assert torch.equal(copies.finish((batch, copied))["action"].cpu(), steps()["action"])


def test_a_loader_of_steps_of_different_shapes(gpu: torch.device) -> None:
    buffer = ReplayBuffer(storage=LazyStackStorage(100))
    buffer.extend([TensorDict({"tokens": torch.arange(1.0 + n % 5), "number": torch.tensor(n)}) for n in range(16)])
    for batch in rlx.loader(buffer, 8, device=gpu):
        assert all(len(step["tokens"]) == 1 + int(step["number"]) % 5 for step in batch.tensordicts)


def test_a_loader_says_what_it_cannot_move(gpu: torch.device) -> None:
    here = ReplayBuffer(storage=LazyTensorStorage(100))
    here.extend(steps())
    with pytest.raises(SchemaMismatchError, match="expected one device"):
        next(iter(rlx.loader([here, on(gpu)], 8)))
    with pytest.raises(TransformError, match="returned a tuple"):
        next(iter(rlx.loader(here, 8, device=gpu, transform=lambda batch: (batch,))))  # type: ignore[arg-type]


def test_devices_that_are_not_there() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(100))
    buffer.extend(steps())
    with pytest.raises(OptionError, match="'gpu': expected one of torch's"):
        rlx.loader(buffer, 8, device="gpu")
    for use in (
        lambda: next(iter(rlx.loader(buffer, 8, device="xla"))),
        lambda: ReplayBuffer(storage=LazyTensorStorage(100, device="xla")).extend(steps()),
        lambda: ToDevice("xla")(steps()),
        lambda: rlx.Collector("CartPole-v1", frames_per_batch=4, total_frames=4, storing_device="xla"),
        lambda: next(
            iter(rlx.Collector("CartPole-v1", torch.nn.Linear(4, 2), frames_per_batch=4, policy_device="xla"))
        ),
    ):
        with pytest.raises(OptionError, match="device 'xla' is missing here"):
            use()


@pytest.fixture
def second(gpu: torch.device) -> Iterator[torch.device]:
    if torch.accelerator.device_count() < 2:
        pytest.skip("one GPU only")
    torch.accelerator.set_device_index(1)
    yield torch.device(gpu.type, 1)
    torch.accelerator.set_device_index(0)


def test_threads_use_the_device_of_the_user(second: torch.device) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), transform=ToDevice(second.type), batch_size=8, prefetch=3)
    buffer.extend(steps())
    assert {buffer.sample()["action"].device for _ in range(8)} == {second}
    moved = rlx.loader(buffer, 8, transform=lambda batch: batch.to(second.type), prefetch=3)
    assert {batch["action"].device for batch in moved} == {second}


def test_batches_read_ahead_are_on_the_stream_of_the_user(gpu: torch.device) -> None:
    streams = []

    def note(batch: TensorDictBase) -> TensorDictBase:
        streams.append((threading.get_ident(), torch.accelerator.current_stream()))
        return batch

    buffer = ReplayBuffer(storage=LazyTensorStorage(100), transform=note, batch_size=8, prefetch=3)
    buffer.extend(steps())
    mine = torch.Stream(device=gpu)
    with mine:
        for _ in range(8):
            buffer.sample()
    assert {stream for _, stream in streams} == {mine}


def test_a_checkpoint_has_what_another_stream_computed(gpu: torch.device, tmp_path: Path) -> None:
    module = torch.nn.Module()
    module.register_buffer("weights", torch.zeros(100_000, device=gpu))
    with rlx.Checkpoint(tmp_path / "run", module=module) as checkpoint:
        with torch.Stream(device=gpu):
            for step in range(1, 5):
                module.weights.fill_(step)  # type: ignore[operator]
                checkpoint.save(step)
        assert checkpoint.restore() == 4
        assert module.weights.eq(4).all()  # type: ignore[operator]


def test_generators_of_any_accelerator_are_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    states = [torch.tensor([1]), torch.tensor([2]), torch.tensor([3])]

    class Module:
        is_available = is_initialized = staticmethod(lambda: True)
        get_rng_state_all = staticmethod(lambda: list(states))
        set_rng_state_all = None  # there may be another number of devices

        @staticmethod
        def set_rng_state(state: torch.Tensor, number: int) -> None:
            states[number] = state

    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("xpu"))  # noqa: ARG005
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "get_device_module", lambda device: Module)  # noqa: ARG005
    saved = generator_state()
    states[:] = [torch.tensor([0]), torch.tensor([0])]  # another machine, with two
    set_generator_state(saved)
    assert states == [1, 2]
    with seeded(3):
        states[:] = [torch.tensor([0]), torch.tensor([0])]
    assert states == [1, 2]


def test_pinning_leaves_alone_what_is_no_tensor() -> None:
    assert pinned((1, 2)) == (1, 2)
    assert pinned("text") == "text"
