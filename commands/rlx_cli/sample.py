"""``rlx sample``: draw steps or slices from datasets, for a preview or for other programs."""

import math
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlx.quantities import excerpt, number, plural, shape, size
from rlx_cli import completion
from rlx_cli.options import DebugOption, JsonOption, QuietOption
from rlx_cli.output import Output, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray
    from rich.table import Table

    from rlx.formats.common.batches import Columns

_ROWS = 10
_MAX_VALUES = 6
_MAX_CHARACTERS = 40


class Format(StrEnum):
    """File formats of batches."""

    NPZ = "npz"
    PT = "pt"
    H5 = "h5"
    ZARR = "zarr"
    PARQUET = "parquet"
    JSONL = "jsonl"


def sample(
    ctx: typer.Context,
    datasets: Annotated[
        list[str],
        typer.Argument(
            metavar="DATASET...",
            help="Paths of datasets, their ids below $RLX_HOME, or URLs.",
            autocompletion=completion.datasets,
        ),
    ],
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, metavar="N", help="Steps per batch.")] = 128,
    slice_len: Annotated[
        int | None,
        typer.Option(
            "--slice-len",
            min=1,
            metavar="L",
            help="Steps per slice; draws slices instead of single steps.",
            show_default=False,
        ),
    ] = None,
    num_slices: Annotated[
        int | None,
        typer.Option(
            "--num-slices",
            min=1,
            metavar="N",
            help="Slices per batch; draws slices instead of single steps.",
            show_default=False,
        ),
    ] = None,
    stack: Annotated[int, typer.Option("--stack", min=1, metavar="K", help="Observations per stack.")] = 1,
    n_step: Annotated[int, typer.Option("--n-step", min=1, metavar="N", help="Steps per transition.")] = 1,
    gamma: Annotated[
        float | None,
        typer.Option("--gamma", min=0, max=1, metavar="G", help="Discount factor for --n-step.", show_default="0.99"),
    ] = None,
    batches: Annotated[int, typer.Option("--batches", min=1, metavar="N", help="Number of batches to write.")] = 1,
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, metavar="N", help="Random seed.", show_default="random"),
    ] = None,
    without_replacement: Annotated[
        bool, typer.Option("--without-replacement", help="Draw every step, or trajectory, at most once.")
    ] = False,
    no_strict_length: Annotated[
        bool, typer.Option("--no-strict-length", help="Include trajectories shorter than a slice.")
    ] = False,
    out: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FILE|-", help="Output file; - is stdout.", show_default="print a preview"
        ),
    ] = None,
    file_format: Annotated[
        Format | None, typer.Option("--format", help="File format.", show_default="from the file suffix")
    ] = None,
    _json: JsonOption = False,
    _quiet: QuietOption = False,
    _debug: DebugOption = False,
) -> None:
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
    output: Output = ctx.obj
    name = _checked_format(output, out, file_format)
    if slice_len is not None and num_slices is not None:
        raise typer.BadParameter("--slice-len and --num-slices are mutually exclusive")
    if gamma is not None and n_step == 1:
        raise typer.BadParameter("--gamma requires --n-step of 2 or more")
    if batches > 1 and out is None:
        raise typer.BadParameter("--batches requires --output; a preview shows one batch")

    from rlx.pipeline.sampling import Sampling, draw
    from rlx.pipeline.sampling_room import check_file
    from rlx.store.dataset import Dataset

    chosen = _fresh_seed() if seed is None else seed
    sampling = Sampling(
        batch_size=batch_size,
        batches=batches,
        slice_len=slice_len,
        num_slices=num_slices,
        stack=stack,
        n_step=n_step,
        gamma=0.99 if gamma is None else gamma,
        seed=chosen,
        replacement=not without_replacement,
        strict_length=not no_strict_length,
    )
    opened = [Dataset(dataset) for dataset in datasets]
    if name is not None:
        check_file(opened, sampling, name, None if out == "-" else Path(str(out)))
    drawn = _Drawn(draw(opened, sampling))
    document = {"datasets": datasets, "seed": chosen}
    if name is None:
        _look(output, document, drawn)
    elif out == "-":
        _stream(drawn, name)
    else:
        _write(output, document, drawn, Path(str(out)), name)


def _checked_format(output: Output, out: str | None, file_format: Format | None) -> str | None:
    """Return the format to write; None for a preview."""
    if out is None:
        if file_format is not None:
            raise typer.BadParameter("--format requires --output")
        return None
    if out != "-":
        from rlx.formats.batch_formats import format_of

        return file_format or format_of(Path(out))
    if file_format is None:
        raise typer.BadParameter("--output - requires --format")
    if file_format == Format.ZARR:
        raise typer.BadParameter("zarr is a directory and cannot be written to stdout")
    if output.json:
        raise typer.BadParameter("--json and --output - both write to stdout")
    if file_format != Format.JSONL and sys.stdout.isatty():
        raise typer.BadParameter(f"{file_format} is binary: expected a pipe or a file name, found a terminal")
    return file_format


