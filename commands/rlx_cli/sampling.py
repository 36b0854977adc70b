"""``rlx sample``: draw steps or slices from datasets, for a preview or for other programs."""

from typing import TYPE_CHECKING, Any, cast

import typer

import rlx
from rlx.wording import excerpt, number, plural, shape, size
from rlx_cli.output import Output, Part, table
from rlx_cli.report import UsageError
from rlx_cli.signature import command_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray
    from rich.table import Table
    from rich.text import Text
    from tensordict import TensorDictBase

    from rlx.verbs.sampling import Sample


_MAX_CHARACTERS = 40
_SIDE = 24  # width of an image in characters: about three fit on a terminal
_HALF = "▀"


@command_of(rlx.sample)
def sample(ctx: typer.Context, datasets: list[str], output: str | None, format: str | None, **options: Any) -> None:
    """Draw steps or slices from datasets, and print or write them.

    \b
    Examples:
      rlx sample Pong/5
      rlx sample Pong/5 --slice-len 16 --stack 4
      rlx sample Pong/5 Breakout/1 --batches 100 --seed 7 -o steps.npz
      rlx sample Pong/5 --n-step 3 --gamma 0.99 -o - --format jsonl | head

    A file holds all batches concatenated, with fields named by path, such as next/reward. Every batch has an equal
    share of each dataset.
    """
    shown: Output = ctx.obj
    to_stdout = output == "-"
    if to_stdout:
        _check_stdout(shown, format)
    place = shown.results.buffer if to_stdout else output
    drawn = rlx.sample(datasets, output=place, format=cast("Any", format), **options)  # a name that a package adds
    if drawn.batch is not None:
        _show_batch(shown, drawn, drawn.batch)
    elif not to_stdout:
        amount = f"{plural(drawn.steps, 'step')} in {plural(drawn.batches, 'batch')}"
        shown.show(drawn.to_json(), f"{amount}, {size(drawn.bytes or 0)}, seed {drawn.seed}", str(drawn.output))


def _check_stdout(output: Output, format: str | None) -> None:
    if format is None:
        raise UsageError("--output - requires --format", hint="rlx sample --help")
    if output.json:
        raise UsageError("--json and --output - both write to stdout", hint="rlx sample --help")
    if format != "jsonl" and output.results.isatty():
        raise UsageError(f"{format} is binary: expected a pipe or a file name, found a terminal", hint="-o FILE")


def _show_batch(output: Output, drawn: "Sample", batch: "TensorDictBase") -> None:
    from rlx.verbs.sampling import head_columns

    described = [(name, kind["dtype"], shape(kind["shape"])) for name, kind in drawn.columns.items()]
    parts: list[Part] = [f"{plural(drawn.steps, 'step')}, seed {drawn.seed}", ""]
    if (frames := _frames(output, batch)) is not None:
        parts += [frames, ""]
    parts += [_steps_table(head_columns(batch)), "", table(["column", "dtype", "shape"], described)]
    output.show(drawn.to_json(), *parts)


def _steps_table(shown: "Mapping[str, NDArray[Any]]") -> Part:
    """Return a table of the first steps: the small columns, except root flags."""
    import numpy as np

    kept = {name: rows for name, rows in shown.items() if rows.dtype != bool or name.startswith("next/")}
    order = sorted(kept, key=lambda name: (not name.startswith(("index", "collector")), name.startswith("next/"), name))
    cells = list(zip(*([_cell(np.asarray(row)) for row in kept[name]] for name in order), strict=True))
    return table([f">{name}" for name in order], cells)


def _cell(row: "NDArray[Any]") -> str:
    if row.dtype == bool:
        return "".join("yes" if value else "-" for value in row.reshape(-1))
    if row.dtype.kind in "OU":
        return " | ".join(excerpt(text, _MAX_CHARACTERS) for text in row.reshape(-1).tolist())
    return " ".join(str(value) if row.dtype.kind in "iu" else number(value) for value in row.reshape(-1).tolist())


def _frames(output: Output, batch: "TensorDictBase") -> "Table | None":
    """Return the first observations as images, if they are images and the terminal shows colours."""
    from rich.table import Table

    from rlx.formats.common.batches import columns_of
    from rlx.viewer.pictures import pictures

    if not output.stdout.is_terminal or output.stdout.color_system not in ("truecolor", "256"):
        return None
    for name, rows in columns_of(batch).items():
        if name.startswith("observation") and (frames := pictures(rows)) is not None:
            grid = Table.grid()
            grid.add_row(_strip(frames, output.stdout.width))
            return grid
    return None


def _strip(frames: "NDArray[np.uint8]", width: int) -> "Text":
    """Return the frames [n, height, width, 3] side by side, limited to ``width`` characters."""
    from rich.text import Text

    fitting = max(1, (width + 1) // (_SIDE + 1))
    small = [_shrunk(frame) for frame in frames[:fitting]]
    text = Text()
    for upper in range(0, small[0].shape[0], 2):
        for place, frame in enumerate(small):
            text.append(" " if place else "")
            for top, bottom in zip(frame[upper], frame[upper + 1], strict=True):
                text.append(_HALF, f"rgb({_rgb(top)}) on rgb({_rgb(bottom)})")
        text.append("\n")
    text.right_crop(1)
    return text


def _shrunk(frame: "NDArray[np.uint8]") -> "NDArray[np.uint8]":
    """Return the frame, _SIDE pixels wide and an even number high, averaged."""
    import numpy as np

    height, width = frame.shape[:2]
    columns = min(_SIDE, width)
    lines = max(2, min(height, round(height * columns / width)) // 2 * 2)
    sums = np.add.reduceat(frame.astype(np.int64), np.arange(lines) * height // lines, axis=0)
    sums = np.add.reduceat(sums, np.arange(columns) * width // columns, axis=1)
    covered = np.outer(
        np.diff(np.arange(lines + 1) * height // lines), np.diff(np.arange(columns + 1) * width // columns)
    )
    return (sums // covered[..., None]).astype(np.uint8)


def _rgb(pixel: "NDArray[np.uint8]") -> str:
    return ",".join(map(str, pixel.tolist()))
