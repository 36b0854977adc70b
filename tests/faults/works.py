"""Everything that writes: functions of a directory of data and of an empty one, on data of a few kilobytes.

``python -m tests.faults.works`` runs them in forks of itself: it reads a JSON document a line, and answers each.
"""

import importlib
import json
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from pkgutil import iter_modules
from types import MappingProxyType
from typing import Any

import gymnasium
import torch
from tensordict import TensorDict

import rlx
from rlx import verbs
from rlx.buffer import LazyMemmapStorage, LazyTensorStorage
from rlx.errors import RlxError
from rlx.formats.registry import formats, readable
from rlx.integrations.record import RecordExperience
from tests.interruption.verbs import FORMATS, write_data

Work = Callable[[Path, Path], object]
SECONDS = 120


def steps(count: int, first: int = 0) -> TensorDict:
    """Steps that number themselves."""
    numbers = torch.arange(first, first + count)
    flags = torch.zeros(count, 1, dtype=torch.bool)
    after = {"observation": numbers.float()[:, None] + 1, "reward": numbers.float()[:, None]}
    after |= {"done": flags, "terminated": flags, "truncated": flags}
    return TensorDict({"observation": numbers.float()[:, None], "action": numbers, "next": after}, [count])


def filled(storage: Any = None) -> rlx.ReplayBuffer:
    """A buffer of 40 steps."""
    buffer = rlx.ReplayBuffer(storage=LazyTensorStorage(64) if storage is None else storage, batch_size=4)
    buffer.extend(steps(40))
    return buffer


def record(_: Path, place: Path) -> None:
    """Record some episodes with a wrapper."""
    with RecordExperience(gymnasium.make("CartPole-v1"), place / "out", shard_steps=40) as env:
        env.reset(seed=0)
        for number in range(100):
            _observation, _reward, terminated, truncated, _info = env.step(number % 2)
            if terminated or truncated:
                env.reset()


def checkpoint(_: Path, place: Path) -> None:
    """Save a run three times, and restore it."""
    buffer = filled()
    with rlx.Checkpoint(place / "out", buffer=buffer) as run:
        for step in range(3):
            buffer.extend(steps(10, 100 * step))
            run.save(step, number=step)
            run.wait()
    with rlx.Checkpoint(place / "out", buffer=rlx.ReplayBuffer(storage=LazyTensorStorage(64))) as run:
        assert run.restore() == 2


def dumps(_: Path, place: Path) -> None:
    """Save a buffer, and save it again."""
    filled().dumps(place / "deep/out")
    filled().dumps(place / "deep/out")


def loads(data: Path, _: Path) -> None:
    """Load a saved buffer."""
    rlx.ReplayBuffer(storage=LazyTensorStorage(64)).loads(data / "buffer")


def memmap(_: Path, place: Path) -> None:
    """Fill a buffer whose steps are in files."""
    filled(LazyMemmapStorage(64, scratch_dir=place / "out"))


def repair(_: Path, place: Path) -> None:
    """Repair a damaged dataset."""
    rlx.repair(place / "out")


def overwrite(data: Path, place: Path) -> None:
    """Replace a dataset by another."""
    rlx.convert(data / "more", place / "out", jobs=1)
    rlx.convert(data / "walk", place / "out", jobs=1, overwrite=True)


def export_over(data: Path, place: Path) -> None:
    """Replace an export by another."""
    rlx.convert(data / "more", place / "out", to="torchrl")
    rlx.convert(data / "walk", place / "out", to="torchrl", overwrite=True)


def _exported(name: str) -> Work:
    source, out = FORMATS[name]
    return lambda data, place: rlx.convert(data / Path(source).name, place / out, to=name)  # type: ignore[call-overload]


def _read(name: str) -> Work:
    return lambda data, place: rlx.convert(data / "exported" / name / FORMATS[name][1], place / "out", jobs=1)


def _sampled(name: str) -> Work:
    return lambda data, place: rlx.sample(data / "walk", seed=1, batches=3, output=place / f"out.{name}")


def _viewed(name: str) -> Work:
    return lambda data, place: rlx.view(data / "pong", output=place / f"out.{name}")


