"""Tables on terminals that are too narrow for them."""

import io

import pytest
from rich.console import Console

from rlx_cli.output import table


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_narrow_terminal_cuts_no_number_and_no_name(width: int) -> None:
    names = ["collector/traj_ids", "index", "action", "next/done", "next/reward", "next/terminated", "next/truncated"]
    numbers = ["12", "61954", "3", "-", "-0.125", "yes", "-"]
    file = io.StringIO()
    Console(file=file, width=width).print(table([f">{name}" for name in names], [numbers]))
    lines = file.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    # Column by column, from above: what does not fit goes on in the line below.
    for text in ("61954", "-0.125") if width >= 60 else ():
        assert text in lines[-1].split()
    shown = sorted("".join(lines).replace(" ", ""))
    assert shown == sorted("".join([*names, *numbers]))
