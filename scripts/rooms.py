"""Rooms of the code that a reader could do without: modules of one importer, and private functions used once.

python -m scripts.rooms [--list]

Counted are the modules of ``rlx`` and ``rlx_cli`` that one other module imports, of the same package and not its
``__init__``, which names what is public. A private function, or method, is used once where its file names it once
beside its definition, and stays where it names an idea; their number is per 1,000 lines of code, which are those that
are not blank, comment or docstring.

``BOUNDS`` has the most that ``tests/test_rooms.py`` allows; lower it where rooms become fewer.
"""

import argparse
import ast
import io
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
BOUNDS = {"modules of one importer": 28, "private functions used once per 1,000 lines": 20.0}
_TOPS = (ROOT / "rlx", ROOT / "commands" / "rlx_cli")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources() -> dict[str, str]:
    """Return the text of every module by its dotted name; a package has the name of its directory and ``__init__``."""
    found = {file: file.relative_to(top.parent).with_suffix("") for top in _TOPS for file in top.rglob("*.py")}
    return {".".join(name.parts): file.read_text() for file, name in sorted(found.items())}


def modules_of_one_importer(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the importers of modules that nothing else imports, where both are modules of one package."""
    importers: dict[str, set[str]] = defaultdict(set)
    for name, text in texts.items():
        for imported in _imports(ast.parse(text)):
            if imported in texts and imported != name:
                importers[imported].add(name)
    only = {name: next(iter(found)) for name, found in importers.items() if len(found) == 1}
    return {
        name: importer
        for name, importer in sorted(only.items())
        if name.rpartition(".")[0] == importer.rpartition(".")[0] and not importer.endswith(".__init__")
    }


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def private_functions_used_once(text: str) -> list[str]:
    """Return the names of private functions and methods that the rest of their file names once.

    Example:
        >>> private_functions_used_once("def _a(): pass\\ndef _b(): _a()\\n_b(), _b()")
        ['_a']
    """
    tree = ast.parse(text)
    uses: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            uses[node.id] += 1
        elif isinstance(node, ast.Attribute):
            uses[node.attr] += 1
    named = [node.name for node in ast.walk(tree) if isinstance(node, _Function)]
    return [name for name in named if name.startswith("_") and not name.startswith("__") and uses[name] == 1]


def lines_of_code(text: str) -> int:
    """Return the number of lines that are not blank, comment or docstring.

    Example:
        >>> lines_of_code('def f():  # why\\n    \"\"\"What.\"\"\"\\n\\n    return (\\n        1\\n    )\\n')
        4
    """
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | _Function) and ast.get_docstring(node, clean=False) is not None:
            lines.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def counts() -> dict[str, float]:
    """Return the figures of ``BOUNDS``."""
    texts = sources()
    once = sum(len(private_functions_used_once(text)) for text in texts.values())
    code = sum(map(lines_of_code, texts.values()))
    return {
        "modules of one importer": len(modules_of_one_importer(texts)),
        "private functions used once per 1,000 lines": round(1000 * once / code, 1),
    }


def main() -> None:
    """Print the figures, and with ``--list`` what they count."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="name each")
    if parser.parse_args().list:
        texts = sources()
        for name, importer in modules_of_one_importer(texts).items():
            print(f"{name} <- {importer}")
        for name, text in texts.items():
            print(*(f"{name}.{function}" for function in private_functions_used_once(text)), sep="\n", end="\n")
    for name, count in counts().items():
        print(f"{count:g} {name}, at most {BOUNDS[name]:g}")


if __name__ == "__main__":
    main()
