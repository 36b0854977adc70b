"""A replay buffer on Ray: the batches of a local one, rate limits, several tables, deaths of clients and servers."""

import asyncio
import logging
import os
import pickle
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, cast

import cloudpickle
import pytest
import ray
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

import rlx
from rlx.buffer import (
    CompressedStorage,
    LazyTensorStorage,
    MinSize,
    NStep,
    PrioritizedSampler,
    RateLimiter,
    RayReplayBuffer,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SampleToInsertRatio,
    SliceSampler,
    TensorDictReplayBuffer,
)
from rlx.buffer.ray_server import Server, packed, unpacked
from rlx.engine.actor import settle
from rlx.errors import DatasetExistsError, EngineError, RateLimitError, SchemaMismatchError
from tests.buffer.producers import single
from tests.conftest import Cli
from tests.docs.pages import ROOT, run
from tests.factories import make_block, write_dataset

# ---- the rate limiter, without Ray


@given(
    st.sampled_from([0.3, 1, 2.5, 8]),
    st.integers(1, 12),
    st.floats(0, 30),
    st.integers(12, 20),
    st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=12),
)
def test_as_many_as_reverb_admits_one_after_the_other(
    ratio: float, min_size: int, extra: float, capacity: int, calls: list[tuple[bool, int]]
) -> None:
    """Reverb's rule as it stands in its rate_limiter.cc, for single items with counts of inserts and deletes."""
    limiter = SampleToInsertRatio(ratio, min_size, error_buffer=max(1, ratio) + extra)
    inserts = samples = deletes = 0
    for writes, count in calls:
        size, admitted = inserts - deletes, 0
        may = limiter.may_insert if writes else limiter.may_sample
        found = may(size, count)
        while admitted < count:
            if writes:
                free = inserts + 1 - deletes <= min_size
                if not (free or (inserts + 1) * ratio - samples <= limiter.max_diff):
                    break
                inserts += 1
                deletes += int(inserts - deletes > capacity)
            else:
                if inserts - deletes < min_size or inserts * ratio - samples - 1 < limiter.min_diff:
                    break
                samples += 1
            admitted += 1
        assert found == admitted
        limiter.inserts, limiter.samples = inserts, samples
        size = inserts - deletes
        assert limiter.may_insert(size) or limiter.may_sample(size), "never is everybody blocked"


def test_limits_that_would_block_everybody() -> None:
    for arguments in ((4, 10, 3.0), (1, 10, 0.5), (2, 10, (21.0, 40.0))):
        with pytest.raises(ValueError, match=r"error_buffer .* blocks all"):
            SampleToInsertRatio(*arguments)
    with pytest.raises(ValueError, match="min_size 0: expected at least 1"):
        MinSize(0)


# ---- on Ray: one server for most tests


def frames(count: int, start: int = 0) -> TensorDict:
    numbers = torch.arange(start, start + count)
    done = torch.zeros(count, 1, dtype=torch.bool)
    image = numbers[:, None, None].expand(count, 40, 40).to(torch.uint8)
    after = {"observation": image + 1, "reward": numbers[:, None].float(), "done": done, "terminated": done}
    return TensorDict({"observation": image, "action": numbers, "next": after}, [count])


def tables() -> dict[str, ReplayBuffer]:
    return {
        "slices": ReplayBuffer(storage=LazyTensorStorage(90), sampler=SliceSampler(slice_len=4, seed=3), batch_size=12),
        "frames": TensorDictReplayBuffer(
            storage=CompressedStorage(60),
            sampler=PrioritizedSampler(60, alpha=1.0, beta=1.0, seed=0),
            transform=NStep(2, 0.9),
            batch_size=8,
        ),
        "plain": TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=4),
        "ratio": ReplayBuffer(storage=LazyTensorStorage(100), batch_size=10),
        "epoch": ReplayBuffer(
            storage=LazyTensorStorage(100, ndim=2), sampler=SamplerWithoutReplacement(seed=1), batch_size=5
        ),
    }


@pytest.fixture(scope="module")
def server(
    two_workers_of_ray: None,  # noqa: ARG001 (which it needs)
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RayReplayBuffer]:
    limits: dict[str, RateLimiter] = {
        "ratio": SampleToInsertRatio(2, min_size=10, error_buffer=10),
        "frames": MinSize(8),
    }
    directory = tmp_path_factory.mktemp("ray") / "checkpoint"
    with RayReplayBuffer(tables(), rate_limiter=limits, name="tested", checkpoint=directory) as buffer:
        yield buffer


