"""numpy's archives of steps."""

from rlx.formats.registry import Format

FORMAT = Format("npz", __name__, reads="dataset", writes=("datasets", "batches"))