_RESIZE = "resize:height=42,width=42"
WORKS: Mapping[str, Work] = MappingProxyType(
    {
        "collect": lambda _, place: rlx.collect("CartPole-v1", output=place / "out", steps=120, shard_steps=50, envs=2),
        "convert": lambda data, place: rlx.convert(data / "dopamine", place / "out", jobs=1),
        "convert to memmap": lambda data, place: rlx.convert(data / "walk", place / "out", to="memmap", jobs=1),
        "download": lambda data, place: rlx.download(
            "Pong/5", source=str(data / "rlu"), shards=range(4), jobs=1, output=place / "out"
        ),
        "preprocess": lambda data, place: rlx.preprocess(
            data / "pong", place / "out", transform=_RESIZE, num_workers=1
        ),
        "merge": lambda data, place: rlx.merge([data / "walk", data / "more"], output=place / "out", jobs=1),
        "merge recoded": lambda data, place: rlx.merge(
            [data / "walk", data / "more"], output=place / "out", codec="lz4", jobs=1
        ),
        "split": lambda data, place: rlx.split(
            data / "walk", [0.7, 0.3], output=[place / "out", place / "rest"], jobs=1
        ),
        "push": lambda data, place: rlx.push(data / "walk", place / "deep/out", jobs=1),
        "pull": lambda data, place: rlx.pull(str(data / "walk"), output=place / "out", jobs=1),
        "repair": repair,
        "overwrite": overwrite,
        "export over": export_over,
        "record": record,
        "checkpoint": checkpoint,
        "dumps": dumps,
        "loads": loads,
        "memmap": memmap,
        "save_dataset": lambda _, place: filled().save_dataset(place / "out"),
        "inspect --plot": lambda data, place: rlx.inspect(data / "walk", plot=place / "out.png"),
        **{f"export {name}": _exported(name) for name in FORMATS},
        **{f"sample {name}": _sampled(name) for name in ("npz", "pt", "h5", "zarr", "parquet", "jsonl")},
        **{f"view {name}": _viewed(name) for name in ("png", "gif", "mp4", "html")},
    }
)
_IMPORTED = (
    *("h5py", "PIL.Image", "av", "zarr", "pyarrow", "pyarrow.parquet", "rlx.viewer.files"),
    *(f"{one.folder}.reader" for one in readable().values()),
    *(f"{one.folder}.writer" for one in formats().values() if one.writes),
    *(f"rlx.verbs.{module.name}" for module in iter_modules(verbs.__path__)),
    *("rlx.collector.dataset_collector", "rlx.engine.local_actors", "rlx.engine.ray_engine"),
    *(
        "rlx.store.repair",
        "rlx.buffer.run_checkpoint",
    ),
)


def prepare(data: Path, _: Path) -> None:
    """Write what the others read."""
    write_data(data)
    filled().dumps(data / "buffer")


def prepare_exports(data: Path, _: Path) -> None:
    """Write what ``READS`` reads."""
    for name in FORMATS:
        (data / "exported" / name).mkdir(parents=True)
        _exported(name)(data, data / "exported" / name)


# Functions that read other projects' files, which the others do not.
READS: Mapping[str, Work] = MappingProxyType({f"read {name}": _read(name) for name in FORMATS})
_ALL: Mapping[str, Work] = MappingProxyType({**WORKS, **READS, "prepare": prepare, "prepare exports": prepare_exports})


def outcome(work: Work, data: Path, place: Path) -> dict[str, Any]:
    """How a function ends: the name of its error's class, whether it is one of rlx, its message, hint and trace."""
    try:
        work(data, place)
    except BaseException as error:
        return {
            "error": type(error).__name__,
            "is_rlx": isinstance(error, RlxError),
            "message": str(error),
            "hint": getattr(error, "hint", None),
            "trace": traceback.format_exc(),
        }
    return {"error": None}


def main() -> None:
    """Answer until the input ends."""
    for name in _IMPORTED:
        importlib.import_module(name)
    for line in sys.stdin:
        asked = json.loads(line)
        answers, told = os.pipe()
        if not (pid := os.fork()):
            os.close(answers)
            said = os.open(asked["said"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(said, 1)
            os.dup2(said, 2)
            os.chdir(asked["place"])
            signal.alarm(SECONDS)
            random.seed(0)
            os.environ.update(asked["environment"])
            answer = outcome(_ALL[asked["work"]], Path(asked["data"]), Path(asked["place"]))
            for name in asked["environment"]:
                os.environ.pop(name)
            os.write(told, json.dumps(answer).encode())
            os._exit(0)
        os.close(told)
        with os.fdopen(answers, "rb") as file:
            said_of = file.read()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        # One that was killed said nothing.
        sys.stdout.write((said_of.decode() or json.dumps({"error": f"status {status}", "is_rlx": False})) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
