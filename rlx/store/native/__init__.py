"""All unsafe code of rlx: memory maps, compiled functions and libzstd through ctypes, memory that is used again.

Nothing outside this package has an address or a handle of a C library. What comes in are arrays, whose sizes are taken
from the arrays themselves, and indices, each of which is compared with those sizes before a pointer is made.
``gather.gather`` copies rows of many mapped files, ``kernel.Kernel`` decodes compressed ones, and ``mapping`` maps
files. Where the kernel was not built, the same is done in Python.
"""
