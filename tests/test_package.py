"""What is built for others to install: small, whole, and working without the repository."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from hatch_build import compile_kernel
from scripts.core import write_project
from tests.conftest import SAMPLE_RUN
from tests.docs.pages import ROOT

pytestmark = pytest.mark.xdist_group("package")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the sdist, and the wheel that was made of it."""
    directory = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(directory), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return directory


def test_the_wheel_is_small_and_has_nothing_but_the_program(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert wheel.stat().st_size < 1_150_000
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"rlx", "rlx_cli"}
    assert any(name.endswith("licenses/LICENSE") for name in zipfile.ZipFile(wheel).namelist())
    assert not any(name.endswith((".c", ".h")) for name in zipfile.ZipFile(wheel).namelist())


def test_the_wheel_has_the_kernel_where_there_is_a_compiler(built: Path, tmp_path: Path) -> None:
    has_compiler = compile_kernel(tmp_path / "compiled.so")
    (wheel,) = built.glob("*.whl")
    assert ("rlx/store/native/compiled.so" in zipfile.ZipFile(wheel).namelist()) == has_compiler
    assert wheel.name.endswith("-py3-none-any.whl") != has_compiler
    assert {file.suffix for file in built.iterdir()} == {".gz", ".whl"}


def test_the_sdist_has_what_tests_need(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "constraints.txt", "tests/conftest.py", "scripts/check"} <= names
    assert {"packaging/Dockerfile", "packaging/conda/recipe.yaml", ".dockerignore"} <= names


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``bin`` of an environment with the wheel and, beside it, the packages that it needs, but not the repository."""
    directory = tmp_path_factory.mktemp("env")
    venv.create(directory, with_pip=False)
    (site,) = directory.glob("lib/python*/site-packages")
    # A path is added and its .pth files are not read, so that the editable install of the repository is not seen.
    (site / "needs.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (wheel,) = built.glob("*.whl")
    install = [sys.executable, "-m", "pip", "--python", str(directory / "bin/python"), "install"]
    options = ["--quiet", "--no-deps", "--no-index", "--ignore-installed", str(wheel)]
    subprocess.run([*install, *options], check=True, capture_output=True)
    return directory / "bin"


def _run(bin_path: Path, home: Path, *words: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RLX"))}
    environment = {**clean, "RLX_HOME": str(home), "HOME": str(home)}
    result = subprocess.run(
        [str(bin_path / words[0]), *words[1:]], capture_output=True, text=True, cwd=home, env=environment
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_wheel_alone_runs(installed: Path, built: Path, tmp_path: Path) -> None:
    where = _run(installed, tmp_path, "python", "-c", "import rlx, rlx_cli; print(rlx.__file__, rlx_cli.__file__)")
    assert str(ROOT) not in where
    compiled = _run(installed, tmp_path, "python", "-c", "from rlx.store.native.kernel import kernel; print(kernel())")
    assert ("None" in compiled) == any(wheel.name.endswith("any.whl") for wheel in built.glob("*.whl"))
    assert "rlx download Pong/5" in _run(installed, tmp_path, "rlx", "--help")
    _run(installed, tmp_path, "rlx", "collect", "CartPole-v1", "--steps", "50", "--quiet")
    _run(installed, tmp_path, "rlx", "download", "Pong/5", "--source", str(SAMPLE_RUN), "--quiet")
    _run(installed, tmp_path, "rlx", "verify", "Pong/5")
    assert "CartPole-v1" in _run(installed, tmp_path, "rlx", "list", "--local")


def test_the_version_is_said_once() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f'\n  version: "{version}"\n' in (ROOT / "packaging/conda/recipe.yaml").read_text()
    assert f"\n## {version} - " in (ROOT / "CHANGELOG.md").read_text()


@pytest.fixture(scope="module")
def without_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``bin`` of an environment with ``rlx-core``, and of the packages of this one all but PyTorch and tensordict."""
    directory = tmp_path_factory.mktemp("core")
    write_project(directory / "project")
    venv.create(directory / "env", with_pip=False)
    (site,) = (directory / "env").glob("lib/python*/site-packages")
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if not package.name.lower().startswith(("torch", "functorch", "tensordict", "rlx", "_rlx", "__pycache__")):
            (site / package.name).symlink_to(package)
    install = [sys.executable, "-m", "pip", "--python", str(directory / "env/bin/python"), "install"]
    # Editable: the wheel that is tested above is packed the same way, which takes half a minute.
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--editable", str(directory / "project")]
    subprocess.run([*install, *options], check=True, capture_output=True, env={**os.environ, "RLX_KERNEL": "0"})
    return directory / "env/bin"


_NEEDS_TORCH = """
import rlx

def refused(function):
    try:
        function()
    except rlx.errors.MissingExtraError as exc:
        return str(exc).endswith("which is not installed") and exc.hint == "pip install 'rlx-core[torch]'"

assert refused(lambda: rlx.open("CartPole-v1")[0])
assert refused(lambda: rlx.ReplayBuffer)
assert refused(lambda: rlx.Collector)
assert refused(lambda: rlx.loader)
assert refused(lambda: rlx.sample("CartPole-v1"))
assert refused(lambda: rlx.collect("CartPole-v1", steps=9, policy="weights.pt", output="refused"))
assert sum(block.steps for block in rlx.open("CartPole-v1").blocks()) == 300
assert rlx.open("CartPole-v1").num_actions == 2

# Every module can be imported, or says what it needs; other learners' packages may be missing too.
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

base, needy = Path(rlx.__file__).parent, []
for file in sorted(base.rglob("*.py")):
    name = ".".join(("rlx", *file.relative_to(base).with_suffix("").parts)).removesuffix(".__init__")
    try:
        import_module(name)
    except rlx.errors.MissingExtraError as exc:
        needy.append(name)
        assert "which is not installed" in str(exc) and exc.hint.startswith("pip install 'rlx-core["), (name, exc)
assert {"rlx.verbs.sampling", "rlx.collector.collector", "rlx.datasets.minari", "rlx.integrations.lerobot"} <= {*needy}
assert find_spec("torch") is None
print(rlx.__version__)
"""


def test_rlx_core_does_without_torch_all_but_sampling_buffers_and_policies(without_torch: Path, tmp_path: Path) -> None:
    _run(without_torch, tmp_path, "rlx", "collect", "CartPole-v1", "--steps", "300", "--quiet")
    _run(without_torch, tmp_path, "rlx", "download", "Pong/5", "--source", str(SAMPLE_RUN), "--jobs", "1", "--quiet")
    for words in (
        "inspect Pong/5 --stats",
        "verify Pong/5",
        "convert Pong/5 pong.h5 --to d3rlpy",
        "preprocess Pong/5 clipped --transform clip_reward",
        "split CartPole-v1 --fractions 0.5,0.5 -o parts",
        "view Pong/5 -o report.html",
    ):
        _run(without_torch, tmp_path, "rlx", *words.split(), "--quiet")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert _run(without_torch, tmp_path, "python", "-c", _NEEDS_TORCH) == f"{version}\n"
