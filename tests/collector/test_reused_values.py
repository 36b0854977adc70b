"""Every collector passes the suite of recorders."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import rlx
from rlx.collector import Collector, MultiCollector, ParallelEnv, SerialEnv
from rlx.engine.local_actors import InlineActors
from tests.contracts.recorder import INFO, OUTPUTS, Columns, RecorderContract, Reuser, Reusing, reusing_parts

INFOS: Any = ["t", "at", ("deep", "t")]


def columns(batch: Any) -> Columns:
    """Steps of a batch by name."""
    keys = batch.keys(include_nested=True, leaves_only=True)
    return {"/".join([key] if isinstance(key, str) else key): batch[key] for key in keys}


def alone(make: Any) -> Any:
    return make


def in_turn(make: Any) -> Any:
    return SerialEnv(2, make)


def in_processes(make: Any) -> Any:
    return ParallelEnv(2, make)


def vector(make: Any, mode: AutoresetMode) -> Any:
    return partial(SyncVectorEnv, [make, make], autoreset_mode=mode)


def vector_of_processes(make: Any) -> Any:
    return lambda: AsyncVectorEnv([make, make], autoreset_mode=AutoresetMode.NEXT_STEP)


class TestCollector(RecorderContract):
    @pytest.fixture(
        params=[alone, in_turn, in_processes, vector_of_processes, *(partial(vector, mode=m) for m in AutoresetMode)],
    )
    def source(self, request: Any) -> Any:
        return request.param

    @pytest.fixture
    def recorded(self, source: Any) -> Columns:
        return self.record(source(Reusing), Reuser(), 16)

    def record(self, make: Callable[[], Any], policy: Any, steps: int) -> Columns:
        with Collector(make, policy, frames_per_batch=steps, total_frames=steps, info_keys=INFOS) as collector:
            return columns(collector.next())


class TestInnerSteps(TestCollector):
    """Batches of a step each, of episodes that a limit cuts into the same lengths."""

    @pytest.fixture(params=[alone])
    def source(self, request: Any) -> Any:
        return request.param

    def record(self, make: Callable[[], Any], policy: Any, steps: int) -> Columns:
        with Collector(make, policy, frames_per_batch=1, total_frames=steps, info_keys=INFOS) as collector:
            batches: Any = list(collector)
            return columns(torch.cat(batches))


class TestWholeEpisodes(TestCollector):
    @pytest.fixture(params=[alone, in_turn])
    def source(self, request: Any) -> Any:
        return request.param

    def record(self, make: Callable[[], Any], policy: Any, steps: int) -> Columns:
        with Collector(make, policy, trajs_per_batch=steps // 4, traj_format="cat", info_keys=INFOS) as collector:
            return columns(collector.next())


class TestWorkers(RecorderContract):
    @pytest.fixture(params=[(True, InlineActors), (False, InlineActors), (False, None)])
    def workers(self, request: Any) -> Any:
        return request.param

    @pytest.fixture
    def recorded(self, workers: Any) -> Columns:
        sync, actors = workers
        options: Any = {"sync": sync, "actors": actors and actors(), "info_keys": INFOS}
        with MultiCollector([Reusing], Reuser(), frames_per_batch=8, total_frames=16, **options) as collector:
            return columns(torch.cat([batch.reshape(-1) for batch in collector]))

    def record(self, make: Callable[[], Reusing], policy: Any, steps: int) -> Columns:
        raise NotImplementedError


class TestDataset(RecorderContract):
    @pytest.fixture(params=[alone, in_turn, *(partial(vector, mode=mode) for mode in AutoresetMode)])
    def recorded(self, tmp_path_factory: Any, request: Any) -> Columns:
        source, path = request.param(Reusing), tmp_path_factory.mktemp("reused") / "set"
        envs = 1 if request.param is alone else 2
        rlx.collect(source, envs=envs, episodes=4, policy=Reuser(), info="t,at,deep/t", output=path)
        return columns(rlx.open(path)[:])

    def record(self, make: Callable[[], Reusing], policy: Any, steps: int) -> Columns:
        raise NotImplementedError


class TestRollout(RecorderContract):
    lacks = INFO

    @pytest.fixture(params=[1, 2])
    def recorded(self, request: Any) -> Columns:
        env = SerialEnv(request.param, Reusing)
        first: Any = env.reset()
        first["past", "seen"] = torch.zeros(request.param, 2)
        return columns(env.rollout(4, Reuser(), auto_reset=False, tensordict=first))

    def record(self, make: Callable[[], Reusing], policy: Any, steps: int) -> Columns:
        raise NotImplementedError


class TestOwnLoop(RecorderContract):
    """A loop of ``TedEnv.step``, which copies what it is given; the policy changes its input before."""

    lacks = (*INFO, *OUTPUTS)

    def record(self, make: Callable[[], Reusing], policy: Any, steps: int) -> Columns:
        env = SerialEnv(1, make)
        root: Any = env.reset()
        root["past", "seen"] = torch.zeros(1, 2)
        made: Any = []
        for _ in range(steps):
            chosen = policy(root.clone())
            stepped, following = env.step_and_maybe_reset(root.copy().set("action", chosen["action"]))
            made.append(stepped)
            root = following
        batch: Any = torch.stack(made, 1)
        return columns(batch)


def test_parts_of_actions_are_those_of_the_policy() -> None:
    own = {"by": torch.zeros(2, 1)}

    def policy(td: Any) -> Any:
        own["by"].copy_(td["observation", "at"] + 3)
        td["observation", "at"].sub_(7)
        return td.set("action", own)

    env = SerialEnv(2, reusing_parts)
    with Collector(env, policy, frames_per_batch=16, total_frames=16) as collector:
        batch: Any = collector.next()
    t = torch.arange(16.0).remainder(4).reshape(2, 8)
    assert torch.equal(batch["observation", "at"][..., 0], t)
    assert torch.equal(batch["action", "by"][..., 0], t + 3)
    assert torch.equal(batch["next", "observation", "at"][..., 0], t + 1)
    assert (batch["next", "reward"] == 1).all()
