"""Every command explains itself, examples first, and costs nothing to ask."""

import re
import subprocess
import sys

import pytest

from tests.conftest import Cli

COMMANDS = {
    "list": "--remote --local --game --source --json",
    "download": "-o --source --layout --shards --store --codec --jobs --engine --ray-address --keep-source "
    "--overwrite --dry-run --json",
    "convert": "--from --to --codec --capacity --shards --jobs --engine --ray-address --overwrite --json",
    "collect": "-o --envs --workers --sync --async --steps --episodes --policy --epsilon --seed --shard-steps --store "
    "--codec --engine --ray-address --resume --overwrite --json",
    "preprocess": "--transform --fn --per --chunk-size --steps --num-workers --engine --ray-address --store --codec "
    "--overwrite --dry-run --json",
    "merge": "-o --to --codec --jobs --overwrite --json",
    "split": "--fractions --by --seed --part -o --jobs --overwrite --json",
    "inspect": "--stats --trajectories --plot --json",
    "cite": "--json",
    "view": "--episode -o --fps --port --no-browser --json",
    "sample": "--batch-size --slice-len --num-slices --stack --n-step --gamma --batches --seed --without-replacement "
    "--no-strict-length -o --format --json",
    "verify": "--json",
    "doctor": "--from --against --sample --fix -o --json",
    "diff": "--json",
    "repair": "--json",
    "push": "--jobs --overwrite --private --license --cite --json",
    "pull": "-o --jobs --overwrite --json",
}


def test_all_commands_are_listed(cli: Cli) -> None:
    result = cli("--help")
    assert (result.code, result.err) == (0, "")
    listed = re.findall(r"^  (\w+)  +\S", result.out.partition("Commands:")[2], re.MULTILINE)
    assert listed == list(COMMANDS)
    assert "..." not in result.out.partition("Commands:")[2]
    assert "--install-completion" in result.out


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_its_options_and_the_common_ones(cli: Cli, command: str) -> None:
    result = cli(command, "--help")
    assert (result.code, result.err) == (0, "")
    options = set(re.findall(r"^  (-\S+?)(?=,|\s|$)|(?:,| /) (--\S+)", result.out, re.MULTILINE))
    names = {name for pair in options for name in pair if name}
    assert names >= {*COMMANDS[command].split(), "--quiet", "--debug", "--json", "--help"}


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_examples_come_first_and_are_of_the_command(cli: Cli, command: str) -> None:
    out = cli(*command.split(), "--help").out
    assert out.index("Examples:") < out.index("Options:")
    assert out.count("\n", 0, out.index("Examples:")) == 4
    examples = re.findall(r"^    (rlx .*)$", out, re.MULTILINE)
    assert examples
    assert all(example.startswith(f"rlx {command}".rstrip()) for example in examples)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_a_terminal_of_80_columns(cli: Cli, command: str) -> None:
    assert max(map(len, cli(*command.split(), "--help").out.splitlines())) <= 80


def test_asking_imports_nothing_heavy() -> None:
    program = """
import sys
from rlx_cli.app import main
heavy = {"torch", "tensordict", "zarr", "numpy", "requests", "rich", "multiprocessing"}
for asked in sys.argv[1:]:
    sys.argv = ["rlx", *asked.split()]
    try:
        main()
    except SystemExit as ended:
        assert ended.code == 0, asked
    unused = heavy | ({"importlib.metadata"} if asked == "--help" else set())
    assert not unused.intersection(sys.modules), (asked, unused.intersection(sys.modules))
"""
    asked = ["--help", "--version", *(f"{command} --help" for command in COMMANDS)]
    done = subprocess.run([sys.executable, "-c", program, *asked], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Examples:") == 1 + len(COMMANDS)


def test_completion_knows_the_commands(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_RLX_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "rlx ")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert set(cli().out.split()) >= set(COMMANDS)
