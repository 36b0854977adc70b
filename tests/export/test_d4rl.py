from typing import ClassVar

from tests.contracts.dataset_exporter import Arrays, DatasetExporterContract
from tests.contracts.source import Trajectory


class TestD4RL(DatasetExporterContract):
    format = "d4rl"
    name = "out.hdf5"
    refused: ClassVar = {"dict observations": "one observation a step", "dict actions": "one action a step"}
    lost: ClassVar = {
        "infos": ["the field info/score"],
        "extra fields": ["the field logits"],
        "seams": ["where 2 of 5 trajectories end, which no flag tells"],
    }

    def expected(self, trajectory: Trajectory, sample: str) -> Arrays | None:
        arrays = super().expected(trajectory, sample) or {}
        return {name: rows for name, rows in arrays.items() if name not in ("info/score", "logits")}
