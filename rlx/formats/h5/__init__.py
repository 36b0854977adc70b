"""HDF5 files of batches."""

from rlx.formats.registry import Format

FORMAT = Format("h5", __name__, writes=("batches",), suffixes=("hdf5",))
