"""A server in a process of its own, which says on its output where it listens."""

import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile


def started(
    command: Sequence[str], says: str, *, within_s: float, environment: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], str]:
    """The process, and the URL that it said.

    Args:
        command: what to run.
        says: a regular expression, whose group is the URL.
        within_s: seconds until it must have said so.
        environment: its variables; those of this process where not given.

    Raises:
        AssertionError: it did not; then it runs no longer.
    """
    # A file: a pipe that nobody reads would fill, and the server stop.
    with NamedTemporaryFile() as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        deadline = time.monotonic() + within_s
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
            if found := re.search(says, Path(log.name).read_text()):
                return process, found[1]
        process.kill()
        process.wait()
        raise AssertionError(f"{command[0]} did not start: {Path(log.name).read_text()}")
