import subprocess
import sys
from pathlib import Path

import pytest

from rlx.errors import DatasetLockedError
from rlx.store import lock

HOLDER = """
import sys
from pathlib import Path
from rlx.store import lock
with lock.writing(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_second_process_is_told_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "data"
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DatasetLockedError, match=f"pid {holder.pid}") as caught, lock.writing(path):
            raise AssertionError("two processes hold one lock")
        assert caught.value.hint is not None
        holder.kill()
    # It dies with its process, and whatever that left does not matter.
    with lock.writing(path):
        assert (path / ".lock").read_text().strip().isdecimal()


def test_a_directory_that_came_to_nothing_is_removed(tmp_path: Path) -> None:
    with lock.writing(tmp_path / "new"):
        pass
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    with lock.writing(tmp_path / "old"):
        pass
    assert (tmp_path / "old").exists()
