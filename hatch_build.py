"""Build hook: compiles the kernel where there is a C compiler; without one, rlx does the same in Python.

``python hatch_build.py`` compiles it in place, as an editable install does. ``RLX_KERNEL=0`` builds without it.
"""

import os
import shlex
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand
    BuildHookInterface = object  # type: ignore[assignment,misc]

try:
    import zopfli.zlib
except ImportError:  # the wheel is larger
    zopfli = None

NATIVE = "rlx/store/native"
LIBRARY = f"{NATIVE}/compiled.so"


def compile_kernel(target: Path, *options: str) -> bool:
    """Compile the kernel, with more options of the compiler; return whether that worked."""
    if os.environ.get("RLX_KERNEL") == "0":
        return False
    compiler = shlex.split(os.environ.get("CC", "cc"))
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        subprocess.run(
            [
                *compiler,
                "-std=c99",
                "-O3",
                "-ffp-contract=off",  # sums have the bits of numpy's
                "-s",
                "-fno-asynchronous-unwind-tables",
                "-shared",
                "-nostartfiles",
                "-fPIC",
                "-o",
                partial,
                *options,
                *sorted((Path(__file__).parent / NATIVE).glob("*.c")),
            ],
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as exc:
        sys.stderr.write(
            f"rlx: no C compiler ({exc}): compressed frames will be read in Python, and priorities drawn, more slowly\n"
        )
        partial.unlink(missing_ok=True)
        return False
    partial.replace(target)
    return True


class KernelBuildHook(BuildHookInterface):  # type: ignore[type-arg]  # object has none
    """Adds the compiled kernel to a wheel, which is then for this platform; editable installs get it in place."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile it."""
        if version == "editable":
            compile_kernel(Path(self.root) / LIBRARY)
            return
        built = Path(self.directory) / "compiled.so"
        built.parent.mkdir(parents=True, exist_ok=True)
        if compile_kernel(built):
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data.update(pure_python=False, tag=f"py3-none-{platform}")
            build_data["force_include"][str(built)] = LIBRARY

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Leave nothing but the wheel beside it, compressed as far as it goes."""
        (Path(self.directory) / "compiled.so").unlink(missing_ok=True)
        if version != "editable":
            compress(Path(artifact_path))


class Zopfli:
    """Compressor of one file to deflate, in place of zlib's: 3 % smaller, and a hundred times slower."""

    def __init__(self) -> None:
        self._content = bytearray()

    def compress(self, data: bytes) -> bytes:
        """Take a part of the file."""
        self._content += data
        return b""

    def flush(self) -> bytes:
        """Return the compressed file."""
        framed: bytes = zopfli.zlib.compress(bytes(self._content), numiterations=5)
        return framed[2:-4]  # zlib's header and checksum


def compress(wheel: Path) -> None:
    """Write a wheel again, compressed as far as it goes and without entries for directories.

    hatchling has no option for the one, and auditwheel none for the other. Without zopfli, zlib compresses it.
    """
    partial = wheel.with_name(f"{wheel.name}.partial")
    with zipfile.ZipFile(wheel) as before, zipfile.ZipFile(partial, "w") as after:
        for member in before.infolist():
            if member.is_dir():
                continue
            content = before.read(member)
            if zopfli is None:
                after.writestr(member, content, zipfile.ZIP_DEFLATED, 9)
                continue
            member.compress_type = zipfile.ZIP_DEFLATED
            with after.open(member, "w") as file:
                file._compressor = Zopfli()  # type: ignore[attr-defined]  # zipfile has no other way in
                file.write(content)
    partial.replace(wheel)


if __name__ == "__main__":
    sys.exit(not compile_kernel(Path(__file__).parent / LIBRARY))
