"""Speed of collecting: Pong into a dataset beside the emulator alone, CartPole into batches beside TorchRL.

python -m scripts.bench.collect [--steps 8000] [--rounds 3] [--json]

``pong``: steps a second of ``rlx collect`` (4 environments, default store, random policy) over those of ale-py's
AtariVectorEnv of the same environments and threads, each with making them.
Target: 0.85. ``running``: the same of five times the steps in turns, without start and end, by the number of
environments. Target: 0.92.
``cartpole``: steps a second of ``Collector`` over 8 environments in turn, beside TorchRL's ``Collector`` over
``ParallelEnv(8)``, where TorchRL is installed; both with a random policy, 800 steps a batch. Target: 4.
``memory``: the same with a policy that has a memory (a GRU cell of 64) and draws its actions; its log-probs, logits and
hidden states are kept. Target: 4.
``workers``: seconds for ``--steps`` of Pong of a running ``MultiCollector(sync=True)`` of four workers, and of
``rlx collect``, which starts, writes and ends, beside TorchRL's running ``MultiCollector(sync=True)`` of four workers;
batches of 800 steps. TorchRL is given gymnasium's AtariPreprocessing, which does with OpenCV what its own transforms of
pictures do with torch. Target of ``rlx collect``: 3. ``emulator``: what the emulator alone, which no collector can
outrun, is of the peer.
``bare``: CPU time per step of gymnasium's vector CartPole and nothing else, over that of ``rlx collect`` of it, without
start: by the number of environments; ``native`` are 64 in gymnasium's own vector environment. Targets: 0.8, native 0.4.
"""

import argparse
import tempfile
import time
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from tensordict.nn import ProbabilisticTensorDictModule, TensorDictModule, TensorDictSequential

import rlx
from rlx.collector import Collector, MultiCollector, SerialEnv
from rlx.collector.environment.gym_env import ATARI
from scripts.bench import timing

_ENVS = 4
_BATCH = 800
_HIDDEN = 64