def equal(found: Any, expected: Any) -> bool:
    return set(found.keys(True, True)) == set(expected.keys(True, True)) and bool((found == expected).all())


@pytest.mark.parametrize("name", ["slices", "frames"])
@pytest.mark.parametrize("compress", [False, True], ids=["shared memory", "compressed"])
def test_the_batches_of_a_local_buffer(server: RayReplayBuffer, name: str, compress: bool, tmp_path: Path) -> None:
    far = server.table(name)
    far._is_far = compress
    far.empty()
    local = tables()[name]
    far.load_state_dict(local.state_dict())
    for part in single(7, 13) if name == "slices" else (frames(20, start) for start in range(0, 80, 20)):
        assert torch.equal(far.extend(part), local.extend(part))
        (found, told), (expected, known) = far.sample(return_info=True), local.sample(return_info=True)
        assert equal(found, expected)
        assert told.keys() == known.keys()
        assert all(torch.equal(told[key], known[key]) for key in known)
        far.update_priority(told["index"], torch.linspace(0, 1, 12)[: len(told["index"])])
        local.update_priority(known["index"], torch.linspace(0, 1, 12)[: len(known["index"])])
    assert equal(far[:], local[:])
    assert (len(far), far.write_count, far.storage.ndim) == (len(local), local.write_count, 1)
    far.save_dataset(tmp_path / "far")
    local.save_dataset(tmp_path / "local")
    assert equal(rlx.open(tmp_path / "far")[:], rlx.open(tmp_path / "local")[:])
    found["action"].zero_()  # a batch may be written to


def test_iteration_ends_with_the_epoch(server: RayReplayBuffer) -> None:
    buffer, local = server.table("epoch"), tables()["epoch"]
    lanes = frames(24).reshape(2, 12)
    assert buffer.extend(lanes).shape == (2, 12)
    local.extend(lanes)
    assert all(equal(found, expected) for found, expected in zip(buffer, local, strict=True))
    with pytest.raises(SchemaMismatchError, match="expected 2 dimensions"):
        buffer.extend(frames(3))
    with pytest.raises(KeyError, match="table 'none': expected one of slices, frames"):
        server.table("none")


def test_batches_lie_in_shared_memory(server: RayReplayBuffer) -> None:
    server.table("frames").extend(frames(60))
    batch = server.table("frames").sample(60)
    address = batch["observation"].data_ptr()
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    (file,) = (
        parts[5] for parts in maps if int(parts[0].split("-")[0], 16) <= address < int(parts[0].split("-")[1], 16)
    )
    assert "plasma" in file


def test_messages_keep_tensors() -> None:
    values: list[Any] = [torch.tensor(1.5), torch.empty(0, 3), torch.ones(3, 2, dtype=torch.bfloat16).t(), "text", None]
    for compress in (False, True):
        found = unpacked(pickle.loads(pickle.dumps(packed(values, compress=compress))))
        assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(found[:3], values[:3], strict=True))
        assert found[3:] == values[3:]
    image = frames(100)
    assert sum(len(part) for part in packed(image, compress=True)[1]) < image["observation"].nbytes / 20


def test_writers_and_samplers_wait_for_each_other(server: RayReplayBuffer) -> None:
    buffer = server.table("ratio")
    with pytest.raises(
        RateLimitError, match=r"table 'ratio': timed out with 0 of 10 steps admitted to a batch: 0 steps"
    ):
        buffer.sample(timeout=0.01)
    with pytest.raises(RateLimitError, match=r"timed out with 15 of 40 steps written: .* min_size=10"):
        buffer.extend(frames(40), timeout=0.01)  # 15 * 2 samples are error_buffer ahead of the 10 * 2 of min_size
    writer = threading.Thread(target=buffer.extend, args=(frames(10, 15),))
    writer.start()
    assert [len(buffer.sample()) for _ in range(3)] == [10] * 3
    writer.join()
    assert (buffer.stats()["inserts"], buffer.stats()["samples"]) == (25, 30)
    buffer.empty()
    assert (buffer.stats()["inserts"], buffer.stats()["samples"]) == (0, 0)


def test_priorities_of_overwritten_rows_are_left_out(server: RayReplayBuffer) -> None:
    buffer: Any = server.table("frames")
    buffer.empty()
    buffer.extend(frames(60))
    batch = buffer.sample(8)
    buffer.extend(frames(30))  # rows 0 to 29 again
    stale = buffer.stats()["stale_priorities"]
    buffer.update_tensordict_priority(batch.set("td_error", torch.zeros(8, 1)))
    assert buffer.stats()["stale_priorities"] - stale == int((batch["index"] < 30).sum())
    rows = torch.arange(60)
    buffer.sample(1)
    buffer.update_priority(rows, (rows == 7).float())
    assert set(buffer.sample(20)["index"].tolist()) == {7}


