"""The suites of rlx over the format of this package."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from rlx_example.traces import FORMAT
from rlx_example.traces.reader import open_traces
from rlx_example.traces.writer import BATCHES

import rlx
from rlx.formats.registry import formats
from rlx.testing import ExporterContract, FileContract


def write(path: Path) -> None:
    traces = [
        {
            "trace": number,
            "observations": [[number, step] for step in range(steps + 1)],
            "actions": [step % 3 for step in range(steps)],
            "rewards": [0.5] * steps,
            "is_terminal": number == 0,
        }
        for number, steps in enumerate((3, 1, 5))
    ]
    path.write_text("".join(json.dumps(trace) + "\n" for trace in traces))


class TestReader(FileContract):
    file, write, open = "run.traces", staticmethod(write), staticmethod(open_traces)


class TestWriter(ExporterContract):
    exporter, suffix = BATCHES, "traces"

    def read(self, path: Path) -> dict[str, Any]:
        found: dict[str, list[Any]] = {}
        for line in path.read_text().splitlines():
            column = json.loads(line)
            if isinstance(values := column["values"], str):
                rows = np.frombuffer(bytes.fromhex(values), column["dtype"]).reshape(column["shape"])
            else:
                rows = np.array(values, object).reshape(column["shape"])
            found.setdefault(column["name"], []).append(rows)
        return {name: np.concatenate(rows) for name, rows in found.items()}


def test_it_is_found_and_converted(tmp_path: Path) -> None:
    write(tmp_path / "run.traces")
    assert formats()["traces"] == FORMAT
    assert FORMAT.recognises(tmp_path / "run.traces")
    rlx.convert(tmp_path / "run.traces", tmp_path / "data")
    assert rlx.open(tmp_path / "data").trajectories.length.tolist() == [3, 1, 5]
