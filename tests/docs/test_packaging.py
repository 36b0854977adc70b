"""The recipe, the Dockerfile and the extras say what pyproject.toml does."""

import re
import tomllib

import yaml
from packaging.requirements import Requirement

from tests.docs.pages import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RECIPE = (ROOT / "packaging/conda/recipe.yaml").read_text()
_AT_CONDA_FORGE = {"torch": "pytorch", "isal": "python-isal"}
_CONDITIONS = {"": "", 'python_version < "3.14"': 'match(python, "<3.14")'}


def test_the_recipe_requires_what_the_package_does() -> None:
    wanted = {
        (f"{_AT_CONDA_FORGE.get(one.name, one.name)} {one.specifier}", _CONDITIONS[str(one.marker or "")])
        for one in map(Requirement, PROJECT["dependencies"])
    }
    recipe = yaml.safe_load(RECIPE)
    run = [one if isinstance(one, dict) else {"then": one, "if": ""} for one in recipe["requirements"]["run"]]
    assert {(one["then"], one["if"]) for one in run} == wanted | {("python", "")}
    bounds = {str(Requirement(each)) for extra in PROJECT["optional-dependencies"].values() for each in extra}
    assert {one.replace(" ", "") for one in recipe["requirements"]["run_constraints"]} <= bounds
    assert recipe["context"]["version"] == PROJECT["version"]
    assert str(yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]) == PROJECT["version"]
    lowest = PROJECT["requires-python"].removeprefix(">=")
    assert recipe["build"]["skip"] == ["win", f'match(python, "<{lowest}")']
    entry = [f"{name} = {target}" for name, target in PROJECT["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == entry


def test_the_extra_of_everything_has_all_but_envpool() -> None:
    extras = PROJECT["optional-dependencies"]
    left_out = {"all", "bench", "dev", "envpool", "d3rlpy", "stable-baselines3", "tianshou"}  # which want others
    left_out |= {"torch", "testing"}  # which rlx requires anyway, and which tests require
    assert set(extras["all"]) == {each for name, extra in extras.items() if name not in left_out for each in extra}


def test_the_extra_of_what_rlx_core_leaves_out_has_the_bounds_of_rlx() -> None:
    assert set(PROJECT["optional-dependencies"]["torch"]) <= set(PROJECT["dependencies"])


def test_the_description_on_the_index_says_what_the_readme_says() -> None:
    description, readme = ((ROOT / name).read_text() for name in (PROJECT["readme"], "README.md"))
    lines = [line for line in description.splitlines() if line and not line.startswith(("```", "pip install"))]
    assert len(lines) > 8
    assert [line for line in lines if line not in readme] == []
    assert "](" not in description  # links and pictures of a clone


def test_the_image_runs_rlx_as_somebody_else_than_root() -> None:
    lines = (ROOT / "packaging/Dockerfile").read_text().splitlines()
    last = lines[max(number for number, line in enumerate(lines) if line.startswith("FROM")) :]
    assert "USER 1000" in last
    assert 'ENTRYPOINT ["rlx"]' in last
    copied = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert all((ROOT / name).exists() for name in copied)
    assert {"pyproject.toml", "hatch_build.py", PROJECT["readme"], *PROJECT["license-files"]} <= set(copied)
