"""ArrayRecord files of steps, such as p(doom)'s Atari episodes.

``reader.open_array_record`` opens a directory of them; ``writer.ArrayRecordExporter`` writes one.
"""

from rlx.formats.common.record_files import ARRAY_RECORD
from rlx.formats.common.signs import Sign
from rlx.formats.registry import Format

SUFFIX = ".array_record"
FILE = "data_{:06d}" + SUFFIX
# File beside p(doom)'s splits: the environment, and its number of actions.
METADATA = "metadata.json"
LENGTH, VIDEO = "sequence_length", "raw_video"
# Fields by p(doom)'s keys; any other key is the name of a field.
KEYS = {VIDEO: "observation", "actions": "action", "rewards": "reward"}
FLAGS = ("terminated", "truncated")
# Prefix of the key of a final observation, in the last record of a trajectory.
FINAL = "final/"
# A dict that rlx adds to each of its records; its keys are the fields of ``PieceInfo``.
TRAJECTORY = "rlx"
LAYOUT = (
    "expected ArrayRecord files, *.array_record, whose records are pickled dicts of arrays of T steps: sequence_length "
    "T, raw_video or observation [T, ...], actions [T, ...], rewards [T]"
)

FORMAT = Format(
    "array_record",
    __name__,
    reads="dataset",
    options={"height": int, "width": int, "channels": int},
    writes=("datasets",),
    signs=(Sign(begins=ARRAY_RECORD), Sign(files=(f"*{SUFFIX}",), begins=ARRAY_RECORD)),
)
