"""The compiled functions refuse what would leave their memory; a compiler's sanitizers watch."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hatch_build import compile_kernel
from tests.kernels import built

CALLS = Path(__file__).with_name("corrupted_calls.py")


def called(library: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, CALLS, library, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RLX_KERNEL": "1", **environment},
        capture_output=True,
        text=True,
    )


def runtime(name: str) -> str:
    """Where the compiler has a library of its own, which must be loaded before all others."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    try:
        found = subprocess.run([*compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no C compiler")
    if not Path(path := found.stdout.strip()).is_absolute():
        pytest.skip(f"the compiler has no {name}")
    return path


def test_they_are_refused() -> None:
    library = built()
    if library is None:
        pytest.skip("no C compiler")
    found = called(library)
    assert found.returncode == 0, found.stderr


def test_sanitizers_find_nothing_but_what_is_there(tmp_path: Path) -> None:
    library, runtimes = tmp_path / "compiled.so", [runtime("libasan.so"), runtime("libubsan.so")]
    if not compile_kernel(library, "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1", "-g"):
        pytest.skip("the compiler does not link its sanitizers")
    environment = {"LD_PRELOAD": " ".join(runtimes), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
    found = called(library, **environment)
    assert found.returncode == 0, found.stderr
    past_the_end = called(library, "past the end", **environment)
    assert past_the_end.returncode != 0
    assert "heap-buffer-overflow" in past_the_end.stderr