def emulator(steps: int, num_envs: int = _ENVS) -> None:
    """The emulator and nothing else."""
    from ale_py import AtariVectorEnv  # noqa: PLC0415  (an extra)

    env = AtariVectorEnv("pong", num_envs, **ATARI)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(steps // num_envs):
        env.step(rng.integers(0, 6, num_envs))
    env.close()


def dataset(steps: int, num_envs: int = _ENVS) -> None:
    """The same into a dataset."""
    with tempfile.TemporaryDirectory() as folder:
        rlx.collect(steps=steps, envs=num_envs, output=Path(folder) / "set")


class Memory(torch.nn.Module):
    """A recurrent cell for CartPole."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = torch.nn.GRUCell(4, _HIDDEN)

    def forward(self, observation: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        """The new state, [n, hidden]."""
        state: torch.Tensor = self.cell(observation, h)
        return state


def remembering() -> TensorDictSequential:
    """A policy that reads h and writes ("next", "h"), logits, action and action_log_prob."""
    return TensorDictSequential(
        TensorDictModule(Memory(), in_keys=["observation", "h"], out_keys=[("next", "h")]),
        TensorDictModule(torch.nn.Linear(_HIDDEN, 2), in_keys=[("next", "h")], out_keys=["logits"]),
        ProbabilisticTensorDictModule(
            in_keys=["logits"],
            out_keys=["action"],
            distribution_class=torch.distributions.Categorical,
            return_log_prob=True,
        ),
    )


def peer_collector(total: int, policy: Any) -> Any:
    """TorchRL's collector over as many processes as there are environments."""
    from torchrl.collectors import Collector as PeerCollector  # noqa: PLC0415  (only where it is installed)
    from torchrl.data import Unbounded  # noqa: PLC0415
    from torchrl.envs import GymEnv, InitTracker, ParallelEnv, TensorDictPrimer, TransformedEnv  # noqa: PLC0415

    def make() -> Any:
        env = GymEnv("CartPole-v1", categorical_action_encoding=policy is not None)
        if policy is None:
            return env
        env = TransformedEnv(env, InitTracker())
        return env.append_transform(TensorDictPrimer({"h": Unbounded((_HIDDEN,))}))

    env = ParallelEnv(8, make, mp_start_method="fork")
    return PeerCollector(env, policy, frames_per_batch=_BATCH, total_frames=total)


def pong(steps: int, rounds: int) -> dict[str, Any]:
    """The ratio on Pong."""
    alone, stored = timing.interleaved(rounds, lambda _: emulator(steps), lambda _: dataset(steps))
    return {
        "steps": steps,
        "emulator_ms": timing.median_ms(alone),
        "rlx_ms": timing.median_ms(stored),
        **timing.times_faster(stored, alone),
        "running": {str(num_envs): running(5 * steps, num_envs) for num_envs in (_ENVS, 2 * _ENVS)},
    }


class Turns:
    """Progress that answers each report of steps with as many steps of the emulator alone, and times both.

    This machine's speed changes within seconds, so only turns next to each other compare. What the writer's thread, a
    fiftieth of the work, does during the emulator's turn slows that one.
    """

    def __init__(self, num_envs: int) -> None:
        from ale_py import AtariVectorEnv  # noqa: PLC0415  (an extra)

        self._env = AtariVectorEnv("pong", num_envs, **ATARI)
        self._env.reset(seed=0)
        self._rng = np.random.default_rng(0)
        self._began: float | None = None
        self.stored_s = self.alone_s = 0.0

    def expect(self, unit: str, amount: int) -> None:
        """Do nothing."""

    def advance(self, unit: str, amount: int) -> None:
        """Step the emulator as often; the first turn, which starts the collection, does not count."""
        if unit != "steps":
            return
        stored = time.perf_counter()
        for _ in range(amount // self._env.num_envs):
            self._env.step(self._rng.integers(0, 6, self._env.num_envs))
        ended = time.perf_counter()
        if self._began is not None:
            self.stored_s += stored - self._began
            self.alone_s += ended - stored
        self._began = ended


def running(steps: int, num_envs: int) -> float:
    """Return the ratio of the times that the same number of steps takes."""
    turns = Turns(num_envs)
    with tempfile.TemporaryDirectory() as folder:
        rlx.collect(steps=steps, envs=num_envs, output=Path(folder) / "set", progress=turns)
    return round(turns.alone_s / turns.stored_s, 2)


def cartpole(batches: int, rounds: int, policy: Any = None) -> dict[str, Any]:
    """The ratio on CartPole; a batch a turn, of collectors that are running."""
    total = _BATCH * batches * (rounds + 1)
    ours: Any = Collector(SerialEnv(8, "CartPole-v1"), policy, frames_per_batch=_BATCH, total_frames=total)
    running: list[Iterable[Any]] = [ours]
    if find_spec("torchrl") is not None:
        running.append(peer_collector(total, policy))
    iterators = [iter(collector) for collector in running]
    for iterator in iterators:
        next(iterator)
    seconds = timing.interleaved(
        rounds, *[lambda _, iterator=iterator: next(iterator) for iterator in iterators], repeats=batches
    )
    for collector in running:
        collector.shutdown()  # type: ignore[attr-defined]
    peer = seconds[1] if len(seconds) > 1 else None
    return {
        "batch": _BATCH,
        "rlx_ms": timing.median_ms(seconds[0]),
        "torchrl_ms": timing.median_ms(peer),
        **timing.times_faster(seconds[0], peer),
    }


def native() -> Any:
    """CartPole as gymnasium itself steps 64."""
    return gymnasium.make_vec("CartPole-v1", 64, vectorization_mode="vector_entry_point")


def bare(rounds: int) -> dict[str, float]:
    """The ratios to gymnasium alone, of the least times."""
    return {
        "1": _of_bare("CartPole-v1", 1, rounds),
        "8": _of_bare("CartPole-v1", 8, rounds),
        "64": _of_bare("CartPole-v1", 64, rounds),
        "native": _of_bare(native, 64, rounds * 2),
    }


def _of_bare(source: Any, num_envs: int, rounds: int) -> float:
    steps = 200_000 if source is native else 20_000

    def stored(count: int) -> float:
        with tempfile.TemporaryDirectory() as folder:
            began = time.process_time()
            rlx.collect(source, steps=count, envs=num_envs, output=Path(folder) / "set")
            return time.process_time() - began

    def alone() -> float:
        env = native() if source is native else gymnasium.make_vec(source, num_envs, vectorization_mode="sync")
        env.reset(seed=0)
        actions = np.random.default_rng(0).integers(0, 2, (steps // num_envs, num_envs))
        began = time.process_time()
        for one in actions:
            env.step(one)
        return time.process_time() - began

    stored(steps // 10)
    taken = [(stored(steps + steps // 4) - stored(steps // 4), alone()) for _ in range(rounds)]
    return round(min(one for _, one in taken) / min(one for one, _ in taken), 2)


def peer_pong() -> Any:
    """One environment of Pong as TorchRL takes it."""
    import ale_py  # noqa: PLC0415  (an extra)
    from torchrl.envs import GymWrapper  # noqa: PLC0415  (only where it is installed)

    gymnasium.register_envs(ale_py)
    env = gymnasium.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.25)
    return GymWrapper(gymnasium.wrappers.AtariPreprocessing(env, noop_max=0), categorical_action_encoding=True)


def workers(steps: int, rounds: int) -> dict[str, Any]:
    """The ratios of collecting Pong in processes."""
    batches = steps // _BATCH
    options: dict[str, Any] = {"frames_per_batch": _BATCH, "total_frames": -1, "sync": True}
    running: list[Any] = [MultiCollector(["ALE/Pong-v5"] * _ENVS, **options)]
    if find_spec("torchrl") is not None:
        from torchrl.collectors import MultiCollector as PeerCollector  # noqa: PLC0415

        running.append(PeerCollector([peer_pong] * _ENVS, None, **options))
    iterators = [iter(collector) for collector in running]
    for iterator in iterators:
        next(iterator)

    def some(iterator: Iterator[Any]) -> None:
        for _ in range(batches):
            next(iterator)

    stored, alone, ours, *peers = timing.interleaved(
        rounds,
        lambda _: dataset(steps),
        lambda _: emulator(steps),
        *[lambda _, iterator=iterator: some(iterator) for iterator in iterators],
    )
    for collector in running:
        collector.shutdown()
    peer = peers[0] if peers else None
    return {
        "steps": batches * _BATCH,
        "rlx_collect_ms": timing.median_ms(stored),
        "emulator_ms": timing.median_ms(alone),
        "rlx_ms": timing.median_ms(ours),
        "torchrl_ms": timing.median_ms(peer),
        "collect": timing.times_faster(stored, peer),
        "multi_collector": timing.times_faster(ours, peer),
        "emulator": timing.times_faster(alone, peer),
    }


def main() -> None:
    """Runs all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8_000, help="steps of Pong a round")
    parser.add_argument("--batches", type=int, default=3, help="batches of CartPole a round")
    parser.add_argument("--rounds", type=int, default=3)
    options = timing.parse(parser)
    result = {
        "pong": pong(options.steps, options.rounds),
        "cartpole": cartpole(options.batches, options.rounds),
        "memory": cartpole(options.batches, options.rounds, remembering()),
        "workers": workers(options.steps, options.rounds),
        "bare": bare(options.rounds),
        "targets": {
            "pong": 0.85,
            "pong_running": 0.92,
            "cartpole": 4,
            "memory": 4,
            "workers": {"collect": 3},
            "bare": {"1": 0.8, "native": 0.4},
        },
    }
    timing.report(result, options)


if __name__ == "__main__":
    main()
