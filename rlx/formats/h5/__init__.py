"""HDF5 files of batches.

``writer.H5Exporter`` writes them.
"""

from rlx.formats.registry import Format

FORMAT = Format("h5", __name__, writes=("batches",), suffixes=("hdf5",))
