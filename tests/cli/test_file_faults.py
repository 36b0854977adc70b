"""Every command with everything that a file system refuses, as a user who is not root: never a traceback."""

import gc
import os
import pwd
import resource
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from rlx.testing.dataset_exporter import SAMPLES, random_block
from rlx_cli.app import app
from tests.conftest import SAMPLE_RUN, Cli
from tests.factories import write_dataset
from tests.privileges import unprivileged

# What reads DATA, and what writes OUT as well.
READERS: dict[str, Sequence[str]] = {
    "inspect": ["DATA", "--stats", "--trajectories"],
    "verify": ["DATA"],
    "cite": ["DATA"],
    "repair": ["DATA"],
    "sample": ["DATA"],
    "doctor": ["DATA"],
    "diff": ["DATA", "DATA"],
}
WRITERS: dict[str, Sequence[str]] = {
    "inspect --plot": ["DATA", "--plot", "OUT.png"],
    "sample -o": ["DATA", "-o", "OUT.npz"],
    "view": ["DATA", "-o", "OUT.png"],
    "convert": ["DATA", "OUT", "--jobs", "1"],
    "convert --to torchrl": ["DATA", "OUT", "--to", "torchrl"],
    "convert --to d4rl": ["DATA", "OUT.hdf5", "--to", "d4rl"],
    "merge": ["DATA", "-o", "OUT"],
    "split": ["DATA", "--fractions", "0.5,0.5", "-o", "OUT"],
    "preprocess": ["DATA", "OUT", "--transform", "clip_reward", "--num-workers", "1"],
    "push": ["DATA", "OUT"],
    "pull": ["DATA", "-o", "OUT"],
}
OTHERS: dict[str, Sequence[str]] = {
    "download": ["Pong/5", "--source", str(SAMPLE_RUN), "-o", "OUT", "--jobs", "1"],
    "collect": ["CartPole-v1", "-o", "OUT", "--steps", "20"],
}
# What reads $RLX_HOME alone.
LISTERS: dict[str, Sequence[str]] = {"list": ["--local"], "list --json": ["--local", "--json"]}


def test_every_command_is_here() -> None:
    named = {name.split()[0] for name in {**READERS, **WRITERS, **OTHERS, **LISTERS}}
    assert named == {command.name for command in app.registered_commands}


def private(path: Path) -> None:
    path.chmod(0)


SOURCE_FAULTS: dict[str, Callable[[Path], None]] = {
    "private directory": private,
    "private manifest": lambda data: private(data / "rlx.json"),
    "private shards": lambda data: private(data / "shards"),
    "private shard": lambda data: private(data / "shards/00000"),
    "private file": lambda data: private(data / "shards/00000/observation/c/0"),
    "private metadata": lambda data: private(data / "shards/00000/observation/zarr.json"),
    "manifest that links to itself": lambda data: _unlinked(data / "rlx.json").symlink_to("rlx.json"),
    "manifest that is a directory": lambda data: _unlinked(data / "rlx.json").mkdir(),
    "manifest that is a pipe": lambda data: os.mkfifo(_unlinked(data / "rlx.json")),
    "shard that is a pipe": lambda data: os.mkfifo(_unlinked(data / "shards/00000/observation/c/0/0")),
}