def test_a_batch_lacks_priorities_only_without_a_sampler_that_needs_them(server: RayReplayBuffer) -> None:
    local: Any = tables()
    for name in ("plain", "frames"):
        far: Any = server.table(name)
        far.empty()
        for buffer in (far, local[name]):
            buffer.extend(frames(10))
            batch: Any = buffer.sample()
            if name == "plain":
                buffer.update_tensordict_priority(batch)
            else:
                with pytest.raises(KeyError, match="td_error"):
                    buffer.update_tensordict_priority(batch)


def test_a_killed_client_leaves_whole_writes(server: RayReplayBuffer) -> None:
    buffer = server.table("frames")
    buffer.empty()

    # In a worker of its own: MKL may fail to load in one that has run other tasks.
    @ray.remote(num_cpus=0, max_retries=0, runtime_env={"env_vars": {"KILLED": "1"}})
    def write(client: RayReplayBuffer) -> None:
        while True:
            client.extend(frames(3))
            client.add(frames(1)[0])

    task = write.remote(buffer)
    while buffer.write_count < 30:
        assert not ray.wait([task], timeout=0.01)[0], ray.get(task)
    ray.cancel(task, force=True)  # its process is killed
    with pytest.raises((ray.exceptions.WorkerCrashedError, ray.exceptions.TaskCancelledError)):
        ray.get(task)
    assert buffer.write_count % 4 in (0, 3)
    assert len(buffer.extend(frames(3))) == 3
    assert len(buffer.sample()) == 8


def test_a_killed_server_comes_back_with_the_checkpoint(
    server: RayReplayBuffer, caplog: pytest.LogCaptureFixture
) -> None:
    buffer, ratio = server.table("frames"), server.table("ratio")
    buffer.empty()
    buffer.extend(frames(40))
    ratio.extend(frames(12))
    ratio.sample(4)
    server.checkpoint()
    expected = buffer[:]
    buffer.extend(frames(5))
    os.kill(ray.get(server._server.pid.remote()), signal.SIGKILL)
    with caplog.at_level(logging.WARNING):
        assert buffer.extend(frames(2, 40)).tolist() == [40, 41]
    assert (
        "'frames': its server was killed and restarted; 5 steps written after its last checkpoint are lost"
        in caplog.text
    )
    assert equal(buffer[list(range(38))], expected[:38]), "the last two have other successors now"
    assert (ratio.stats()["inserts"], ratio.stats()["samples"]) == (12, 4)
    assert len(RayReplayBuffer.connect("tested").table("frames")) == 42
    with pytest.raises(EngineError, match="the Ray cluster already has 'tested'"):
        RayReplayBuffer(name="tested")
    with pytest.raises(EngineError, match="no replay buffer 'nobody'"):
        RayReplayBuffer.connect("nobody")


def test_a_server_that_cannot_start_answers_why(tmp_path: Path) -> None:
    (tmp_path / "something").write_text("else")
    made_of = cloudpickle.dumps({"replay": (ReplayBuffer(), MinSize(1))})
    server = Server(made_of, os.getcwd(), [], str(tmp_path), None)
    answer = asyncio.run(server.answer("stats", packed(("replay",)), None, False))
    assert isinstance(answer, bytes)
    future: Future[Any] = Future()
    settle(future, answer)
    with pytest.raises(DatasetExistsError, match="is not a checkpoint"):
        future.result()


async def asked(server: Server, method: str, *arguments: Any, timeout: float | None = None) -> Any:
    answer = await server.answer(method, packed(arguments), timeout, False)
    if not isinstance(answer, bytes):
        return unpacked(answer)
    future: Future[Any] = Future()
    settle(future, answer)
    return future.result()


def served(limiter: RateLimiter, *checkpoint: Any) -> Server:
    table = ReplayBuffer(storage=LazyTensorStorage(20), sampler=PrioritizedSampler(20, 1, 1), batch_size=4)
    where, every = checkpoint or (None, None)
    return Server(cloudpickle.dumps({"replay": (table, limiter)}), os.getcwd(), [], where, every)


