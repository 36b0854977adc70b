"""The Python reference: a page for each public package, made of signatures and docstrings.

The pages are built with the site and not committed: docstrings are their source.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_origin

PACKAGES = ("rlx", "rlx.buffer", "rlx.collector", "rlx.datasets", "rlx.results", "rlx.errors")
DIRECTORY = Path(__file__).parents[1] / "docs" / "reference"
INTEGRATIONS = "rlx.integrations"
_SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises", "Example")
_WIDTH = 88
_INDEX = """# Python

Every public class and function, with its signature and an example that runs. `import rlx` comes first. The examples
open two small datasets, `cartpole`, made by `rlx collect CartPole-v1 --steps 1000 -o cartpole`, and `Pong/5`, made of
the first steps of a run whose files are in the directory `dqn`.

| package | content |
|---|---|
{rows}

"""


def reference() -> dict[Path, str]:
    """Return the pages by their paths."""
    rows = "\n".join(f"| [{name}]({name}.md) | {_line(_text(import_module(name)))} |" for name in PACKAGES)
    rows += f"\n| [{INTEGRATIONS}]({INTEGRATIONS}.md) | {_line(_text(import_module(INTEGRATIONS)))} |"
    pages = {DIRECTORY / "index.md": _INDEX.format(rows=rows).rstrip() + "\n"}
    pages[DIRECTORY / f"{INTEGRATIONS}.md"] = integrations()
    return pages | {DIRECTORY / f"{name}.md": page(name) for name in PACKAGES}


def integrations() -> str:
    """Return the page of the integrations, read from their source: importing one needs the other project.

    It has the classes and functions that docs/python.md names.
    """
    package = import_module(INTEGRATIONS)
    named = (DIRECTORY.parent / "python.md").read_text()
    parts = [f"# {INTEGRATIONS}", _markdown(_text(package))]
    for file in sorted(Path(package.__path__[0]).glob("[a-z]*.py")):
        module = ast.parse(file.read_text())
        parts += [f"## {INTEGRATIONS}.{file.stem}", _markdown(ast.get_docstring(module) or "")]
        for node in module.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and re.search(rf"\b{node.name}\b", named):
                anchor = _anchor(INTEGRATIONS, f"{file.stem}.{node.name}")
                parts += [f"### {file.stem}.{node.name} {{#{anchor}}}", _written_signature(node)]
                parts.append(_markdown(ast.get_docstring(node) or ""))
    return "\n\n".join(part for part in parts if part) + "\n"


def _written_signature(node: ast.ClassDef | ast.FunctionDef) -> str:
    """Return the signature of a function, or of a class's constructor, as its source has it."""
    made = (one for one in getattr(node, "body", ()) if isinstance(one, ast.FunctionDef) and one.name == "__init__")
    function = node if isinstance(node, ast.FunctionDef) else next(made)
    given = function.args
    plain = [None] * (len(given.args) - len(given.defaults)) + list(given.defaults)
    words = [(one, default) for one, default in zip(given.args, plain, strict=True) if one.arg != "self"]
    listed = [ast.unparse(_alone(one, default)) for one, default in words]
    listed += ["*"] * bool(given.kwonlyargs)
    listed += [ast.unparse(_alone(*one)) for one in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    returned = f" -> {ast.unparse(function.returns)}" if function is node and function.returns else ""
    lines = "".join(f"    {word},\n" for word in listed)
    return f"```python\n{node.name}(\n{lines}){returned}\n```"


def _alone(argument: ast.arg, default: ast.expr | None) -> ast.arguments:
    return ast.arguments([], [argument], None, [], [], None, [] if default is None else [default])


def members(package: str) -> dict[str, Any]:
    """Return the public classes and functions of a package by name; of ``rlx.errors`` the classes alone."""
    module = import_module(package)
    names = sorted(vars(module)) if package == "rlx.errors" else dir(module)
    found = {name: getattr(module, name) for name in names if not name.startswith("_")}
    return {
        name: member
        for name, member in found.items()
        if (inspect.isclass(member) or (inspect.isfunction(member) and package != "rlx.errors"))
        and member.__module__.startswith("rlx")
    }


def page(package: str) -> str:
    """Return the page of a package."""
    listed = members(package)
    rows = [f"| [`{name}`](#{_anchor(package, name)}) | {_line(_text(member))} |" for name, member in listed.items()]
    parts = [f"# {package}", _markdown(_text(import_module(package))), "\n".join(["| | |", "|---|---|", *rows])]
    for name, member in listed.items():
        parts.append(f"## {package}.{name} {{#{_anchor(package, name)}}}")
        parts += _member(package, name, member)
    return "\n\n".join(part for part in parts if part) + "\n"


def _member(package: str, name: str, member: Any) -> Iterator[str]:
    elsewhere = [other for other in PACKAGES if other.startswith(f"{package}.") and members(other).get(name) is member]
    if elsewhere:
        yield f"{_line(_text(member))}. See [{elsewhere[0]}.{name}]({elsewhere[0]}.md#{_anchor(elsewhere[0], name)})."
        return
    if not (inspect.isclass(member) and issubclass(member, Exception)):
        yield _signature(name, member)
    yield _markdown(_text(member))
    if inspect.isclass(member) and issubclass(member, Enum):
        yield "\n".join(f"- `{one.name}` = `{one.value!r}`" for one in member)
    elif inspect.isclass(member) and not issubclass(member, Exception):
        yield from _of_class(package, name, member)


def _of_class(package: str, name: str, member: type) -> Iterator[str]:
    """Yield the methods and properties of a class, and the names of those of public classes that it inherits."""
    public = {other: name for name, other in members(package).items() if other is not member and inspect.isclass(other)}
    own, shown = _attributes(member), set()
    for base in member.__mro__:
        if base not in public:
            continue
        theirs = _attributes(base)
        if names := [key for key in own if key not in shown and own[key] is theirs.get(key)]:
            inherited = ", ".join(f"`{key}`" for key in names)
            yield f"**From [{public[base]}](#{_anchor(package, public[base])})** {inherited}"
            shown |= set(names)
    for attribute, value in own.items():
        if attribute not in shown:
            yield f"### {name}.{attribute} {{#{_anchor(package, f'{name}.{attribute}')}}}"
            yield "Property." if isinstance(value, property | cached_property) else _signature(attribute, value)
            yield _markdown(_text(value))


def _attributes(kind: type) -> Mapping[str, Any]:
    """Return the public methods and properties of a class that have a docstring, inherited ones of rlx included."""
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        if base.__module__.startswith("rlx"):
            for name, value in vars(base).items():
                plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
                is_member = inspect.isfunction(plain) or isinstance(plain, property | cached_property)
                if is_member and not name.startswith("_") and inspect.getdoc(plain):
                    found.setdefault(name, plain)
    return dict(sorted(found.items()))


def _anchor(package: str, name: str) -> str:
    return f"{package}.{name}".lower().replace(".", "-").replace("_", "-")


def _text(member: Any) -> str:
    return inspect.getdoc(member) or ""


def _line(text: str) -> str:
    """Return the first sentence, or paragraph without an end, on one line of a table."""
    first = " ".join(text.partition("\n\n")[0].split())
    return _inline(re.split(r"(?<=[a-z`)])\.(?= |$)", first)[0]).replace("|", "\\|")


def _signature(name: str, member: Any) -> str:
    try:
        signature = inspect.signature(member)
    except ValueError:
        return ""
    parameters = [one for one in signature.parameters.values() if one.name not in ("self", "cls")]
    annotation = (
        "" if signature.return_annotation in (inspect.Signature.empty, None) else _plain(signature.return_annotation)
    )
    returned = f" -> {annotation}" if annotation and not inspect.isclass(member) else ""
    words = list(_parameters(parameters))
    short = f"{name}({', '.join(words)}){returned}"
    if len(short) > _WIDTH:
        short = f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){returned}"
    return f"```python\n{short}\n```"


