"""Traces: text files with an episode as JSON on each line."""

from rlx.formats.common.signs import Sign
from rlx.formats.registry import Format

BEGINNING = b'{"trace": '

FORMAT = Format(
    "traces",
    __name__,
    reads="dataset",
    writes=("batches",),
    layout='expected lines of JSON: {"trace": 0, "observations": [...], "actions": [...], "rewards": [...]}',
    signs=(Sign(begins=BEGINNING),),
)
