"""Streams that are closed, full or gone; control characters and passwords, which reach none of them."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rlx.manifest import Manifest
from tests.conftest import Cli
from tests.factories import make_block, write_dataset
from tests.gcs_server import Fault, GcsServer

PROGRAM = "from rlx_cli.app import main; main()"


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "data", [[make_block([30, 50])]]).path


def shell(command: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A shell that runs a command, in which ``RLX`` is the program and $1, $2, ... are the arguments."""
    script = command.replace("RLX", f"{sys.executable} -c '{PROGRAM}'")
    return subprocess.run(
        ["bash", "-c", script, "bash", *map(str, arguments)], capture_output=True, text=True, check=False, timeout=120
    )


FULL, CLOSED = "no space left on device", "bad file descriptor"


@pytest.mark.parametrize(
    ("arguments", "stdout", "said"),
    [
        ("--help", ">/dev/full", FULL),
        ("--version", ">&-", CLOSED),
        ("inspect $1", ">/dev/full", FULL),
        ("inspect $1 --json", ">&-", CLOSED),
    ],
)
def test_stdout_that_takes_nothing(arguments: str, stdout: str, said: str, dataset: Path) -> None:
    done = shell(f"RLX {arguments} {stdout}", dataset)
    first, *others = done.stderr.splitlines()
    assert (done.returncode, first.removeprefix("error: ").removeprefix("stdout: ")) == (1, said)
    assert not [line for line in others if not line.startswith("hint: ")]


def test_samples_to_a_stdout_that_takes_nothing(dataset: Path) -> None:
    """A format that seeks and one that does not, at a device that is full and in a pipe that closes."""
    done = shell("RLX sample $1 -o - --format pt --batches 20 >/dev/full", dataset)
    assert (done.returncode, done.stderr.splitlines()[0]) == (1, f"error: {FULL}")
    lines = "RLX sample $1 -o - --format jsonl --batches 20"
    done = shell(f"{lines} | head -c 100 >/dev/null; exit ${{PIPESTATUS[0]}}", dataset)
    assert (done.returncode in (0, 141), done.stderr) == (True, "")


@pytest.mark.parametrize("stderr", ["2>/dev/full", "2>&-"])
def test_stderr_that_takes_nothing(stderr: str, dataset: Path, tmp_path: Path) -> None:
    assert shell(f"RLX inspect $1 {stderr}", tmp_path / "none").returncode == 5
    done = shell(f"RLX inspect $1 {stderr}", dataset)
    assert (done.returncode, "Test/1" in done.stdout) == (0, True)
    done = shell(f"RLX convert $1 $2 --jobs 1 {stderr} >&- <&-", dataset, tmp_path / "out")
    assert done.returncode == 1
    assert Manifest.load(tmp_path / "out").steps == 80


def test_a_pipe_that_closes_ends_as_with_a_signal(dataset: Path) -> None:
    done = shell("RLX inspect $1 --trajectories --json | true; exit ${PIPESTATUS[0]}", dataset)
    assert (done.returncode in (0, 141), done.stderr) == (True, "")