def _parameters(parameters: list[inspect.Parameter]) -> Iterator[str]:
    """Yield parameters as they stand in a signature, with the bare star before the first that is keyword-only."""
    kinds = [one.kind for one in parameters]
    for place, one in enumerate(parameters):
        is_first = one.kind == one.KEYWORD_ONLY and one.KEYWORD_ONLY not in kinds[:place]
        if is_first and one.VAR_POSITIONAL not in kinds:
            yield "*"
        stars = "*" if one.kind == one.VAR_POSITIONAL else "**" if one.kind == one.VAR_KEYWORD else ""
        annotation = "" if one.annotation is one.empty else f": {_plain(one.annotation)}"
        default = "" if one.default is one.empty else f" = {one.default!r}" if annotation else f"={one.default!r}"
        yield f"{stars}{one.name}{annotation}{_plain(default)}"


def _plain(annotation: Any) -> str:
    """Return an annotation, or a default, without the modules of its names."""
    if get_origin(annotation) is Annotated:
        return _plain(annotation.__origin__)
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"ForwardRef\('([^']*)'.*?\)", r"\1", text)
    return re.sub(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])", "", text) if not text.startswith(" = '") else text


def _markdown(text: str) -> str:
    """Return a docstring as Markdown: its sections as lists, its examples as code."""
    parts: list[str] = []
    for title, body in _sections(text):
        if title is None:
            parts.append(_prose(body))
        elif title == "Example":
            parts.append(f"```pycon\n{body}\n```")
        elif title in ("Returns", "Yields"):
            parts.append(f"**{title}** {_inline(body)}")
        else:
            rows = [f"- `{name.strip()}`: {_inline(said)}" for name, said in _entries(body)]
            heading = {"Args": "Arguments"}.get(title, title)
            parts.append(f"**{heading}**\n\n" + "\n".join(rows))
    return "\n\n".join(part for part in parts if part)


