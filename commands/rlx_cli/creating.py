"""The commands that make a dataset: collect and convert."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_args

import typer

import rlx
from rlx.verbs.arguments import StoreName
from rlx.verbs.collect import destination as directory_of
from rlx_cli.output import Output
from rlx_cli.progress import showing
from rlx_cli.report import resumable, show_export, show_reports
from rlx_cli.signature import command_of


@command_of(rlx.collect)
def collect(ctx: typer.Context, env: str, policy: str, output: Path | None, overwrite: bool, **options: Any) -> None:
    """Collect steps of an environment into a dataset.

    \b
    Examples:
      rlx collect
      rlx collect ALE/Breakout-v5 --envs 8 --workers 4 --steps 1000000
      rlx collect CartPole-v1 --episodes 100 --policy agent.py:act -o cartpole
      rlx collect CartPole-v1 --policy agent.pt:agent:Actor --drop logits
      rlx collect ALE/Breakout-v5 --steps 1000000 --info lives --resume

    Keeps all policy outputs, such as log-probs and hidden states. Atari games use the preprocessing of the DQN Replay
    Dataset. Episodes that --steps cuts are flagged truncated.
    """
    shown: Output = ctx.obj
    path = directory_of(env, output)
    if code := _code(env, policy):
        shown.say("note", f"this runs code of {' and '.join(code)}")
    with (
        resumable(path, overwrite=overwrite, hint="run the same command with --resume"),
        showing(shown, f"collect {env}") as progress,
    ):
        report = rlx.collect(env, policy=policy, output=output, overwrite=overwrite, **options, progress=progress)
    show_reports(shown, [report], as_list=False)


def _code(env: str, policy: str) -> list[str]:
    """Return the modules and files whose code the command runs; exported modules are code, too."""
    named = [name for name in (env, policy) if ":" in name or name.endswith((".pt", ".pt2"))]
    return list(dict.fromkeys(name.rpartition(":")[0].rpartition(".pt:")[2] or name for name in named))


@command_of(rlx.convert)
def convert(ctx: typer.Context, source: str, destination: Path, to: str, overwrite: bool, **options: Any) -> None:
    """Convert files or a dataset into a dataset, or another format.

    \b
    Examples:
      rlx convert replay/Pong/1 pong
      rlx convert ~/.minari/datasets/D4RL/door/human-v2 door
      rlx convert Pong/5 pong-archive --codec zstd:level=19,chunk=32
      rlx convert door door.hdf5 --to d4rl

    Run again to resume a conversion to a dataset; a finished export is kept. An export to another project's format
    first warns of data that the format cannot hold.
    """
    from rlx.verbs.report import Report

    output: Output = ctx.obj
    kept = nullcontext() if to not in get_args(StoreName) else resumable(destination, overwrite=overwrite)
    with kept, showing(output, f"convert {source}") as progress:
        convert_any: Any = rlx.convert  # whose overloads know the format
        report = convert_any(source, destination, to=to, overwrite=overwrite, **options, progress=progress)
    if isinstance(report, Report):
        show_reports(output, [report], as_list=False)
    else:
        show_export(output, report)
