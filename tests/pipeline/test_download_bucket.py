"""``download`` from a bucket: the same bytes as from a directory."""

from pathlib import Path

from rlx.files.opening import open_location
from rlx.pipeline.download import download, plan_download
from rlx.pipeline.options import Options
from rlx.progress import Silent
from tests.contracts.location import put
from tests.pipeline.datasets import RLU_NAMES, RLU_SHARDS, from_directory, tree_from_anywhere, write_rlu


def test_a_run_in_a_bucket(bucket: str, tmp_path: Path) -> None:
    files = write_rlu(tmp_path / "files")
    wanted = from_directory(files, tmp_path / "wanted", shards=list(RLU_SHARDS)).dataset
    for name in RLU_NAMES:
        put(open_location(f"{bucket}/runs"), name, (files / name).read_bytes())
    source, options = f"{bucket}/runs", Options(jobs=1, command="rlx download", shards=list(RLU_SHARDS))
    planned = plan_download("Pong/5", tmp_path / "set", options, source=source, layout=None)
    assert [(file.url, file.state) for file in planned] == [(f"{source}/{name}", "missing") for name in RLU_NAMES]
    report = download("Pong/5", tmp_path / "set", options, source=source, layout=None, progress=Silent())
    assert not report.failures
    assert tree_from_anywhere(report.dataset) == tree_from_anywhere(wanted)
