"""Make the golden MDS dataset with streaming's own writer: python scripts/make_mds.py DIRECTORY.

Needs mosaicml-streaming, which wants older releases than the tests do: run it in an environment of its own.
"""

import sys

import numpy as np
from PIL import Image
from streaming.base import MDSWriter

LENGTHS = (3, 1, 5)
COLUMNS = {
    "frame": "png",
    "state": "ndarray:float32:2",
    "odd": "ndarray",
    "act": "int",
    "r": "float32",
    "done": "uint8",
    "task": "str",
    "meta": "json",
}


def main(directory: str) -> None:
    """Write the dataset, of shards of some samples each."""
    with MDSWriter(out=directory, columns=COLUMNS, size_limit=1500) as out:
        for episode, length in enumerate(LENGTHS):
            for step in range(length):
                number = 16 * episode + step
                out.write(
                    {
                        "frame": Image.fromarray(np.full((8, 9, 3), number, np.uint8)),
                        "state": np.array([number, 0.5], np.float32),
                        "odd": np.arange(3, dtype=np.int16) + number,
                        "act": step,
                        "r": np.float32(number / 2),
                        "done": np.uint8(step == length - 1),
                        "task": "pick \u00fcp",
                        "meta": {"episode": episode},
                    }
                )


if __name__ == "__main__":
    main(*sys.argv[1:])
