"""The most memory that a process takes which does one thing and has imported nothing else."""

import subprocess
import sys

# Not getrusage's, which a new process inherits from the one that started it.
_PEAK = "import re; print(int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) // 1024)"


def peak_mb(program: str = "") -> int:
    """Peak megabytes of a process that runs a program, the pages of files that it maps included.

    Args:
        program: what follows ``python -c``, in statements with ``;`` between them; nothing where not given.
    """
    command = [sys.executable, "-W", "ignore", "-c", f"{program}; {_PEAK}".lstrip("; ")]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return int(found.stdout.splitlines()[-1])
