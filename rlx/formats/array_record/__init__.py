"""ArrayRecord files of steps, such as p(doom)'s Atari episodes.

``reader.open_array_record`` opens a directory of them; ``writer.ArrayRecordExporter`` writes one.
"""

from rlx.formats.registry import Format

FORMAT = Format(
    "array_record",
    __name__,
    reads="dataset",
    options={"height": int, "width": int, "channels": int},
    writes=("datasets",),
)