def _unlinked(path: Path) -> Path:
    path.unlink()
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    schema = SAMPLES["vectors"]
    return write_dataset(tmp_path_factory.mktemp("made") / "data", [[random_block(schema)]], schema=schema).path


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of an ordinary user, with a dataset in it."""
    monkeypatch.setenv("RLX_HOME", str(tmp_path / "home"))
    shutil.copytree(made, tmp_path / "data")
    yield tmp_path
    for folder, names, _ in os.walk(tmp_path):
        for name in names:
            (Path(folder) / name).chmod(0o755)


def told(cli: Cli, name: str, arguments: Sequence[str], data: Path, out: Path) -> str:
    words = [word.replace("DATA", str(data)).replace("OUT", str(out)) for word in arguments]
    result = cli(name.split()[0], *words)
    assert "Traceback" not in result.err, result.err[-2000:]
    assert result.code in (0, 1, 3, 4, 5, 6), result
    assert (result.code == 0) != ("error: " in result.err), result
    return result.err


@pytest.mark.parametrize("fault", SOURCE_FAULTS)
def test_what_cannot_be_read(fault: str, cli: Cli, place: Path) -> None:
    with unprivileged():
        SOURCE_FAULTS[fault](place / "data")
        for name, arguments in {**READERS, **WRITERS}.items():
            said = told(cli, name, arguments, place / "data", place / "out")
            assert "that" in fault or "damaged" not in said or name == "doctor", (name, said)


# What other programs need, and rlx does not read.
UNREAD = frozenset({"stats.json", "tasks.parquet", "terminated.memmap", "truncated.memmap", "done.memmap"})
FILE_NAMES = {"npz": "foreign.npz", "minari": "foreign-v0"}
FOREIGN = (
    "d4rl",
    "robomimic",
    "d3rlpy",
    "minari",
    "lerobot",
    "rlds",
    "torchrl",
    "npz",
    "parquet",
    "array_record",
    "lance",
    "mds",
)


@pytest.mark.parametrize("name", FOREIGN)
def test_files_of_other_formats_that_cannot_be_read(name: str, cli: Cli, place: Path) -> None:
    """Each file in turn is private: that is no damage, and nothing is left out for it."""
    foreign = place / FILE_NAMES.get(name, "foreign")
    made = cli("convert", place / "data", foreign, "--to", name)
    assert made.code == 0, made
    files = [path for path in [foreign, *foreign.rglob("*")] if path.is_file()]
    for number, file in enumerate(files):
        for choice in ([], ["--from", name]):
            mode = file.stat().st_mode
            file.chmod(0)
            with unprivileged():
                result = cli("convert", foreign, place / f"out-{number}-{len(choice)}", "--jobs", "1", *choice)
            file.chmod(mode)
            if result.code != 0:
                assert result.code == 1, (file, choice, result)
                assert "who may read" in result.err, (file, choice, result)
            else:
                assert file.name in UNREAD, (file, choice)


def read_only(place: Path) -> Path:
    (place / "closed").mkdir()
    (place / "closed").chmod(0o555)
    return place / "closed/out"


def a_file(place: Path) -> Path:
    (place / "file").touch()
    return place / "file/out"


def taken(place: Path) -> Path:
    for name in ("out", "out-1", "out.png", "out.npz", "out.hdf5"):
        (place / name).mkdir()
        (place / name / "precious").touch()
    return place / "out"


def looping(place: Path) -> Path:
    (place / "loop").symlink_to("loop")
    return place / "loop/out"


TARGET_FAULTS: dict[str, Callable[[Path], Path]] = {
    "read-only directory": read_only,
    "file for a directory": a_file,
    "taken": taken,
    "name that is too long": lambda place: place / ("x" * 300),
    "path that is too long": lambda place: place.joinpath(*["x" * 200] * 30),
    "symbolic link to itself": looping,
}


@pytest.mark.parametrize("fault", TARGET_FAULTS)
def test_what_cannot_be_written(fault: str, cli: Cli, place: Path) -> None:
    out = TARGET_FAULTS[fault](place)
    with unprivileged():
        for name, arguments in {**WRITERS, **OTHERS}.items():
            assert "error: " in told(cli, name, arguments, place / "data", out), name
    assert fault != "taken" or (place / "out/precious").exists()


def test_a_name_that_is_not_utf8(cli: Cli, place: Path) -> None:
    odd = place / os.fsdecode(b"odd\xff")
    (place / "data").rename(odd)
    with unprivileged():
        for name, arguments in {**READERS, **WRITERS}.items():
            told(cli, name, arguments, odd, place / os.fsdecode(f"out-{name[:4]}\xff".encode("latin-1")))


# What takes an id below $RLX_HOME: pull takes URLs and directories.
BY_ID = {name: arguments for name, arguments in {**READERS, **WRITERS}.items() if name != "pull"}
# What writes below $RLX_HOME where it is not told a directory.
AT_HOME: dict[str, Sequence[str]] = {
    "download": ["Pong/5", "--source", str(SAMPLE_RUN), "--jobs", "1"],
    "collect": ["CartPole-v1", "--steps", "20"],
    "pull": ["PATH"],
}


def test_no_home_directory(cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user is in no list: only what is below $RLX_HOME is out of reach."""

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("HOME", "RLX_HOME", "XDG_DATA_HOME", "USER", "LOGNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name, arguments in [*BY_ID.items(), *LISTERS.items(), *AT_HOME.items()]:
        words = [word.replace("DATA", "Pong/5").replace("PATH", str(place / "data")) for word in arguments]
        result = cli(name.split()[0], *(word.replace("OUT", str(place / "none")) for word in words))
        assert "error: this user has no home directory\nhint: set HOME, or RLX_HOME for the datasets\n" in result.err
        assert (name, result.code) == (name, 1)
    more = {"convert --to minari": ["DATA", "OUT-v0", "--to", "minari"], **OTHERS}
    for name, arguments in {**READERS, **WRITERS, **more}.items():
        assert "error: " not in told(cli, name, arguments, place / "data", place / name.replace(" ", "")), name


def a_file_for_home(place: Path) -> Path:
    (place / "file").write_text("x")
    return place / "file"


def private_home(place: Path) -> Path:
    (place / "private/Own").mkdir(parents=True)
    private(place / "private")
    return place / "private"


def read_only_home(place: Path) -> Path:
    shutil.copytree(place / "data", place / "closed/Own/1")
    (place / "closed").chmod(0o555)
    return place / "closed"


def oddly_named_home(place: Path) -> Path:
    home = place / os.fsdecode(b"odd\xff")
    shutil.copytree(place / "data", home / "Own/1")
    return home


# Each with whether Own/1 can be read there, and whether datasets can be written there.
HOMES: dict[str, tuple[Callable[[Path], Path | str], bool, bool]] = {
    "file": (a_file_for_home, False, False),
    "private": (private_home, False, False),
    "name that is too long": (lambda place: place / ("x" * 300), False, False),
    "link to itself": (lambda place: looping(place).parent, False, False),
    "nobody's": (lambda _: "~nobody-of-this-name/rlx", False, False),
    "relative": (lambda _: "nowhere/at/all", False, True),
    "missing": (lambda place: place / "nowhere/at/all", False, True),
    "below a file": (lambda place: a_file_for_home(place) / "home", False, False),
    "read-only": (read_only_home, True, False),
    "not UTF-8": (oddly_named_home, True, True),
}


@pytest.mark.parametrize("kind", HOMES)
def test_a_home_of_any_kind(kind: str, cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, can_read, can_write = HOMES[kind]
    monkeypatch.chdir(place)
    monkeypatch.setenv("RLX_HOME", str(make(place)))
    commands = [
        *((name, arguments, can_read) for name, arguments in BY_ID.items()),
        *((name, arguments, can_write) for name, arguments in AT_HOME.items()),
    ]
    with unprivileged():
        for name, arguments in LISTERS.items():
            told(cli, name, arguments, place, place)
        for number, (name, arguments, fine) in enumerate(commands):
            words = [word.replace("DATA", "Own/1").replace("PATH", str(place / "data")) for word in arguments]
            said = told(cli, name, words, place, place / f"out-{number}")
            assert (name, "error: " not in said) == (name, fine), said


def test_too_many_open_files(cli: Cli, place: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    commands = {**READERS, **WRITERS, **OTHERS, **LISTERS}
    for name, arguments in commands.items():  # everything is imported
        told(cli, name, arguments, place / "data", place / f"first-{name.replace(' ', '')}/out")
    gc.collect()  # files that earlier tests left open would be closed in between
    said = {}
    for more in (0, 1, 4):
        for name, arguments in commands.items():
            free = os.dup(0)
            os.close(free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free + more, hard))
            try:
                said[name, more] = told(cli, name, arguments, place / "data", place / f"{more}-{name.replace(' ', '')}")
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for name in {**READERS, **WRITERS, **OTHERS}:
        assert "too many open files" in said[name, 0].lower(), (name, said[name, 0])
