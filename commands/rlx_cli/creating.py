"""The commands that make a dataset: collect and convert."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from rlx.verbs.arguments import Autoreset, ConvertFormat, ExportFormat, RewardDtype, Store
from rlx_cli.options import (
    CodecOption,
    EngineOption,
    FromOption,
    JobsOption,
    OnErrorOption,
    OverwriteOption,
    RayAddressOption,
    ShardsOption,
    StoreOption,
    complete_datasets,
    complete_formats,
)
from rlx_cli.output import Output
from rlx_cli.progress import showing
from rlx_cli.report import resumable, show_export, show_reports


def collect(
    ctx: typer.Context,
    env: Annotated[
        str,
        typer.Argument(metavar="ENV", help="Gymnasium id, or module:name or file.py:name of an environment factory."),
    ] = "ALE/Pong-v5",
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Dataset directory.", show_default="$RLX_HOME/ENV"),
    ] = None,
    envs: Annotated[int, typer.Option("--envs", min=1, max=2**16, metavar="N", help="Environments per worker.")] = 4,
    workers: Annotated[int, typer.Option("--workers", min=1, max=2**12, metavar="N", help="Worker processes.")] = 1,
    sync: Annotated[
        bool,
        typer.Option("--sync/--async", help="Equal shares per worker, reproducible from the seed; or work on demand."),
    ] = True,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, metavar="N", help="Exact number of steps.", show_default="10,000"),
    ] = None,
    episodes: Annotated[
        int | None, typer.Option("--episodes", min=1, metavar="N", help="Number of whole episodes, instead of --steps.")
    ] = None,
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            metavar="POLICY",
            help="Policy: random, module:name, file.py:name, file.pt2, or file.pt:module:factory.",
        ),
    ] = "random",
    epsilon: Annotated[
        float, typer.Option("--epsilon", min=0, max=1, metavar="P", help="Probability of a random action.")
    ] = 0.0,
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="Mode of the policy's distribution instead of a sample."),
    ] = False,
    drop: Annotated[
        str | None,
        typer.Option("--drop", metavar="KEY,...", help="Policy outputs to drop, such as logits,next/value."),
    ] = None,
    info: Annotated[
        str | None,
        typer.Option("--info", metavar="KEY,...|all", help="Info entries to keep, as next/info/KEY."),
    ] = None,
    autoreset: Annotated[
        Autoreset | None,
        typer.Option(
            "--autoreset",
            help="Autoreset mode of a vector environment that declares none.",
            show_default="as it declares",
        ),
    ] = None,
    reward_dtype: Annotated[
        RewardDtype | None,
        typer.Option(
            "--reward-dtype",
            help="Reward dtype; float32 rounds.",
            show_default="float32, or float64 if float32 would change a reward",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Random seed.")] = 0,
    shard_steps: Annotated[
        int,
        typer.Option(
            "--shard-steps", min=1, metavar="N", help="Steps per shard; at most this many are lost in a crash."
        ),
    ] = 100_000,
    step_timeout: Annotated[
        float | None,
        typer.Option(
            "--step-timeout",
            min=0.001,
            metavar="SECONDS",
            help="Time limit of make, reset, step and close; a worker that exceeds it is replaced.",
            show_default="no limit",
        ),
    ] = None,
    store: StoreOption = "zarr",
    codec: CodecOption = None,
    engine: EngineOption = "local",
    ray_address: RayAddressOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume until --steps or --episodes is reached, with fresh seeds.")
    ] = False,
    overwrite: OverwriteOption = False,
) -> None:
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
    import rlx
    from rlx.verbs.creating import destination

    shown: Output = ctx.obj
    path = destination(env, output)
    if code := _code(env, policy):
        shown.say("note", f"this runs code of {' and '.join(code)}")
    with (
        resumable(path, overwrite=overwrite, hint="run the same command with --resume"),
        showing(shown, f"collect {env}") as progress,
    ):
        report = rlx.collect(
            env,
            output=output,
            envs=envs,
            workers=workers,
            sync=sync,
            steps=steps,
            episodes=episodes,
            policy=policy,
            epsilon=epsilon,
            deterministic=deterministic,
            drop=drop,
            info=info,
            autoreset=autoreset,
            reward_dtype=reward_dtype,
            seed=seed,
            shard_steps=shard_steps,
            step_timeout=step_timeout,
            store=store,
            codec=codec,
            engine=engine,
            ray_address=ray_address,
            resume=resume,
            overwrite=overwrite,
            progress=progress,
        )
    show_reports(shown, [report], as_list=False)


def _code(env: str, policy: str) -> list[str]:
    """Return the modules and files whose code the command runs; exported modules are code, too."""
    named = [name for name in (env, policy) if ":" in name or name.endswith((".pt", ".pt2"))]
    return list(dict.fromkeys(name.rpartition(":")[0].rpartition(".pt:")[2] or name for name in named))


_FORMATS = ", ".join(get_args(ExportFormat))


def convert(
    ctx: typer.Context,
    source: Annotated[
        str,
        typer.Argument(metavar="SRC", help="Dataset, or files of another project.", autocompletion=complete_datasets),
    ],
    destination: Annotated[Path, typer.Argument(metavar="DST", help="New dataset or file.")],
    from_: FromOption = None,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FORMAT",
            autocompletion=lambda: [*get_args(Store), *complete_formats(ExportFormat, "datasets")],
            help=f"Store of a new dataset, zarr or memmap, or another project's format: {_FORMATS}.",
        ),
    ] = "zarr",
    codec: CodecOption = None,
    capacity: Annotated[
        int | None,
        typer.Option(
            min=8,
            metavar="N",
            help="Rows per file in Dopamine's layout.",
            show_default="1,000,000, or fewer if SRC is smaller",
        ),
    ] = None,
    shards: ShardsOption = None,
    jobs: JobsOption = None,
    engine: EngineOption = "local",
    ray_address: RayAddressOption = None,
    on_error: OnErrorOption = "stop",
    overwrite: OverwriteOption = False,
) -> None:
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
    import rlx
    from rlx.verbs.report import Report

    output: Output = ctx.obj
    kept = nullcontext() if to not in get_args(Store) else resumable(destination, overwrite=overwrite)
    with kept, showing(output, f"convert {source}") as progress:
        report = rlx.convert(
            source,
            destination,
            from_=from_,
            to=cast("ConvertFormat", to),  # or the name of a format that another package adds
            codec=codec,
            capacity=capacity,
            shards=shards,
            jobs=jobs,
            engine=engine,
            ray_address=ray_address,
            on_error=on_error,
            overwrite=overwrite,
            progress=progress,
        )
    if isinstance(report, Report):
        show_reports(output, [report], as_list=False)
    else:
        show_export(output, report)
