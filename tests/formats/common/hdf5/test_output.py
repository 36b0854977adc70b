"""The file that HDF5 writes to."""

from rlx.formats.common.hdf5.output import Disk


def test_what_hdf5_calls_is_found_while_an_exception_is_on_its_way() -> None:
    """Python looks for a method in a class, then asks whether there is an exception, then looks in the base classes."""
    assert {"seek", "tell", "readinto", "write", "truncate", "flush"} <= vars(Disk).keys()
