"""robomimic's HDF5."""

from rlx.formats.registry import Format

FORMAT = Format("robomimic", __name__, reads="dataset", marks=("data", "mask"), is_hdf5=True, writes=("datasets",))
