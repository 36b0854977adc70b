"""A real Azure Blob server on loopback: Microsoft's Azurite, where npm has put one (``npm install azurite``).

with AzureServer(azurite) as server:
    server.make_container("experience")
    monkeypatch.setenv(...) for server.environment.items()
"""

import base64
import hashlib
import hmac
import os
import shutil
from collections.abc import Mapping
from email.utils import formatdate
from types import TracebackType
from typing import Self

import requests

from tests.started_program import started

# Those that every copy of Azurite has: no secret.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def azurite() -> str | None:
    """The program ``azurite-blob``: what ``$RLX_AZURITE`` names, or the one on the PATH."""
    return os.environ.get("RLX_AZURITE") or shutil.which("azurite-blob")


class AzureServer:
    """The server, as a context manager.

    Args:
        program: path of ``azurite-blob``.
    """

    def __init__(self, program: str) -> None:
        self._program = program

    def __enter__(self) -> Self:
        options = ["--inMemoryPersistence", "--blobPort", "0", "--silent", "--disableTelemetry"]
        says = r"listens on (http://127.0.0.1:\d+)"
        self._process, self.url = started([self._program, *options], says, within_s=60)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()

    def make_container(self, name: str) -> None:
        """Makes a container that anybody may read, and the account write."""
        headers = {
            "x-ms-blob-public-access": "container",
            "x-ms-date": formatdate(usegmt=True),
            "x-ms-version": "2021-08-06",
        }
        signed = [f"{key}:{value}" for key, value in headers.items()]
        # The empty ones are headers that this request does not have.
        lines = ["PUT", *[""] * 11, *signed, f"/{ACCOUNT}/{ACCOUNT}/{name}", "restype:container"]
        digest = hmac.digest(base64.b64decode(KEY), "\n".join(lines).encode(), hashlib.sha256)
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        url = f"{self.url}/{ACCOUNT}/{name}?restype=container"
        requests.put(url, headers=headers, timeout=10).raise_for_status()

    @property
    def environment(self) -> Mapping[str, str]:
        """What tells clients of Azure of this server."""
        return {
            "AZURE_STORAGE_ENDPOINT": f"{self.url}/{ACCOUNT}",
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        }