class _Drawn:
    """Batches as columns; counts them as they are consumed."""

    def __init__(self, batches: "Iterable[Any]") -> None:
        self._batches = batches
        self.batches = 0
        self.steps = 0
        self.columns: dict[str, dict[str, Any]] = {}

    def __iter__(self) -> "Iterator[Columns]":
        from rlx.formats.common.batches import columns_of

        for batch in self._batches:
            columns = columns_of(batch)
            self.batches += 1
            self.steps += len(batch)
            self.columns = {
                name: {"dtype": _dtype(rows), "shape": list(rows.shape[1:])} for name, rows in columns.items()
            }
            yield columns

    def document(self) -> dict[str, Any]:
        """Return the JSON document of the consumed batches."""
        return {"batches": self.batches, "steps": self.steps, "columns": self.columns}


def _dtype(rows: "NDArray[Any]") -> str:
    return "string" if rows.dtype == object else str(rows.dtype)


def _fresh_seed() -> int:
    import secrets

    return secrets.randbits(32)


def _write(output: Output, document: dict[str, Any], drawn: _Drawn, path: Path, name: str) -> None:
    from rlx.formats.batch_formats import EXPORTERS, export

    export(drawn, path, EXPORTERS[name])
    files = path.rglob("*") if path.is_dir() else [path]
    num_bytes = sum(file.stat().st_size for file in files if file.is_file())
    document |= {"output": str(path), "format": name, "bytes": num_bytes, **drawn.document()}
    seed, amount = document["seed"], plural(drawn.steps, "step")
    output.show(document, f"{amount} in {_batches(drawn)}, {size(num_bytes)}, seed {seed}", str(path))


def _stream(drawn: _Drawn, name: str) -> None:
    from rlx.formats.batch_formats import EXPORTERS
    from rlx.formats.common.batches import DirectoryExporter

    exporter = EXPORTERS[name]
    assert not isinstance(exporter, DirectoryExporter)
    exporter.write(drawn, sys.stdout.buffer)
    sys.stdout.buffer.flush()


def _batches(drawn: _Drawn) -> str:
    return "1 batch" if drawn.batches == 1 else f"{drawn.batches:,} batches"


def _look(output: Output, document: dict[str, Any], drawn: _Drawn) -> None:
    columns = next(iter(drawn))
    document |= drawn.document()
    shown = {name: rows[:_ROWS] for name, rows in columns.items() if rows[:1].size <= _MAX_VALUES}
    document["head"] = [
        {name: _jsonable(rows[row : row + 1].tolist()[0]) for name, rows in shown.items()}
        for row in range(min(_ROWS, drawn.steps))
    ]
    described = [(name, kind["dtype"], shape(kind["shape"])) for name, kind in drawn.columns.items()]
    parts: list[str | Table] = [f"{plural(drawn.steps, 'step')}, seed {document['seed']}", ""]
    if (frames := _frames(output, columns)) is not None:
        parts += [frames, ""]
    parts += [_steps_table(shown), "", table(["column", "dtype", "shape"], described)]
    output.show(document, *parts)


def _jsonable(value: Any) -> Any:
    if isinstance(value, list):
        return [_jsonable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _steps_table(shown: "Mapping[str, NDArray[Any]]") -> "Table":
    """Return a table of the first steps: the small columns, except root flags."""
    import numpy as np

    kept = {name: rows for name, rows in shown.items() if rows.dtype != bool or name.startswith("next/")}
    order = sorted(kept, key=lambda name: (not name.startswith(("index", "collector")), name.startswith("next/"), name))
    cells = zip(*([_cell(np.asarray(row)) for row in kept[name]] for name in order), strict=True)
    return table([f">{name}" for name in order], cells)


def _cell(row: "NDArray[Any]") -> str:
    if row.dtype == bool:
        return "".join("yes" if value else "-" for value in row.reshape(-1))
    if row.dtype.kind in "OU":
        return " | ".join(excerpt(text, _MAX_CHARACTERS) for text in row.reshape(-1).tolist())
    return " ".join(str(value) if row.dtype.kind in "iu" else number(value) for value in row.reshape(-1).tolist())


def _frames(output: Output, columns: "Columns") -> "Table | None":
    """Return the first observations as images, if they are images and the terminal shows colours."""
    from rich.table import Table

    from rlx.viewer.pictures import pictures
    from rlx_cli.frames import strip

    if not output.stdout.is_terminal or output.stdout.color_system not in ("truecolor", "256"):
        return None
    for name, rows in columns.items():
        if name.startswith("observation") and (frames := pictures(rows)) is not None:
            grid = Table.grid()
            grid.add_row(strip(frames, output.stdout.width))
            return grid
    return None
