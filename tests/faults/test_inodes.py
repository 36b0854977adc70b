"""A file system with space, and no room for another file: what is written is refused by name, and nothing is lost."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.factories import collected
from tests.verbs.datasets import ROOT

_WORK = """
import json, shutil, sys
from pathlib import Path
import rlx
from rlx.errors import DiskFullError

data, full = map(Path, sys.argv[1:])
works = {
    "collect": lambda: rlx.collect("CartPole-v1", steps=400, shard_steps=100, output=full / "out"),
    "push": lambda: rlx.push(data, full / "out", jobs=1),
    "pull": lambda: rlx.pull(str(data), full / "out", jobs=1),
    "convert": lambda: rlx.convert(data, full / "out", to="torchrl"),
}
found = {}
for name, work in works.items():
    try:
        work()
        found[name] = None
    except DiskFullError as exc:
        found[name] = [str(exc), exc.hint]
    if (full / "out").exists() and (full / "out/rlx.json").exists():
        assert rlx.verify(full / "out").ok
    shutil.rmtree(full / "out", ignore_errors=True)
print(json.dumps(found))
"""


def _may_mount() -> bool:
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return False
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return collected("CartPole-v1", tmp_path_factory.mktemp("inodes") / "data", steps=50)


@pytest.mark.skipif(not _may_mount(), reason="no user namespaces, or no mounting in them")
@pytest.mark.parametrize("inodes", [5, 20])
@pytest.mark.xdist_group("inodes")
def test_no_inode_is_left(inodes: int, data: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RLX_HOME": str(tmp_path / "home")}
    mount = f'mount -t tmpfs -o nr_inodes={inodes},size=64m none "$2" && exec "$0" -c "$3" "$1" "$2"'
    paths = [str(data), str(tmp_path / "full")]
    command = ["unshare", "-rm", "sh", "-c", mount, sys.executable, *paths, _WORK]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name, told in json.loads(done.stdout).items():
        assert told is not None, name
        message, hint = told
        assert f"{tmp_path}/full/out" in message
        assert hint == "free some space, or inodes (df -i), and run the command again"
