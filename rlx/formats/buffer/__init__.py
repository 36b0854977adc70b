"""Checkpoints of rlx's replay buffer.

``reader.open_buffer`` opens what ``ReplayBuffer.dumps`` wrote.
"""

from rlx.formats.common.signs import Sign
from rlx.formats.registry import Format

FORMAT = Format("buffer", __name__, reads="dataset", signs=(Sign(files=("buffer.json",), text=b'"rlx.buffer"'),))