def test_a_buffer_is_emptied_while_a_batch_waits() -> None:
    async def wait() -> None:
        server = served(RateLimiter(1, min_size=1, min_diff=0, max_diff=100))
        await asked(server, "extend", "replay", "client", 1, frames(2))
        for timeout in (0.05, None):
            waiting = asyncio.create_task(asked(server, "sample", "replay", None, timeout=timeout))
            while (await asked(server, "stats", "replay"))["samples"] < 2:
                await asyncio.sleep(0)
            await asked(server, "call", "replay", "empty")
            if timeout is not None:
                with pytest.raises(RateLimitError):
                    await waiting
                assert (await asked(server, "stats", "replay"))["samples"] == 0
            await asked(server, "extend", "replay", "client", 2 if timeout else 3, frames(2 if timeout else 5))
        await waiting
        stats = await asked(server, "stats", "replay")
        assert (stats["inserts"], stats["samples"]) == (5, 4)

    asyncio.run(wait())


def test_priorities_of_rows_before_a_load_are_left_out() -> None:
    async def load() -> int:
        server = served(MinSize(1))
        await asked(server, "extend", "replay", "client", 1, frames(10))
        _, info, *_ = await asked(server, "sample", "replay", None)
        state = await asked(server, "call", "replay", "state_dict")
        await asked(server, "call", "replay", "load_state_dict", state)
        await asked(server, "prioritize", "replay", info["index"], torch.ones(4, 1), None)
        return int((await asked(server, "stats", "replay"))["stale_priorities"])

    assert asyncio.run(load()) == 4


def test_steps_of_a_dataset_have_priorities(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", [[make_block((3, 5))]])
    table = ReplayBuffer(storage=dataset, sampler=PrioritizedSampler(8, 1, 1), batch_size=4)
    server = Server(cloudpickle.dumps({"replay": (table, MinSize(1))}), os.getcwd(), [], None, None)
    rows = torch.arange(len(table))
    asyncio.run(asked(server, "sample", "replay", None))
    asyncio.run(asked(server, "prioritize", "replay", rows, (rows == 3).float(), None))
    assert set(asyncio.run(asked(server, "sample", "replay", None))[1]["index"].tolist()) == {3}


def test_a_failed_checkpoint_is_no_error_of_who_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def write() -> None:
        server = served(MinSize(1), str(tmp_path / "saved"), 0.0)
        with monkeypatch.context() as patch:
            patch.setattr(rlx.Checkpoint, "save", broken)
            assert (await asked(server, "extend", "replay", "client", 1, frames(2)))[0].tolist() == [0, 1]
            with pytest.raises(OSError, match="no space"):
                await asked(server, "checkpoint")
        await asked(server, "checkpoint")
        await asked(server, "close")

    def broken(*_: Any, **__: Any) -> None:
        raise OSError("no space")

    asyncio.run(write())
    assert "the checkpoint of the replay buffer failed, and will be tried again: no space" in caplog.text


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="rate_limiter of other: expected tables of replay"):
        RayReplayBuffer(rate_limiter={"other": MinSize(3)})
    with pytest.raises(ValueError, match="min_size 11 of table 'replay': its storage has room for 10 steps"):
        RayReplayBuffer(storage=cast("Any", partial(LazyTensorStorage, 10)), rate_limiter=MinSize(11))
    with pytest.raises(TypeError, match="batch_size: give them to the buffer of the table"):
        RayReplayBuffer(ReplayBuffer(), batch_size=3)


