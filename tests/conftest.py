"""What every test gets: no network but loopback, a ``$RLX_HOME`` of its own, and the command line in-process."""

import gc
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import settings

from rlx.engine.ray_cluster import ray_cluster
from rlx.progress import Silent
from rlx.testing.dataset_exporter import small_disk, whole_dataset
from rlx.verbs.arguments import Options
from rlx.verbs.convert import convert_files
from rlx.verbs.export import EXPORT_FORMATS, export
from rlx.verbs.inputs import Fetched
from rlx_cli.app import main
from tests.azure_server import AzureServer, azurite
from tests.bad_files import NAMES
from tests.hub_server import HubServer
from tests.s3_server import S3Server

IN_MEMORY = Path("/dev/shm")
SAMPLE_RUN = Path(__file__).parents[1] / "scripts/sample_run"
# Where one example is costly, a test states fewer. ``pytest --hypothesis-profile soak`` runs many.
settings.register_profile("quick", deadline=None, max_examples=50)
settings.register_profile("soak", deadline=None, max_examples=2000)
settings.load_profile("quick")
# Fixtures that are costly to set up: with ``--dist loadgroup`` one worker runs all their tests.
GROUPED = {"two_workers_of_ray": "ray", "preloaded": "faults"}


@dataclass(frozen=True, slots=True)
class Result:
    """How one command ended."""

    code: int
    out: str
    err: str


Cli = Callable[..., Result]


def pytest_configure() -> None:
    """Compute with one thread, here and in the processes that tests start: more would wait for each other's cores.

    Temporary directories are in memory where there is room: datasets flush tens of thousands of files to the disk.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if os.access(IN_MEMORY, os.W_OK):
        disk = os.statvfs(IN_MEMORY)
        if disk.f_bavail * disk.f_frsize > 4 * 2**30 and not disk.f_flag & os.ST_NOEXEC:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Name the group of each test that uses a fixture of ``GROUPED``."""
    for item in items:
        for fixture in GROUPED.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group(GROUPED[fixture]))


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of later garbage collections, which would look at all of it.

    Processes that tests fork do not copy its pages either.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def only_loopback() -> Iterator[None]:
    """A test that reaches for the network fails, wherever it runs."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_here(address[0]):
            raise PermissionError(f"tests may not connect to {address[0]}")
        connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded)
        yield


def _is_here(host: str) -> bool:
    """Whether this is an address of this machine: Ray's processes use one that is not loopback."""
    if host == "localhost" or not host[:1].isdigit():
        return host in ("localhost", "::1")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as own, suppress(OSError):
        own.bind((host, 0))
        return True
    return False


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``$RLX_HOME``, and a terminal about which nothing is known."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "XDG_DATA_HOME", "RLX_SOURCES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    path = tmp_path / "home"
    monkeypatch.setenv("RLX_HOME", str(path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return path


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of several processes ask for them, so that the others run alike on every machine."""
    monkeypatch.setattr("rlx.engine.engines.cores", lambda: 1)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """Runs ``rlx`` with some arguments in this process."""

    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["rlx", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as exited:
            main()
        out, err = capfd.readouterr()
        assert isinstance(exited.value.code, int)
        return Result(exited.value.code, out, err)

    return run


@pytest.fixture(scope="session")
def _pong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pong") / "dataset"
    options = Options(jobs=1, command="rlx convert sample")
    convert_files(Fetched(SAMPLE_RUN), path, options, source_format=None, progress=Silent())
    return path


@pytest.fixture
def pong(_pong: Path, tmp_path: Path) -> Path:
    """The sample run as a dataset of its own: three shards."""
    return shutil.copytree(_pong, tmp_path / "pong")


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small dataset in every format, by the format's name; tests change copies."""
    root = tmp_path_factory.mktemp("exported")
    vectors, pictures = (whole_dataset(root / sample, sample).path for sample in ("vectors", "pictures"))
    for format in EXPORT_FORMATS:
        source = pictures if format == "dopamine" else vectors
        export(source, root / format / NAMES.get(format, "a.h5"), format, progress=Silent())
    return root


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A server of S3 that runs while the tests do."""
    with S3Server() as server:
        yield server


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of a bucket of its own, ``s3://...``, which the environment lets this process use."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    name = f"bucket-{uuid4()}"
    s3_server.make_bucket(name)
    return f"s3://{name}"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """A hub, as the environment of huggingface_hub names it, and whoever may write to it."""
    from huggingface_hub import close_session, constants  # noqa: PLC0415  (half a second, which few tests need)

    with HubServer() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        # For processes that a test starts.
        for name, value in (("ENDPOINT", server.url), ("TOKEN", server.token), ("HUB_DISABLE_XET", "1")):
            monkeypatch.setenv(f"HF_{name}", value)
        yield server
        close_session()


@pytest.fixture(scope="session")
def azure_server() -> Iterator[AzureServer]:
    """A server of Azure that runs while the tests do, where there is one to run."""
    program = azurite()
    if program is None:
        pytest.skip("no azurite-blob on the PATH, nor in $RLX_AZURITE: npm install azurite")
    with AzureServer(program) as server:
        yield server


@pytest.fixture
def container(azure_server: AzureServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of a container of its own, ``az://...``, which the environment lets this process use."""
    for name, value in azure_server.environment.items():
        monkeypatch.setenv(name, value)
    name = f"container-{uuid4()}"
    azure_server.make_container(name)
    return f"az://{name}"


@pytest.fixture(name="small_disk")
def _small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as disk:
        yield disk


@pytest.fixture(scope="session")
def two_workers_of_ray() -> Iterator[None]:
    """Ray on this machine, with two CPUs, which whatever uses Ray in this process takes."""
    with ray_cluster(cpus=2):
        yield