def _sections(text: str) -> Iterator[tuple[str | None, str]]:
    """Yield the parts of a docstring, each with its title; None for prose."""
    title: str | None = None
    lines: list[str] = []
    for line in text.splitlines():
        if line.removesuffix(":") in _SECTIONS and line.endswith(":"):
            yield title, textwrap.dedent("\n".join(lines)).strip("\n")
            title, lines = line.removesuffix(":"), []
        elif title is not None and line and not line[0].isspace():
            yield title, textwrap.dedent("\n".join(lines)).strip("\n")
            title, lines = None, [line]
        else:
            lines.append(line)
    yield title, textwrap.dedent("\n".join(lines)).strip("\n")


def _entries(body: str) -> Iterator[tuple[str, str]]:
    """Yield name and text of the entries of a section."""
    for entry in re.split(r"\n(?=\S)", body):
        name, _, said = entry.partition(":")
        yield name, " ".join(said.split())


def _prose(body: str) -> str:
    """Return paragraphs, in which an example without a title becomes code."""
    parts = []
    for paragraph in re.split(r"\n\s*\n", body):
        if paragraph.lstrip().startswith(">>>"):
            parts.append(f"```pycon\n{textwrap.dedent(paragraph)}\n```")
        elif "===" in paragraph:
            parts.append(f"```text\n{paragraph}\n```")
        else:
            parts.append(_inline(paragraph))
    return "\n\n".join(parts)


def _inline(text: str) -> str:
    """Return text with Markdown's single backquotes; angle brackets outside of code are escaped."""
    marked = text.replace("``", "`")
    pieces = marked.split("`")
    pieces[::2] = [piece.replace("<", "&lt;").replace("*", "\\*") for piece in pieces[::2]]
    return "`".join(pieces)
