"""The benchmark of online learning runs in small, with the buffers that are installed."""

import json
import sys

import pytest
import torch

from scripts.bench import online


def test_online_measures_every_work_of_rlx(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["online", "--quick", "--json"])
    threads = torch.get_num_threads()
    online.main()
    torch.set_num_threads(threads)
    tables = json.loads(capsys.readouterr().out)["tables"]
    rows = {name: row for table in ("online", "prioritized", "compressed") for name, row in tables[table].items()}
    assert rows.keys() == {
        *(f"{kind} {work}" for kind in ("floats", "dict", "frames") for work in online.WORK),
        "loop",
        "prioritized 10,000",
        "compressed extend 256",
    }
    assert all(row["rlx"] > 0 for row in rows.values())
    assert rows["compressed extend 256"]["compressed"] > 0
    assert tables["floors"]["rlx / compressed"]["lowest"] == rows["compressed extend 256"]["rlx / compressed"]
