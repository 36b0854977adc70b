"""A real S3 server on loopback: moto's, in a process of its own.

with S3Server() as server:
    server.make_bucket("experience")
    monkeypatch.setenv(...) for server.environment.items()
"""

import os
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import requests

from tests.started_program import started


class S3Server:
    """The server, as a context manager.

    Args:
        lets_anybody: whether requests are answered whoever signs them; otherwise nobody has any rights.
    """

    def __init__(self, *, lets_anybody: bool = True) -> None:
        self._environment = dict(os.environ)
        if not lets_anybody:
            # Making the bucket is the one thing that is allowed.
            self._environment["INITIAL_NO_AUTH_ACTION_COUNT"] = "1"

    def __enter__(self) -> Self:
        program = "import sys; from moto.server import main; sys.exit(main(['-H', '127.0.0.1', '-p', '0']))"
        command = [sys.executable, "-W", "ignore", "-c", program]
        says = r"Running on (http://127.0.0.1:\d+)"
        self._process, self.url = started(command, says, within_s=30, environment=self._environment)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()

    def make_bucket(self, name: str) -> None:
        """Makes a bucket that anybody may read and write."""
        everybody = {"x-amz-acl": "public-read-write"}
        requests.put(f"{self.url}/{name}", headers=everybody, timeout=10).raise_for_status()

    @property
    def environment(self) -> Mapping[str, str]:
        """What tells clients of S3 of this server."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }
