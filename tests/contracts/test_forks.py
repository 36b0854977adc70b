"""Whatever a process claims is released by that process alone: a fork of it that ends, in any way, removes nothing."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, sys, tempfile, warnings
from contextlib import ExitStack
from pathlib import Path

warnings.simplefilter("ignore")
home = Path(sys.argv[1])
tempfile.tempdir = str(home / "tmp")
(home / "tmp").mkdir()
os.chdir(home)

import gymnasium
import torch
from tensordict import TensorDict

import rlx
from rlx.buffer import LazyMemmapStorage, ReplayBuffer
from rlx.files import lock
from rlx.files.atomic import whole
from rlx.fork import temporary_directory
from rlx.integrations.record import RecordExperience, RecordVectorExperience
from rlx.store.dataset_writer import claimed

def record(name, closed):
    env = RecordExperience(gymnasium.make("MountainCar-v0"), name)
    env.reset(seed=0)
    for step in range(20):
        env.step(step % 3)
    return env if closed else None

record("dropped", False)
kept = [record("kept", True)]
many = RecordVectorExperience(gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync"), "many")
many.reset(seed=0)
for step in range(5):
    many.step([step % 2] * 2)
kept.append(many)

buffer = ReplayBuffer(storage=LazyMemmapStorage(10))
buffer.extend(TensorDict({"observation": torch.arange(4)}, [4]))
kept.append(buffer)
claims = ExitStack()
claims.enter_context(lock.writing(home / "locked"))
claims.enter_context(claimed(home / "claimed"))
(home / "claimed" / "shards").mkdir()
claims.enter_context(whole(home / "file"))
(claims.enter_context(temporary_directory()) / "content").write_text("kept")

before = sorted(home.rglob("*"))
for end in ("an exit", "an error", "dropping and leaving all"):
    if (child := os.fork()) == 0:
        if end == "an exit":
            sys.exit(0)
        if end == "an error":
            raise KeyError("in the child")
        kept.clear()
        with claims:
            raise SystemExit
    os.waitpid(child, 0)
    gone = [str(path.relative_to(home)) for path in before if not path.exists()]
    print(end, gone, flush=True)
print(len(before), flush=True)
os._exit(0)
"""


def test_a_fork_that_ends_removes_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    *ends, count = done.stdout.splitlines() or [done.stderr]
    assert ends == ["an exit []", "an error []", "dropping and leaving all []"], done.stdout + done.stderr
    assert int(count) > 15
