"""The example of docs/extending.md: installed, it passes its own tests, and rlx has what it adds."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlx.testing.factories import make_block, write_dataset
from tests.docs.pages import ROOT, blocks

EXAMPLE = ROOT / "docs/examples/rlx-example"


def run(target: Path, *command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(target), str(ROOT), str(ROOT / "commands"), *filter(None, sys.path)])
    return subprocess.run(
        list(map(str, command)),
        env={**os.environ, "PYTHONPATH": path, **environment},
        cwd=target,
        capture_output=True,
        text=True,
    )


def rlx(target: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return run(target, sys.executable, "-c", "from rlx_cli.entry import main; main()", *arguments)


def distribution(target: Path, name: str, entry_points: str) -> Path:
    """What pip leaves of a package: its modules, and what it is."""
    described = target / f"{name}-0.1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 0.1.0\n")
    (described / "entry_points.txt").write_text(entry_points)
    return target


@pytest.fixture
def target(tmp_path: Path) -> Path:
    target = tmp_path / "installed"
    target.mkdir()
    return target


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, installed beside rlx by its own build backend."""
    target, source = tmp_path_factory.mktemp("installed"), tmp_path_factory.mktemp("source") / "example"
    shutil.copytree(EXAMPLE, source)
    install = [sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable, "--offline"]
    how: list[str | Path] = ["--no-deps", "--no-build-isolation", "--target", target, source]
    found = subprocess.run([*install, *how], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    return target


def test_the_page_shows_the_example() -> None:
    files = [file.read_text() for file in [*sorted(EXAMPLE.rglob("*.py")), EXAMPLE / "pyproject.toml"]]
    known = {line.partition("  # noqa")[0].strip() for text in files for line in text.splitlines()}
    shown = [block.code for block in blocks(ROOT / "docs/extending.md") if block.is_code and block.reason is None]
    assert len(shown) == 4
    assert [line for code in shown for line in code.splitlines() if line.strip() not in known] == []


def test_its_tests_pass(installed: Path) -> None:
    plugins = ["-p", "no:cacheprovider", "-p", "no:randomly"]
    found = run(installed, sys.executable, "-m", "pytest", "-q", *plugins, "--rootdir", EXAMPLE, EXAMPLE / "tests")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "passed" in found.stdout


def test_its_command_and_what_lists_it(installed: Path, tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", [[make_block([2, 7])]])
    assert rlx(installed, "longest", tmp_path / "data").stdout == "7 steps\n"
    assert json.loads(rlx(installed, "longest", tmp_path / "data", "--json").stdout) == {"steps": 7}
    assert "A command of rlx-example 0.1.0." in rlx(installed, "--help").stdout
    added = "rlx-example 0.1.0: format traces, transform shift_reward, command longest"
    assert rlx(installed, "--version").stdout.splitlines()[1:] == [added]


def test_a_broken_package_breaks_only_its_own_names(target: Path, tmp_path: Path) -> None:
    (target / "broken.py").write_text("raise RuntimeError('no luck')\n")
    groups = {"formats": "tally", "transforms": "halve", "commands": "count"}
    distribution(target, "rlx_broken", "".join(f"[rlx.{group}]\n{name} = broken:X\n" for group, name in groups.items()))
    write_dataset(tmp_path / "data", [[make_block([2, 7])]])
    helped = rlx(target, "--help")
    assert helped.returncode == 0
    assert "A command of rlx-broken 0.1.0." in helped.stdout
    said = "of rlx-broken 0.1.0 (broken:X) cannot be loaded: RuntimeError: no luck"
    found = rlx(target, "count")
    assert (found.returncode, found.stderr.splitlines()[0]) == (1, f"error: command 'count' {said}")
    found = rlx(target, "preprocess", tmp_path / "data", tmp_path / "new", "--transform", "halve")
    assert f"error: transform 'halve' {said}" in found.stderr
    found = rlx(target, "convert", tmp_path / "data", tmp_path / "out.npz", "--to", "npz")
    assert found.returncode == 0, found.stderr
    found = rlx(target, "convert", tmp_path / "data", tmp_path / "out", "--to", "tally")
    assert found.returncode == 2
    assert found.stderr.count(f"warning: format 'tally' {said}") == 1


def test_a_name_that_is_taken_is_refused(target: Path) -> None:
    (target / "thief.py").write_text("X = print\n")
    distribution(target, "rlx_a", "[rlx.commands]\nconvert = thief:X\nmine = thief:X\n")
    distribution(target, "rlx_b", "[rlx.commands]\nmine = thief:X\n")
    helped = rlx(target, "--help")
    assert helped.returncode == 0
    assert "command 'convert' of rlx-a 0.1.0 (thief:X) is refused: rlx has that name" in helped.stderr
    assert "command 'mine' of rlx-b 0.1.0 (thief:X) is refused: rlx-a 0.1.0 has that name" in helped.stderr
    assert helped.stdout.count("mine") == 1


def test_help_imports_no_plugin_and_no_torch(installed: Path) -> None:
    code = "import sys; from rlx_cli.entry import main; sys.argv = ['rlx', '--help']\n"
    code += "try: main()\nfinally: print(*sys.modules)"
    modules = run(installed, sys.executable, "-c", code).stdout.split()
    assert "rlx_cli.app" in modules
    assert not {"torch", "rlx_example", "importlib.metadata"} & set(modules)


def test_only_the_reader_of_the_format_found_is_imported(installed: Path, pong: Path, tmp_path: Path) -> None:
    assert rlx(installed, "convert", pong, tmp_path / "run.npz", "--to", "npz").returncode == 0
    code = (
        "import sys; from pathlib import Path; from rlx.formats.finding import find_run\n"
        f"find_run(Path({str(tmp_path / 'run.npz')!r}), None); print(*sys.modules)"
    )
    found = run(installed, sys.executable, "-c", code)
    assert found.returncode == 0, found.stderr
    modules = {name for name in found.stdout.split() if name.startswith("rlx.formats.") and name.endswith(".reader")}
    assert modules == {"rlx.formats.npz.reader"}
    assert "rlx_example.traces.reader" not in found.stdout.split()


def test_without_pytest_the_error_names_the_extra(target: Path) -> None:
    (target / "pytest.py").write_text("raise ImportError('no module named pytest')\n")
    found = run(target, sys.executable, "-c", "import rlx.testing")
    assert "MissingExtraError: rlx.testing needs pytest, which is not installed" in found.stderr