@pytest.mark.parametrize("format", ["pt", "npz", "h5"])
def test_a_full_disk_is_named_whatever_the_format(
    format: str, dataset: Path, small_disk: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    # There was room before the first batch was drawn.
    monkeypatch.setattr("rlx.verbs.sampling.check_room", lambda *_, **__: None)
    result = cli("sample", dataset, "-o", small_disk / f"a.{format}", "--batches", 2000)
    full = f"error: no room left on the disk of {small_disk}/a.{format}: No space left on device\n"
    assert (result.code, result.err) == (
        1,
        f"{full}hint: free some space, or inodes (df -i), and run the command again\n",
    )
    assert list(small_disk.iterdir()) == []


HOSTILE = "a\x1b[31mb\x07\x9b2J\u202ec"
SHOWN = r"a\x1b[31mb\x07\x9b2J\u202ec"


def controls(text: str) -> set[str]:
    return {one for one in text if (ord(one) < 32 and one not in "\n\t") or 126 < ord(one) < 160 or one == "\u202e"}


def test_no_control_characters_from_a_manifest(dataset: Path, cli: Cli, tmp_path: Path) -> None:
    made = {"command": f"rlx collect {HOSTILE}", "rlx": HOSTILE}
    listed = Manifest.load(dataset)
    replace(listed, notes={HOSTILE: HOSTILE, "a": [HOSTILE, {"b": HOSTILE}]}, lineage=[made]).save(dataset)
    commands = (
        ("inspect",),
        ("inspect", "--stats"),
        ("verify",),
        ("repair",),
        ("sample",),
        ("push", tmp_path / "there"),
    )
    for verb, *arguments in commands:
        result = cli(verb, dataset, *arguments)
        assert controls(result.out + result.err) == set(), verb
    assert SHOWN in cli("inspect", dataset).out
    (dataset / "shards" / HOSTILE).touch()
    (dataset / "shards/00000/action/c/0").unlink()
    for word in ("verify", "repair"):
        result = cli(word, dataset)
        assert SHOWN in result.out
        assert controls(result.out + result.err) == set()


def test_no_control_characters_from_a_server_or_a_path(tmp_path: Path, cli: Cli) -> None:
    result = cli("inspect", tmp_path / HOSTILE)
    assert (result.code, controls(result.err)) == (5, set())
    assert SHOWN in result.err
    (tmp_path / "Pong").mkdir()
    with GcsServer(tmp_path) as server:
        server.fault("*", Fault(status=418, headers={"X": "y"}), times=None, method="*")
        result = cli("--debug", "download", "Pong/5", "--source", server.url, "--shards", "0")
    assert result.code == 1
    assert controls(result.err) == set()


def test_a_name_that_is_not_utf8(dataset: Path, tmp_path: Path, cli: Cli) -> None:
    odd = os.fsencode(tmp_path) + b"/odd\xff"
    os.rename(os.fsencode(dataset), odd)
    done = subprocess.run([sys.executable, "-c", PROGRAM, "inspect", odd], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    for verb, *arguments in (["inspect"], ["inspect", "--json"], ["verify"], ["repair"], ["sample"]):
        assert cli(verb, os.fsdecode(odd), *arguments).code == 0


FORGING = "a\nerror: forged\ttab"


def test_a_line_feed_in_a_name_makes_no_line(dataset: Path, cli: Cli, tmp_path: Path) -> None:
    odd = dataset.rename(tmp_path / FORGING)
    (odd / "shards" / FORGING).touch()
    made = {"command": f"rlx collect '{FORGING}'; rm -rf ~", "rlx": FORGING, "recipe": {}}
    listed = Manifest.load(odd)
    replace(listed, notes={FORGING: FORGING}, lineage=[made]).save(odd)
    for words in (
        ["inspect", odd, "--stats", "--trajectories"],
        ["verify", odd],
        ["repair", odd],
        ["sample", odd, "-o", tmp_path / f"{FORGING}.npz"],
        ["view", odd, "-o", tmp_path / f"{FORGING}.png"],
        ["convert", odd, tmp_path / f"{FORGING}-1", "--jobs", "1"],
        ["merge", odd, "-o", tmp_path / f"{FORGING}-2"],
        ["doctor", odd],
        ["push", odd, tmp_path / f"{FORGING}-3"],
        ["pull", tmp_path / f"{FORGING}-3", "-o", tmp_path / f"{FORGING}-4"],
        ["inspect", tmp_path / f"{FORGING}-5"],
        ["download", FORGING],
        ["convert", odd, tmp_path / "x", "--to", FORGING],
        ["collect", FORGING, "-o", tmp_path / "y"],
        ["list", "--source", tmp_path / FORGING],
    ):
        result = cli(*words)
        said = result.out + result.err
        assert "Traceback" not in said
        assert (words[0], [line for line in said.splitlines() if line.startswith("error: forged")]) == (words[0], [])
        assert "\t" not in said


SECRETS = ("p4ssw0rd", "s1gnature", "fr4gment")


@pytest.mark.parametrize("debug", [(), ("--debug",), ("--json",)])
def test_no_passwords_and_no_signatures(debug: tuple[str, ...], dataset: Path, cli: Cli, tmp_path: Path) -> None:
    new = tmp_path / "new"
    with GcsServer(tmp_path) as server:
        url = f"{server.url.replace('://', f'://me:{SECRETS[0]}@')}/x?sig={SECRETS[1]}#{SECRETS[2]}"
        for command in (
            ("list", "--remote", "--source", url),
            ("download", "Pong/5", "--source", url, "--shards", "0", "-o", new),
            ("convert", url, new),
            ("convert", dataset, url),
            ("inspect", url),
            ("verify", url),
            ("sample", url),
            ("repair", url),
            ("push", dataset, url),
            ("pull", url, "-o", new),
            ("merge", url, dataset, "-o", new),
            ("preprocess", url, new, "--transform", "clip_rewards"),
        ):
            result = cli(*command, *debug)
            assert [secret for secret in SECRETS if secret in result.out + result.err] == [], (command, result)
    leaked = [path for path in tmp_path.rglob("rlx.json") if any(one in path.read_text() for one in SECRETS)]
    assert leaked == []


def test_an_error_for_which_no_memory_is_left(dataset: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    """What prints it cannot be imported, nor can what an extra installs: it is not missing."""

    def fail(self: object, name: str, *_: object) -> None:  # noqa: ARG001
        if name == "pylance" or name.partition(".")[0] in ("lance", "rich"):
            raise ImportError("x.so: failed to map segment from shared object")

    for name in [name for name in sys.modules if name.partition(".")[0] in ("lance", "rich")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [type("Full", (), {"find_spec": fail})(), *sys.meta_path])
    done = cli("convert", dataset, dataset.parent / "out", "--to", "lance", "--quiet")
    assert (done.code, "error: not enough memory: x.so: failed to map" in done.err) == (1, True)
