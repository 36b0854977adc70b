"""D4RL's HDF5 files.

``reader.open_d4rl`` opens one, ``writer.D4RLExporter`` writes it.
"""

from rlx.formats.d4rl.layout import KEYS
from rlx.formats.registry import Format

FORMAT = Format("d4rl", __name__, reads="dataset", marks=KEYS, is_hdf5=True, writes=("datasets",))
