"""d3rlpy's HDF5 files.

``reader.open_d3rlpy`` opens one, ``writer.D3rlpyExporter`` writes it.
"""

from rlx.formats.d3rlpy.layout import KEYS
from rlx.formats.registry import Format

FORMAT = Format("d3rlpy", __name__, reads="dataset", marks=KEYS, is_hdf5=True, writes=("datasets",))
