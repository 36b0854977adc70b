import json
import shutil
from pathlib import Path

from rlx.files.opening import open_location
from rlx.manifest import Manifest
from rlx.wording import size
from tests.conftest import SAMPLE_RUN, Cli
from tests.gcs_server import GcsServer

READ_ONLY_HINT = "hint: with write access, replace it with rlx push --overwrite"


def test_a_whole_dataset(cli: Cli, pong: Path) -> None:
    result = cli("verify", pong)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"{pong} is intact: 3 shards, ")
    said = json.loads(cli("verify", pong, "--json").out)
    files = [path for path in (pong / "shards").rglob("*") if path.is_file()]
    assert said == {
        "ok": True,
        "shards": 3,
        "files": len(files),
        "bytes": sum(path.stat().st_size for path in files),
        "problems": [],
        "missing_shards": [],
        "leftovers": [],
    }


def test_at_a_url(cli: Cli, pong: Path, bucket: str) -> None:
    assert cli("push", pong, f"{bucket}/pong").code == 0
    result = cli("verify", f"{bucket}/pong")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"{bucket}/pong is intact: 3 shards, ")
    open_location(f"{bucket}/pong").delete(["shards/00001/reward/c/0"])
    result = cli("verify", f"{bucket}/pong")
    assert result.code == 3
    assert result.out.splitlines()[1].split() == ["00001", "reward/c/0", "is", "missing"]
    assert result.err.endswith(f"hint: rlx push --overwrite COPY {bucket}/pong\n")
    assert cli("verify", f"{bucket}/nothing").code == 5


def test_at_a_url_that_can_only_be_read(cli: Cli, pong: Path) -> None:
    (pong / "shards/00001/reward/c/0").unlink()
    with GcsServer(pong.parent) as server:
        result = cli("verify", f"{server.url}/pong")
        assert (result.code, result.err.splitlines()[-1]) == (3, READ_ONLY_HINT)
        assert cli("verify", f"{server.url}/pong", "--json").err.splitlines()[-1] == READ_ONLY_HINT
        result = cli("pull", f"{server.url}/pong", "-o", pong.parent / "here")
        assert (result.code, result.err.splitlines()[-1]) == (6, READ_ONLY_HINT)
        result = cli("verify", f"{server.url}/pong".replace("://", "://me:secret@"))
        found = f"1 problem in 3 shards, 84 files, {size(Manifest.load(pong).bytes)}"
        assert result.err.splitlines()[0] == f"error: {server.url}/pong is damaged: {found}"
        assert "secret" not in result.err + result.out


def test_a_flipped_bit(cli: Cli, pong: Path) -> None:
    victim = max((pong / "shards/00001").rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    result = cli("verify", pong)
    assert result.code == 3
    header, line = result.out.splitlines()
    assert header.split() == ["shard", "file", "problem"]
    assert line.split()[:2] == ["00001", str(victim.relative_to(pong / "shards/00001"))]
    assert f"error: {pong} is damaged: 1 problem in 3 shards" in result.err
    assert result.err.endswith(f"hint: rlx repair {pong}\n")
    result = cli("verify", pong, "--json")
    said = json.loads(result.out)
    assert (result.code, said["ok"]) == (3, False)
    (problem,) = said["problems"]
    assert (problem["shard"], problem["file"]) == ("00001", str(victim.relative_to(pong / "shards/00001")))


def test_shards_still_to_come_are_no_damage(cli: Cli, tmp_path: Path) -> None:
    source, dataset = tmp_path / "source", tmp_path / "dataset"
    shutil.copytree(SAMPLE_RUN, source)
    (source / "Pong/run_5-00001-of-00050").write_bytes(b"no gzip")
    assert cli("convert", source, dataset, "--jobs", 1).code == 6
    result = cli("verify", dataset)
    assert result.code == 0
    assert result.out.endswith("; 1 shard not written yet\n")


def test_no_dataset(cli: Cli, tmp_path: Path) -> None:
    assert cli("verify", tmp_path / "none").code == 5