@pytest.mark.usefixtures("two_workers_of_ray")
def test_the_example_of_the_page(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two collectors of gymnasium write, a learner of this process samples."""
    monkeypatch.chdir(tmp_path)
    run(ROOT / "docs/ray.md", cli)


@pytest.mark.parametrize("form", ["tensordict", "list", "dict"])
def test_what_was_written_before_a_time_out_stays(form: str) -> None:
    def sent(first: int, count: int) -> Any:
        steps = frames(count, first)
        if form == "dict":
            return {"action": steps["action"], "next": {"done": steps["next", "done"]}}
        return list(steps.unbind(0)) if form == "list" else steps

    async def write() -> None:
        server = served(RateLimiter(1, min_size=1, min_diff=0, max_diff=4))
        with pytest.raises(RateLimitError, match="4 of 10 steps written: 4 steps stored, 4 inserts, 0 samples"):
            await asked(server, "extend", "replay", "client", 1, sent(0, 10), timeout=0.05)
        await asked(server, "sample", "replay", None, timeout=30)
        rows, count, *_ = await asked(server, "extend", "replay", "client", 2, sent(4, 4), timeout=30)
        assert (rows.tolist(), count) == ([4, 5, 6, 7], 4)
        stored = await asked(server, "call", "replay", "__getitem__", slice(None))
        assert stored["action"].tolist() == list(range(8))

    asyncio.run(write())


def test_a_sample_that_is_given_up_takes_nothing() -> None:
    async def sample() -> None:
        server = served(RateLimiter(1, min_size=1, min_diff=0, max_diff=4))
        await asked(server, "extend", "replay", "client", 1, frames(2))
        with pytest.raises(RateLimitError, match="2 of 4 steps admitted to a batch"):
            await asked(server, "sample", "replay", None, timeout=0.05)
        assert (await asked(server, "stats", "replay"))["samples"] == 0

    asyncio.run(sample())


def test_priorities_of_rows_that_were_written_since_are_left_out() -> None:
    async def prioritize() -> tuple[int, int]:
        server = served(MinSize(1))
        await asked(server, "extend", "replay", "client", 1, frames(10))
        _, info, *_ = await asked(server, "sample", "replay", 40)
        rows, *_ = await asked(server, "extend", "replay", "client", 2, frames(15, 10))  # overwrites rows 0 to 4
        await asked(server, "sample", "replay", 40)
        await asked(server, "prioritize", "replay", info["index"], torch.ones(40), None)
        await asked(server, "prioritize", "replay", rows, torch.ones(15), None)  # they are the present steps
        stale = int((await asked(server, "stats", "replay"))["stale_priorities"])
        return stale, int((info["index"] < 5).sum())

    stale, overwritten = asyncio.run(prioritize())
    assert stale == overwritten > 0


def test_a_server_saves_a_dataset_and_has_no_checkpoint(tmp_path: Path) -> None:
    async def save() -> int:
        server = served(MinSize(1))
        await asked(server, "extend", "replay", "client", 1, frames(6))
        await asked(server, "save_dataset", "replay", tmp_path / "set", {})
        with pytest.raises(ValueError, match="the replay buffer was made without checkpoint"):
            await asked(server, "checkpoint")
        await asked(server, "close")
        return await server.pid()

    assert asyncio.run(save()) == os.getpid()
    assert len(rlx.open(tmp_path / "set")) == 6


def test_steps_without_their_dimensions_are_refused_by_the_buffer() -> None:
    async def write(steps: Any) -> None:
        await asked(served(MinSize(1)), "extend", "replay", "client", 1, steps)

    refused: list[Any] = [frames(1)[0], {}, []]
    for steps in refused:
        with pytest.raises(SchemaMismatchError):
            asyncio.run(write(steps))


def test_only_the_last_writes_of_so_many_clients_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlx.buffer.ray_server._KEPT_CLIENTS", 2)

    async def write() -> list[list[int]]:
        server, rows = served(MinSize(1)), []
        for client in ("a", "b", "c", "a", "c"):  # each says again what it has said before
            rows.append((await asked(server, "extend", "replay", client, 1, frames(1)))[0].tolist())
        return rows

    assert asyncio.run(write()) == [[0], [1], [2], [3], [2]]


def test_what_a_buffer_on_ray_forwards(server: RayReplayBuffer, tmp_path: Path) -> None:
    far, local = server.table("frames"), tables()["frames"]
    far.empty()
    assert far.batch_size == 8
    assert [far.add(frames(1, number)[0]) for number in range(3)] == [0, 1, 2]
    far[1] = frames(1, 9)[0]
    local.load_state_dict(far.state_dict())
    assert local[:]["action"].tolist() == [0, 9, 2]
    far.dumps(tmp_path / "far")
    far.empty()
    far.loads(tmp_path / "far")
    assert equal(far[:], local[:])


def test_a_server_that_starts_again_knows_its_steps_clients_and_limits(tmp_path: Path) -> None:
    async def first() -> None:
        server = served(MinSize(1), str(tmp_path / "saved"), None)
        await asked(server, "extend", "replay", "client", 1, frames(6))
        await asked(server, "sample", "replay", None)
        await asked(server, "checkpoint")
        await asked(server, "close")

    async def second() -> tuple[Any, Any]:
        server = served(MinSize(1), str(tmp_path / "saved"), None)
        rows, *_ = await asked(server, "extend", "replay", "client", 1, frames(6))  # the message again
        stats = await asked(server, "stats", "replay")
        await asked(server, "close")
        return rows.tolist(), (stats["size"], stats["inserts"], stats["samples"])

    asyncio.run(first())
    assert asyncio.run(second()) == ([0, 1, 2, 3, 4, 5], (6, 6, 4))


def test_a_server_that_cannot_be_made_says_so_to_every_message() -> None:
    server = Server(b"no pickle", os.getcwd(), [], None, None)
    for method in ("stats", "sample"):
        with pytest.raises(pickle.UnpicklingError):
            asyncio.run(asked(server, method, "replay"))
