"""robomimic's HDF5 files.

``reader.open_robomimic`` opens one, ``writer.RobomimicExporter`` writes it.
"""

from rlx.formats.registry import Format

FORMAT = Format("robomimic", __name__, reads="dataset", marks=("data", "mask"), is_hdf5=True, writes=("datasets",))
