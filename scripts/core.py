"""Write the project of ``rlx-core``: the code of rlx, which does not require PyTorch.

    python scripts/core.py DIRECTORY && pip install DIRECTORY

Its pyproject.toml is that of rlx with another name, and without the requirements of the extra ``torch``. Install one of
the two: both have the packages ``rlx`` and ``rlx_cli``.
"""

import shutil
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_PARTS = ("rlx", "commands", "packaging/description.md", "hatch_build.py", "LICENSE")


def main() -> None:
    """Write the project into the directory that the command line names."""
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/core.py DIRECTORY")
    write_project(Path(sys.argv[1]))


def write_project(directory: Path) -> None:
    """Write the project into a new directory."""
    directory.mkdir(parents=True)
    (directory / "packaging").mkdir()
    for part in _PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, directory / part, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(ROOT / part, directory / part)
    (directory / "pyproject.toml").write_text(pyproject((ROOT / "pyproject.toml").read_text()))


def pyproject(text: str) -> str:
    """Return the pyproject.toml of rlx-core, made of that of rlx.

    Example:
        >>> made = tomllib.loads(pyproject((ROOT / "pyproject.toml").read_text()))["project"]
        >>> made["name"], [each for each in made["dependencies"] if "torch" in each]
        ('rlx-core', [])
    """
    lines = [
        f'    "{requirement}",\n' for requirement in tomllib.loads(text)["project"]["optional-dependencies"]["torch"]
    ]
    for before, after in [('\nname = "rlx"\n', '\nname = "rlx-core"\n'), *((line, "") for line in lines)]:
        if text.count(before) != 1:
            raise ValueError(f"pyproject.toml: expected {before.strip()} once, found it {text.count(before)} times")
        text = text.replace(before, after)
    return text


if __name__ == "__main__":
    main()
