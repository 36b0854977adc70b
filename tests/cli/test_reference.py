import re

from scripts.docs import PAGE, reference
from tests.cli.test_help import COMMANDS


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text() == reference(), "run: python scripts/docs.py"


def test_every_command_is_on_the_page() -> None:
    assert re.findall(r"^## (.*)$", reference(), re.MULTILINE) == ["rlx", *(f"rlx {name}" for name in COMMANDS)]
