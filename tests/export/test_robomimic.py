from typing import ClassVar

from rlx.export.pictures import channels_last
from tests.contracts.dataset_exporter import SAMPLES, Arrays, DatasetExporterContract
from tests.contracts.source import Trajectory

TRUNCATED = {sample: ["that 2 of 5 trajectories were truncated"] for sample in SAMPLES}


class TestRobomimic(DatasetExporterContract):
    format = "robomimic"
    name = "out.hdf5"
    refused: ClassVar = {
        "discrete actions": r"one action of floats a step, found action int64\[\]",
        "pictures": r"found action int64\[\]",
        "multi-discrete actions": r"found action int64\[2\]",
        "dict actions": "found action/move float32",
    }
    lost: ClassVar = TRUNCATED | {
        "colour pictures": TRUNCATED["vectors"],
        "infos": [*TRUNCATED["vectors"], "the field info/score"],
        "extra fields": [*TRUNCATED["vectors"], "the field logits"],
        "seams": [],
        "finals not recorded": [],
    }

    def expected(self, trajectory: Trajectory, sample: str) -> Arrays | None:
        arrays = super().expected(trajectory, sample) or {}
        arrays["truncated"] = arrays["truncated"] & False
        return {
            name: channels_last(SAMPLES[sample][name]).arrange(rows)
            for name, rows in arrays.items()
            if name not in ("info/score", "logits")
        }
