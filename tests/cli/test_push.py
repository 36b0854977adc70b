import json
import shlex
import sys
from pathlib import Path

import pytest

import rlx
from rlx.store.verification import verify
from tests.conftest import Cli
from tests.factories import make_block, write_dataset
from tests.s3_server import S3Server


def test_there_and_back(cli: Cli, pong: Path, bucket: str, tmp_path: Path) -> None:
    result = cli("push", pong, f"{bucket}/pong")
    assert result.code == 0, result.err
    said, where, moved = result.out.splitlines()
    assert said.startswith("Pong/5: ")
    assert ", 3 shards, " in said
    assert where == str(pong)
    assert moved.startswith("sent ")
    assert moved.endswith(f" to {bucket}/pong")
    again = cli("push", pong, f"{bucket}/pong", "--json", "--jobs", 2)
    assert again.code == 0
    document = json.loads(again.out)
    assert (document["transferred_files"], document["skipped_shards"], document["failed_shards"]) == (0, 3, [])
    assert document["url"] == f"{bucket}/pong"
    back = cli("pull", f"{bucket}/pong", "-o", tmp_path / "back", "--json")
    assert back.code == 0, back.err
    document = json.loads(back.out)
    assert (document["dataset"], document["shards"]) == (str(tmp_path / "back"), 3)
    assert document["transferred_bytes"] == document["bytes"] == verify(pong).bytes
    assert verify(tmp_path / "back").ok


def test_pull_goes_below_home(cli: Cli, pong: Path, home: Path) -> None:
    result = cli("pull", pong)
    assert result.code == 0, result.err
    assert result.out.splitlines()[1] == str(home / "Pong/5")
    assert "fetched " in result.out
    assert cli("inspect", "Pong/5").code == 0


def test_progress_is_told_in_bytes(cli: Cli, pong: Path, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlx_cli.progress.Lines.__init__.__defaults__", (0.001,))
    assert f"push {pong}: " in cli("push", pong, bucket).err
    assert cli("push", pong, f"{bucket}/more", "--quiet").err == ""


def test_exit_codes(cli: Cli, pong: Path, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("push", tmp_path / "nothing", bucket).code == 5
    assert cli("push", pong, "s3://nowhere").code == 5
    assert cli("pull", "s3://nowhere").code == 5
    result = cli("pull", f"{bucket}/nothing", "--json")
    assert result.code == 5
    assert json.loads(result.out)["error"]["type"] == "DatasetNotFoundError"
    assert "expected rlx.json in it" in result.err
    assert cli("push", pong, "https://host/set").code == 1
    assert cli("push", pong, "ftp://host/set").code == 2
    monkeypatch.setitem(sys.modules, "obstore", None)
    result = cli("push", pong, bucket)
    assert result.code == 1
    assert result.err.endswith("hint: pip install 'rlx[cloud]'\n")


def test_another_dataset_there(cli: Cli, pong: Path, bucket: str, tmp_path: Path) -> None:
    write_dataset(tmp_path / "other", [[]])
    assert cli("push", tmp_path / "other", bucket).code == 0
    result = cli("push", pong, bucket)
    assert result.code == 1
    assert "holds another dataset: its id is Test/1, expected Pong/5" in result.err
    assert cli("push", pong, bucket, "--overwrite").code == 0


def test_a_damaged_object(cli: Cli, pong: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    assert cli("push", pong, shared).code == 0
    victim = shared / "shards/00001/action/c/0"
    victim.write_bytes(bytes(victim.stat().st_size))
    result = cli("pull", shared, "-o", tmp_path / "here")
    assert result.code == 6
    assert f"warning: shard 00001: {victim} arrived corrupt" in result.err
    assert f"error: Pong/5: 1 shard failed: 00001\nhint: rlx push --overwrite COPY {shared}\n" in result.err
    document = json.loads(cli("pull", shared, "-o", tmp_path / "here", "--json").out)
    assert document["failed_shards"] == ["00001"]
    assert document["error"]["type"] == "PartialError"


@pytest.mark.parametrize(("harm", "code"), [("damage", 3), ("remove", 5)])
def test_the_only_shard_is_damaged_or_gone(cli: Cli, tmp_path: Path, harm: str, code: int) -> None:
    victim = write_dataset(tmp_path / "there", [[make_block((3,))]]).path / "shards/00000/action/c/0"
    if harm == "damage":
        victim.write_bytes(bytes(reversed(victim.read_bytes())))
    else:
        victim.unlink()
    result = cli("pull", tmp_path / "there", "-o", tmp_path / "here")
    assert result.code == code
    assert str(victim) in result.err.splitlines()[-1]
    assert not (tmp_path / "here/rlx.json").exists()


def test_a_bucket_that_refuses(cli: Cli, pong: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with S3Server(lets_anybody=False) as server:
        server.make_bucket("closed")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        for arguments in (
            ["push", pong, "s3://closed/set"],
            ["pull", "s3://closed/set"],
            ["verify", "s3://closed/set"],
        ):
            result = cli(*arguments)
            assert result.code == 4
            assert "hint: give credentials in the environment: AWS_ACCESS_KEY_ID" in result.err


def test_ctrl_c(cli: Cli, pong: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rlx, "pull", interrupted)
    monkeypatch.setattr(rlx, "push", interrupted)
    for arguments, kept in (
        (f"pull {pong}", "received files are kept"),
        (f"push {pong} {tmp_path}", "files sent so far stay"),
    ):
        result = cli(*shlex.split(arguments))
        assert result.code == 130
        assert f"interrupted; {kept}" in result.err
        assert "hint: run the same command again to resume" in result.err


_MISTYPED = {
    "s3:/bad": "s3://bad",
    "s3//b/x": "s3://b/x",
    "http:/x": "http://x",
    "https:x/y": "https://x/y",
    "GS:/b": "gs://b",
    "file:/tmp/x": "file://tmp/x",
}


@pytest.mark.parametrize("typed", _MISTYPED)
def test_a_mistyped_url_is_refused(typed: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = write_dataset(tmp_path / "data", [[make_block()]]).path
    monkeypatch.chdir(tmp_path)
    for command in (("push", dataset, typed), ("pull", typed)):
        result = cli(*command)
        assert (result.code, result.err.splitlines()[0]) == (
            2,
            f"error: {typed} is a mistyped URL: expected {_MISTYPED[typed]}",
        )
    assert [entry.name for entry in tmp_path.iterdir()] == ["data"]
    assert cli("push", dataset, f"./{typed}").code == 0


def test_a_url_is_no_directory_to_write(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = write_dataset(tmp_path / "data", [[make_block()]]).path
    monkeypatch.chdir(tmp_path)
    url = "s3://bucket/pong"
    for command in (
        ("convert", dataset, url),
        ("convert", dataset, url, "--to", "torchrl"),
        ("sample", dataset, "-o", f"{url}.npz"),
        ("merge", dataset, "-o", url),
    ):
        result = cli(*command)
        assert result.code in (1, 2), result
        assert "URL" in result.err
        assert "Traceback" not in result.err
    assert [entry.name for entry in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize("url", ["hf://pong", "s3://", "https:///pong", "s3://bucket/pong?version=1"])
def test_a_malformed_url_is_an_invalid_argument(url: str, cli: Cli) -> None:
    result = cli("pull", url)
    assert (result.code, result.err.splitlines()[1]) == (2, "hint: rlx pull --help")
