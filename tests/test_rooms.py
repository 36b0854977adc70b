"""Rooms that a reader could do without are no more than their bounds, and the counter counts what it says."""

from scripts.rooms import BOUNDS, counts, modules_of_one_importer, private_functions_used_once


def test_a_module_of_one_importer_in_its_own_package_counts() -> None:
    texts = {
        "rlx.a.__init__": "from rlx.a.public import x",
        "rlx.a.public": "from rlx.a.one import y",
        "rlx.a.one": "import rlx.a.two",
        "rlx.a.two": "",
        "rlx.b.user": "def f():\n    from rlx.a import two",
    }
    assert modules_of_one_importer(texts) == {"rlx.a.one": "rlx.a.public"}


def test_what_a_file_names_once_counts() -> None:
    text = "class A:\n def _m(self): self._n()\n def _n(self): self._n()\n def __len__(self): return self._m()\n"
    assert private_functions_used_once(text) == ["_m"]


def test_there_are_no_more_than_the_bounds() -> None:
    found = counts()
    assert found.keys() == BOUNDS.keys()
    assert {name: count for name, count in found.items() if count > BOUNDS[name]} == {}, (
        "the bounds of scripts/rooms.py"
    )
