"""Passwords and signatures in URLs: in nothing that the library raises, records or shows."""

import json
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

import rlx
from rlx.errors import DatasetError, RlxError
from rlx.files.http import HttpFiles
from rlx.files.opening import open_location, open_source
from rlx.files.retry import RetryPolicy
from rlx.home import locate
from rlx.progress import Silent
from rlx.verbs.arguments import Options
from rlx.verbs.fetching import download_run
from rlx.verbs.pull import pull
from rlx.verbs.runs import remote_runs
from rlx.wording import sizes, words_of
from tests.factories import make_block, write_dataset
from tests.gcs_server import Fault, GcsServer
from tests.rlu_files import write_run

SECRETS = ("p4ssw0rd", "s1gnature", "t0ken")
QUERY = f"X-Amz-Signature={SECRETS[1]}&token={SECRETS[2]}"
CLOSED = f"http://me:{SECRETS[0]}@127.0.0.1:1/x?{QUERY}"  # nobody listens there


def _fetched(url: str) -> object:
    base = cast("HttpFiles", open_source(url))
    return replace(base, retry=RetryPolicy(attempts=1)).fetch("a", Path("none"), Silent())


CALLS: dict[str, Callable[[str], Any]] = {
    "open": rlx.open,
    "locate": locate,
    "open_location": lambda url: open_location(url).stat("a"),
    "fetch": _fetched,
    "list": remote_runs,
    "pull": lambda url: pull(url, Path("none"), progress=Silent()),
}
URLS = {
    "nobody listens": CLOSED,
    "no such scheme": CLOSED.replace("http:", "nonsense:"),
    "s3": f"s3://me:{SECRETS[0]}@bucket/x?{QUERY}",
    "another host's file": f"file://me:{SECRETS[0]}@host/x?{QUERY}",
    "no port": f"http://me:{SECRETS[0]}@127.0.0.1:port/x?{QUERY}",
    "port out of range": f"http://me:{SECRETS[0]}@127.0.0.1:99999/x?{QUERY}",
    "slash in the password": f"http://me:{SECRETS[0]}/{SECRETS[1]}@127.0.0.1:1/x",
    "no address": f"http://me:{SECRETS[0]}@[::1/x?{QUERY}",
    "no host": f"http://me:{SECRETS[0]}@/x?{QUERY}",
    "a label too long": f"http://me:{SECRETS[0]}@{'x' * 70}.localhost/x?{QUERY}",
    "no UTF-8": f"http://me:{SECRETS[0]}@127.0.0.1:1/x\udcff?{QUERY}",
    "a label that is none": f"http://me:{SECRETS[0]}@xn--/x?{QUERY}",
    "a host of spaces": f"http://me:{SECRETS[0]}@a%20b/x?{QUERY}",
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("url", URLS)
def test_no_error_of_the_library_has_a_secret(call: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlx.verbs.runs._FEW_RETRIES", RetryPolicy(attempts=1))
    monkeypatch.setattr("rlx.files.bucket.DEFAULT_RETRY", RetryPolicy(attempts=1))
    with pytest.raises(RlxError) as raised:
        CALLS[call](URLS[url])
    said = "".join(traceback.format_exception(raised.value)[1:])  # the first is a frame of this file
    said += f"{raised.value} {raised.value.hint}"
    assert [secret for secret in SECRETS if secret in said] == [], said


def test_what_is_recorded_of_a_mirror(tmp_path: Path) -> None:
    """The note says where the bytes came from, also when half of them came from elsewhere."""
    write_run(tmp_path / "files", "Pong", 5, {0: [3], 1: [4, 2]})
    bases = []
    for shards in ((0,), (0, 1)):
        with GcsServer(tmp_path / "files") as server:
            bases.append(server.url)
            source = f"{server.url.replace('://', f'://me:{SECRETS[0]}@')}?{QUERY}"
            chosen = Options(jobs=1, shards=shards)
            download_run("Pong/5", tmp_path / "set", chosen, source=source, layout="rlu", progress=Silent())
    assert rlx.open(tmp_path / "set").manifest.notes["origin"] == bases


def test_what_functions_return(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "set", [[make_block([3, 5])]]).path
    with GcsServer(tmp_path) as server:
        url = f"{server.url.replace('://', f'://me:{SECRETS[0]}@')}/set"
        results: list[Any] = [
            rlx.sample(url),
            rlx.inspect(url),
            rlx.doctor(dataset, against=url),
            rlx.verify(url),
            rlx.pull(url, tmp_path / "pulled"),
        ]
        with pytest.raises(DatasetError) as raised:
            _ = rlx.open(url).filter("length > 3").path
        largest = max((dataset / "shards").rglob("*"), key=lambda file: file.stat().st_size * file.is_file())
        largest.write_bytes(bytes(largest.stat().st_size))
        results.append(rlx.doctor(tmp_path / "pulled", against=url))
    said = [f"{result!r} {json.dumps(result.to_json())}" for result in results]
    assert [one for one in said if SECRETS[0] in one] == []
    assert raised.value.hint == f"rlx pull {server.url}/set"


def test_a_server_that_quotes_what_it_was_asked(tmp_path: Path) -> None:
    with GcsServer(tmp_path) as server:
        server.fault("*", Fault(status=418), times=None, method="*")
        with pytest.raises(RlxError) as raised:
            open_location(f"{server.url.replace('://', f'://me:{SECRETS[0]}@')}/x").stat("a")
    assert SECRETS[0] not in "".join(traceback.format_exception(raised.value))


def test_words_of_a_command_whose_quote_is_not_closed() -> None:
    assert words_of("rlx view 'my set'") == ["rlx", "view", "my set"]
    assert words_of("rlx view 'my set") == ["rlx", "view", "'my", "set"]
    assert (sizes(1_200_000, 50_000_000_000), sizes(424_000, 566_000)) == ("0.0/50.0 GB", "424/566 kB")
