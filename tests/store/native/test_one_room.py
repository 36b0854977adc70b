"""Addresses, handles of C libraries and memory maps are in ``rlx.store.native``; what others keep private is listed."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import rlx

PACKAGE = Path(rlx.__file__).parent
ROOTS = [PACKAGE, PACKAGE.parent / "commands" / "rlx_cli"]
ROOM = PACKAGE / "store" / "native"
MODULES = {"ctypes", "cffi", "mmap", "_ctypes"}
ADDRESSES = {"ctypes", "__array_interface__", "__array_struct__", "data_ptr", "from_address", "as_strided_"}
# What only the room has, as it takes or gives an address.
INSIDE = {"rlx.store.native.library"}
# What other libraries keep private, and no public name does: all there is, with the reason.
PRIVATE = {
    # Signals arrive while the interpreter starts, and would interrupt the import of `signal`.
    ("rlx_cli/entry.py", "_signal"),
    ("rlx_cli/entry.py", "_thread"),
    # torch's own list of what an archive holds: another reader could list other members.
    ("rlx/collector/policy/module.py", "_C"),
    # `atexit` comes after the threads of pools, which wait for steps to write.
    ("rlx/collector/recorder.py", "_register_atexit"),
    # Before Python 3.11.5, the pool waits for a dead worker.
    ("rlx/engine/local_engine.py", "_call_queue"),
    # What the hub answered; a release without them counts a file as sent.
    ("rlx/files/hub.py", "_should_ignore"),
    ("rlx/files/hub.py", "_remote_oid"),
    ("rlx/files/hub.py", "_local_oid"),
    # Methods that a subclass of Stable-Baselines3's ReplayBuffer inherits.
    ("rlx/integrations/stable_baselines3.py", "_maybe_cast_dtype"),
    ("rlx/integrations/stable_baselines3.py", "_normalize_obs"),
    ("rlx/integrations/stable_baselines3.py", "_normalize_reward"),
    # Methods that TorchRL's storages inherit.
    ("rlx/integrations/torchrl.py", "_bump_mutation_revision"),
    ("rlx/integrations/torchrl.py", "_set_last_cursor"),
    # Python documents it, for specialized purposes.
    ("rlx/lazy_imports.py", "_getframe"),
    # Half of the time of the public way, which it falls back to.
    ("rlx/store/ted.py", "_new_unsafe"),
}


def parsed() -> Iterator[tuple[Path, str, ast.Module]]:
    for root in ROOTS:
        for path in sorted(root.rglob("*.py")):
            yield path, f"{root.name}/{path.relative_to(root)}", ast.parse(path.read_text())


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield dotted names of modules, and of what is imported from them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def unsafe(tree: ast.Module) -> set[str]:
    """What a module uses that belongs into the room."""
    names = set(imported(tree))
    found = {name for name in names if name.split(".")[0] in MODULES or name.rpartition(".")[0] in INSIDE}
    return found | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in ADDRESSES}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def asked_for(node: ast.AST) -> str | None:
    """The name that ``getattr(x, "name")`` asks for."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
        name = node.args[1]
        return name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else None
    return None


def defined(tree: ast.Module) -> set[str]:
    """Every name that a module defines or assigns, and its strings, as those of ``__slots__``."""
    found, strings, asked = set[str](), list[str](), list[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            strings.append(node.value)
        elif name := asked_for(node):
            asked.append(name)
    return found | (set(strings) - set(asked))


def private_of_others(tree: ast.Module, own: set[str]) -> Iterator[str]:
    """Yield private names that nothing of rlx defines."""
    for node in ast.walk(tree):
        name = node.attr if isinstance(node, ast.Attribute) else asked_for(node)
        if name and is_private(name) and name not in own:
            yield name
    for module in imported(tree):
        if not module.startswith(("rlx.", "rlx_cli.")):
            yield from (part for part in module.split(".") if is_private(part))


def test_addresses_stay_in_the_room() -> None:
    found = {name: used for path, name, tree in parsed() if ROOM not in path.parents and (used := unsafe(tree))}
    assert not found


def test_nobody_uses_what_others_keep_private() -> None:
    modules = list(parsed())
    own = {name for *_, tree in modules for name in defined(tree)}
    found = {(name, used) for _, name, tree in modules for used in private_of_others(tree, own)}
    assert found == PRIVATE


@pytest.mark.parametrize(
    "code",
    [
        *("import ctypes", "from mmap import mmap", "x.data_ptr()", "a.ctypes.data", "a.__array_interface__"),
        "from rlx.store.native.library import address",
    ],
)
def test_what_is_unsafe(code: str) -> None:
    assert unsafe(ast.parse(code))


@pytest.mark.parametrize("code", ["x._private", "from a._b import c", "getattr(x, '_private', None)"])
def test_what_is_private(code: str) -> None:
    assert list(private_of_others(ast.parse(code), {"_mine"}))
