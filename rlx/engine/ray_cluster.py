"""The connection of this process to a Ray cluster, and whether the cluster's head answers."""

from __future__ import annotations

import logging
import os
import platform
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rlx.errors import EngineError, imported

if TYPE_CHECKING:
    from types import ModuleType


logger = logging.getLogger(__name__)
_LOOK_S = 5.0
_HEAD_S = 20.0  # after 60 s without it, Ray ends this process without a word to Python
_CLIENT_PORT = 10001  # of ray:// where none is given
_NO_CLUSTER = "start one with ray start --head, or leave the address out"
_NEW_HEAD = "finished shards are kept: restart the cluster, then run the command again (collect: with --resume)"
_NO_TOKEN = "set RAY_AUTH_MODE=token, and copy ~/.ray/auth_token from the first machine"


@contextmanager
def ray_cluster(
    address: str | None = None, *, cpus: int | None = None, config: Mapping[str, Any] | None = None
) -> Iterator[ModuleType]:
    """Connect to Ray while the context lasts; yield the package ``ray``.

    An existing connection of this process is used, and left open. Otherwise the cluster at the address is joined, or
    that of ``$RAY_ADDRESS``. Without an address, a cluster starts on this machine, and ends with its last user, or when
    this process is killed.

    Args:
        address: ``host:port``, ``ray://host:port``, or ``auto`` for one that runs on this machine.
        cpus: CPUs of a cluster that is started here; by default those of the machine.
        config: further arguments for ``ray.init``.
    """
    ray = _imported()
    with _connection.lock:
        if not ray.is_initialized():
            _connect(ray, address or os.environ.get("RAY_ADDRESS") or None, cpus, dict(config or {}))
            _connection.is_ours = True
        _connection.users += 1
    try:
        yield ray
    finally:
        with _connection.lock:
            _connection.users -= 1
            if _connection.users == 0 and _connection.is_ours:
                _connection.is_ours = False
                ray.shutdown()


@dataclass
class _Connection:
    """The connection of this process: its users, and when the cluster's head last answered."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0
    is_ours: bool = False  # rlx made it, and ends it
    silent_since: float | None = None  # when the head first did not answer
    next_look: float = 0.0  # when to look for the head again


_connection = _Connection()


def _imported() -> ModuleType:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray_package: ModuleType = imported("ray", "clusters need Ray", "ray")
    worker: Any = import_module("ray._private.worker")
    # Ray prints workers' events on stdout, which is for results, and has no argument to prevent it.
    worker.print_to_stdstream = _log
    return ray_package


def _log(data: Mapping[str, Any], ignore_prefix: bool) -> None:  # noqa: ARG001  (Ray passes it)
    for line in data["lines"]:
        logger.info("%s", line)


def _connect(ray: ModuleType, address: str | None, cpus: int | None, config: dict[str, Any]) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    where: dict[str, Any] = {"address": address}
    if address is None:
        where = {"address": "local", "num_cpus": cpus, "include_dashboard": False}
    elif address != "auto":
        _look_for(address)
    terminate = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**(quiet | where | config))
    except (ConnectionError, RuntimeError, ray.exceptions.RayError) as exc:  # also other versions of Ray
        hint = _NO_TOKEN if "AuthenticationError" in f"{exc!r} {exc.__cause__}" else _NO_CLUSTER
        raise EngineError(f"the Ray cluster at {address} cannot be joined: {exc}", hint=hint) from exc
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, terminate)


def _look_for(address: str) -> None:
    """Raise EngineError if the port is closed; Ray itself would retry for a quarter of an hour."""
    url = urlsplit(address if "://" in address else f"//{address}")
    try:
        port = url.port or _CLIENT_PORT
    except ValueError:  # no number, or too large a one
        port = 0
    if not url.hostname or not port:
        raise EngineError(f"{address!r} is not an address of a Ray cluster", hint="HOST:PORT, ray://HOST:PORT or auto")
    try:
        socket.create_connection((url.hostname, port), _LOOK_S).close()
    except OSError as exc:
        raise EngineError(f"no Ray cluster answers at {address}: {exc}", hint=_NO_CLUSTER) from exc


def result(ray: ModuleType, ref: Any) -> Any:
    """Return ``ray.get(ref)``.

    Raises:
        EngineError: the head of the cluster was lost.
    """
    while True:
        if time.monotonic() > _connection.next_look:
            head_answers(ray)
        with suppress(ray.exceptions.GetTimeoutError):
            return ray.get(ref, timeout=_LOOK_S)


def head_answers(ray: ModuleType) -> bool:
    """Whether the head of the cluster answers now.

    Raises:
        EngineError: it has not answered for 20 seconds.
    """
    if ray.util.client.ray.is_connected():
        return True  # by ray://, whose server tells
    address = ray.get_runtime_context().gcs_address
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _LOOK_S).close()
        _connection.silent_since = None
    except OSError as exc:
        now = time.monotonic()
        if _connection.silent_since is None or now > _connection.next_look + _HEAD_S:  # nobody has looked since
            _connection.silent_since = now
        if now - _connection.silent_since > _HEAD_S:
            raise EngineError(f"the head of the Ray cluster at {address} was lost: {exc}", hint=_NEW_HEAD) from exc
    _connection.next_look = time.monotonic() + _LOOK_S
    return _connection.silent_since is None


def settle_in(directory: str, path: Sequence[str]) -> None:
    """Have a worker's process work in the directory of the process that it works for, with its ``sys.path``."""
    sys.path += [entry for entry in path if entry not in sys.path]
    try:
        os.chdir(directory)
    except OSError as exc:
        raise EngineError(
            f"{platform.node()}, a machine of the Ray cluster, does not have the directory {directory}",
            hint="work in a directory that all machines share",
        ) from exc
